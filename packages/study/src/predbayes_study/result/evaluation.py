"""How the model does at the sites: sums over their held-out rows, which add up over sites.

Every measure of a study is a mean over rows, or the root of one. So a site that tries the model on
rows of its own need not send more than, for each measure, the sum of its values and of their
squares: the sums of several sites add up to those of all their rows, and carry intervals,

    mean = S1 / n,   mean +- t sqrt((S2 / n - mean^2) / (n - 1)),

and for shares Wilson's, which needs no squares. A reliability diagram of several classes is sums by
bins likewise, and so is what is told of risks (`predbayes_study.result.risksums`) and of scores,
for promised coverage (`predbayes_study.result.promises`).

Whoever has the model and knows people by their columns can ask which of them these sums are sums
of. Six digits over five rows answered: who, and each one's outcome. So what leaves is little
against what it could be about:

    rows       at least 30, and the plan's `min_cell`
    digits     three, of S1 and of the spread S2 - S1^2 / n: about ten bits a number
    diagram    of at least 100 rows, without a bin of fewer than `min_cell`
    alike      what the model says of a row is clipped to what it says of at least four others

The last is against a model made to ask about one person: 1/2 for everybody else, and sure of hers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import DataError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical, Gaussian, Predictive, Survival
from predbayes.predictive.measures import MEASURES
from predbayes.predictive.metrics import (
    DIAGRAM_BINS,
    bin_of,
    confidences,
    hit_rows,
    reliability,
)
from predbayes.predictive.risk import Risks as RowRisks
from predbayes_study.payloads.details import (
    BinSums,
    Evaluation,
    RiskSums,
    Sums,
    evaluation_of,
    with_evaluation,
)
from predbayes_study.plan.schema import Plan
from predbayes_study.result.apart import Cells
from predbayes_study.result.groups import pooled_looks, words_of
from predbayes_study.result.groupsums import (
    check_groups,
    group_cells,
    group_sums,
    pooled_groups,
)
from predbayes_study.result.promises import check_scores, pooled_scores, score_counts
from predbayes_study.result.risksums import check_risks, pooled_risks, risk_sums, site_risks
from predbayes_study.result.schema import FEWEST_TO_POOL, AtSites, Bin, Scores, SiteScores
from predbayes_study.result.scoring import TAILS, measures_of, row_values
from predbayes_study.result.sums import (
    DIGITS,
    SLACK,
    estimate_of_sums,
    is_possible,
    is_rounded,
    rounded,
    sums_of,
)

FEWEST_ROWS = 30
"""Whatever the plan says; fewer can be told apart by their sums."""

FEWEST_ROWS_OF_DIAGRAM = 100

_FEWEST_ALIKE = 5
_FARTHEST = 5.0


def fewest_rows(plan: Plan) -> int:
    """Return the number of rows below which nothing is sent."""
    return max(FEWEST_ROWS, plan.rules.min_cell)


def sum_up(
    plan: Plan, predictive: Predictive, targets: Tensor, model: str, inputs: Tensor | None = None
) -> Evaluation:
    """Sum up the measures of a model, which its weights' digest names, over rows.

    With the rows' inputs also over the plan's groups of rows.
    """
    as_predicted, predictive = predictive, alike(plan, predictive, targets)
    values = row_values(plan, predictive, targets)
    metrics = {name: sums_of(MEASURES[name], rows) for name, rows in sorted(values.items())}
    bins = risks = None
    if isinstance(predictive, Categorical):
        risks = risk_sums(plan, predictive, targets)
        # Of two classes the risk says it all, and two diagrams of the same rows say more than one.
        if plan.num_outputs > 2:
            bins = _bin_sums(predictive, targets, plan.rules.min_cell)
    groups = None
    if inputs is not None and (risks is not None or len(plan.event_indices) != 1):
        groups = group_sums(plan, inputs, predictive, targets)
    told = _cells(plan, values, predictive, targets, risks or (), diagram=bins is not None)
    if inputs is not None and groups:
        told += group_cells(plan, inputs, targets)
    return Evaluation(
        model=model,
        metrics=metrics,
        bins=bins,
        risks=risks,
        groups=groups,
        scores=score_counts(plan, as_predicted, targets, risks or (), told),
    )


def _cells(
    plan: Plan,
    values: Mapping[str, Tensor],
    predictive: Predictive,
    targets: Tensor,
    risks: Sequence[RiskSums],
    *,
    diagram: bool,
) -> list[Cells]:
    """The rows that shares and counts by risk tell of."""
    if not isinstance(predictive, Categorical):
        return [Cells(rows.long()) for name, rows in values.items() if MEASURES[name].is_share]
    hits = hit_rows(predictive, targets).long()
    found = [Cells(hits + 2 * bin_of(confidences(predictive), DIAGRAM_BINS) * int(diagram))]
    for index, one in zip(plan.event_indices, risks, strict=False):
        rows = RowRisks.of(predictive, targets, index)
        edges = torch.tensor(one.edges, dtype=torch.float64)
        place = torch.bucketize(rows.risk, edges, right=True)
        found.append(Cells(2 * place + rows.event.long(), by_score=True))
    return found


def alike(plan: Plan, predictive: Predictive, targets: Tensor) -> Predictive:
    """Clip what a model says of rows, so that no few of them stand out.

    The greatest probabilities of all rows, the second greatest and so on, the hazards of each
    interval, or the means and the variances, lie between the fifth least and the fifth greatest of
    them; if `min_cell` is above five, that, but at most a sixth of the rows at each end. No class
    has less than a hundredth of an equal share, so no row costs more than log(100 C) nats and a
    little; odds of hazards are bounded likewise; no mean is further from the rows' own than five of
    their standard deviations, which no plan can choose.
    """
    kth = max(1, min(max(_FEWEST_ALIKE, plan.rules.min_cell), len(predictive) // 6))
    if isinstance(predictive, Categorical):
        least = -math.log(100 * predictive.log_probs.shape[1])
        ordered, places = predictive.log_probs.sort(dim=1, descending=True, stable=True)
        clipped = _clipped(ordered.clamp_min(least), kth)
        return Categorical(torch.empty_like(clipped).scatter(1, places, clipped).log_softmax(1))
    if isinstance(predictive, Survival):
        most = math.log(100 * (predictive.log_odds.shape[1] + 1))
        return Survival(_clipped(predictive.log_odds.clamp(-most, most), kth))
    assert isinstance(predictive, Gaussian)
    centre, reach = float(targets.double().mean()), _FARTHEST * float(targets.double().std())
    means = predictive.mean.clamp(centre - reach, centre + reach)
    return Gaussian(_clipped(means, kth), _clipped(predictive.var, kth))


def _clipped(columns: Tensor, kth: int) -> Tensor:
    """Each column between its k-th least and its k-th greatest value."""
    ordered = columns.sort(dim=0).values
    return columns.clamp(ordered[kth - 1], ordered[-kth])


def evaluation_upload(
    plan: Plan,
    site: str,
    predictive: Predictive,
    targets: Tensor,
    model: str,
    *,
    inputs: Tensor | None = None,
) -> Upload:
    """Make what a site sends about a model; refuse where it has too few rows."""
    least = fewest_rows(plan)
    if len(targets) < least:
        raise DataError(
            f"{len(targets)} held-out rows are fewer than {least}, so nothing of them is sent"
        )
    evaluation = sum_up(plan, predictive, targets, model, inputs)
    info = with_evaluation(UploadInfo(kind="evaluation", num_rows=len(targets)), evaluation)
    return Upload(info, {}).named(site).for_plan(plan.digest())


def check_evaluation(plan: Plan, info: UploadInfo) -> None:
    """Refuse sums that no honest site can have found, or may have sent."""
    evaluation, num_rows = evaluation_of(info), info.num_rows
    if info.class_rows is not None:
        raise UploadError("an evaluation counts no classes")
    if num_rows < fewest_rows(plan):
        raise UploadError(f"it is of fewer rows than {fewest_rows(plan)}, the least there may be")
    measures = {measure.name: measure for measure in measures_of(plan)}
    known = {name for name, m in measures.items() if m.is_told is None}
    if not known <= evaluation.metrics.keys() <= measures.keys():
        raise UploadError(f"its metrics are not {', '.join(sorted(measures))}")
    for name, sums in evaluation.metrics.items():
        if not is_possible(plan, measures[name], sums, num_rows):
            raise UploadError(f"its sums of {name} cannot be those of {num_rows:,} rows")
        if not is_rounded(measures[name], sums, num_rows):
            raise UploadError(
                f"its sums of {name} have more than {DIGITS} digits, which may tell of single "
                "rows; make it again with this version's `predbayes site evaluate`"
            )
    if evaluation.bins is not None:
        _check_bins(plan, evaluation.bins, evaluation.metrics, num_rows)
    if evaluation.risks is not None:
        check_risks(plan, evaluation.risks, num_rows)
    if evaluation.groups is not None:
        check_groups(plan, evaluation.groups, evaluation.risks, num_rows)
    if evaluation.scores is not None:
        check_scores(plan, evaluation.scores, num_rows)


def scores_of(plan: Plan, num_rows: int, metrics: Mapping[str, Sums]) -> Scores:
    """Return measures and intervals from sums over rows."""
    return Scores(
        num_rows=num_rows,
        metrics={
            name: estimate_of_sums(MEASURES[name].of(classes=plan.classification), s, num_rows)
            for name, s in metrics.items()
        },
    )


def at_sites(plan: Plan, received: Sequence[UploadInfo]) -> AtSites | None:
    """Tell what sites found with the model, each and together; None if none has sent anything."""
    found = {info.site: (info.num_rows, evaluation_of(info)) for info in received}
    if not found:
        return None
    num_rows = sum(num for num, _ in found.values())
    pooled = _added([evaluation.metrics for _, evaluation in found.values()])
    groups = pooled_groups(plan, [evaluation.groups or () for _, evaluation in found.values()])
    told = [evaluation.risks for _, evaluation in found.values() if evaluation.risks]
    return AtSites(
        sites=tuple(
            SiteScores(
                site=site,
                scores=scores_of(plan, num, evaluation.metrics),
                risks=site_risks(plan, evaluation.risks) if evaluation.risks else (),
                groups=pooled_groups(plan, [evaluation.groups or ()]),
            )
            for site, (num, evaluation) in sorted(found.items())
        ),
        pooled=scores_of(plan, num_rows, pooled),
        bins=_bins([evaluation.bins for _, evaluation in found.values() if evaluation.bins]),
        risks=pooled_risks(plan, told),
        groups=groups,
        # Of times sites send no sums that tell the model from how long rows were seen.
        group_words="" if plan.survival else words_of(pooled_looks(groups), len(groups)),
        scores=pooled_scores(received),
        public=len(found) >= FEWEST_TO_POOL and not _has_small_cell(plan, num_rows, pooled),
    )


def _bin_sums(predictive: Categorical, targets: Tensor, min_cell: int) -> BinSums | None:
    sums = reliability(predictive, targets, DIAGRAM_BINS)
    if len(targets) < FEWEST_ROWS_OF_DIAGRAM or any(0 < n < min_cell for n in sums.count):
        return None
    return BinSums(
        rows=tuple(sums.count),
        hits=tuple(sums.hits),
        confidence=tuple(map(rounded, sums.confidence_sum)),
    )


def _check_bins(plan: Plan, bins: BinSums, metrics: Mapping[str, Sums], num_rows: int) -> None:
    sizes = {len(bins.rows), len(bins.hits), len(bins.confidence)}
    if not plan.classification or sizes != {DIAGRAM_BINS}:
        raise UploadError("its reliability bins are not those of the plan")
    if num_rows < FEWEST_ROWS_OF_DIAGRAM:
        raise UploadError(f"its reliability bins are of fewer rows than {FEWEST_ROWS_OF_DIAGRAM}")
    if any(0 < count < plan.rules.min_cell for count in bins.rows):
        raise UploadError(f"a reliability bin has fewer than {plan.rules.min_cell} rows")
    inside = all(
        hits <= rows and confidence <= rows * (1 + SLACK)
        for rows, hits, confidence in zip(bins.rows, bins.hits, bins.confidence, strict=True)
    )
    if not inside or (sum(bins.rows), sum(bins.hits)) != (num_rows, metrics["accuracy"].total):
        raise UploadError("its reliability bins do not add up")


def _added(summed: Sequence[Mapping[str, Sums]]) -> dict[str, Sums]:
    """The sums over all sites, whatever their order."""
    return {
        name: Sums(
            total=math.fsum(metrics[name].total for metrics in summed),
            squares=math.fsum(metrics[name].squares or 0.0 for metrics in summed),
        )
        for name in summed[0]
        # A site whose rows cannot support a measure sends none of it.
        if all(name in metrics for metrics in summed)
    }


def _bins(summed: Sequence[BinSums]) -> tuple[Bin, ...]:
    """The diagram of all sites that sent one, without its empty bins."""
    diagram = []
    for index in range(DIAGRAM_BINS if summed else 0):
        count = sum(bins.rows[index] for bins in summed)
        if not count:
            continue
        confidence = min(1.0, math.fsum(bins.confidence[index] for bins in summed) / count)
        low, high = scipy.stats.binom.ppf(TAILS, count, confidence)
        diagram.append(
            Bin(
                count=count,
                confidence=confidence,
                accuracy=sum(bins.hits[index] for bins in summed) / count,
                null_low=float(low) / count,
                null_high=float(high) / count,
            )
        )
    return tuple(diagram)


def _has_small_cell(plan: Plan, num_rows: int, pooled: Mapping[str, Sums]) -> bool:
    """Whether a share tells of so few rows, right or wrong, that it could point to people."""
    shares = [sums.total for name, sums in pooled.items() if MEASURES[name].is_share]
    cells = [cell for total in shares for cell in (total, num_rows - total)]
    return any(0 < cell < plan.rules.min_cell for cell in cells)
