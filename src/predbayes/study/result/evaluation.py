"""How the model does at the sites: sums over their held-out rows, which add up over sites.

Every metric of a study is a mean over rows, or the root of one. So a site that tries the model on
rows of its own need not send more than, for each metric, the sum of its values and of their
squares: the sums of several sites add up to those of all their rows, and carry intervals,

    mean = S1 / n,   mean +- t sqrt((S2 / n - mean^2) / (n - 1)),

and for shares Wilson's. A reliability diagram is sums by bins in the same way.

Of fewer rows than the plan's `min_cell` nothing is sent, and no diagram with a bin of fewer. Sums
travel with six digits: more would mean nothing, and might tell which rows they are sums of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import DataError, UploadError
from predbayes.exchange.header import BinSums, Evaluation, Sums, UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical, Predictive
from predbayes.predictive.metrics import reliability
from predbayes.study.plan.schema import Plan
from predbayes.study.result.schema import AtSites, Bin, Estimate, Scores, SiteScores
from predbayes.study.result.scoring import row_values

NUM_BINS = 10
FEWEST_TO_POOL = 3
"""Sites; in public a sum over fewer would tell what each of them has."""

_SHARES = frozenset({"accuracy", "coverage_95"})
_ROOTS = frozenset({"rmse"})
_LEVEL = 0.95
_DIGITS = 6
_SLACK = 1e-4  # of what rounding to so many digits may do
_MAX_NLL = 1e6  # per row
_MAX_MEAN = 1e30  # of anything in the target's unit


def metric_names(plan: Plan) -> frozenset[str]:
    """The metrics of a plan's task."""
    if plan.classification:
        return frozenset({"nll", "accuracy", "brier"})
    crps = {"crps"} if plan.target.transform == "none" else set()
    return frozenset({"nll", "rmse", "coverage_95", "width_95", *crps})


def fewest_rows(plan: Plan) -> int:
    """Of fewer rows nothing is sent; one row has no interval, whatever the plan says."""
    return max(plan.rules.min_cell, 2)


def sum_up(plan: Plan, predictive: Predictive, targets: Tensor, model: str) -> Evaluation:
    """The sums of a model's metrics over rows.

    Args:
        plan: Of the study.
        predictive: What the model predicts for the rows.
        targets: What is true of them.
        model: Digest of the model's weights.
    """
    values = row_values(plan, predictive, targets)
    metrics = {name: _sums(name, rows) for name, (rows, _) in sorted(values.items())}
    bins = None
    if isinstance(predictive, Categorical):
        bins = _bin_sums(predictive, targets, plan.rules.min_cell)
    return Evaluation(model=model, metrics=metrics, bins=bins)


def evaluation_upload(
    plan: Plan, site: str, predictive: Predictive, targets: Tensor, model: str
) -> Upload:
    """What a site may send about a model; of too few rows nothing."""
    least = fewest_rows(plan)
    if len(targets) < least:
        raise DataError(
            f"{len(targets)} held-out rows are fewer than {least}, so nothing of them is sent"
        )
    made = sum_up(plan, predictive, targets, model)
    upload = Upload.of_evaluation(made, num_rows=len(targets))
    return upload.from_site(site).for_plan(plan.digest())


def check_evaluation(plan: Plan, info: UploadInfo) -> None:
    """Refuse sums that no honest site can have found, or may have sent."""
    evaluation, num_rows = info.evaluation, info.num_rows
    assert evaluation is not None  # as its kind says
    if info.class_rows is not None:
        raise UploadError("an evaluation counts no classes")
    if num_rows < fewest_rows(plan):
        raise UploadError(f"it is of fewer rows than {fewest_rows(plan)}, the least there may be")
    if evaluation.metrics.keys() != metric_names(plan):
        raise UploadError(f"its metrics are not {', '.join(sorted(metric_names(plan)))}")
    for name, sums in evaluation.metrics.items():
        if not _possible(plan, name, sums, num_rows):
            raise UploadError(f"its sums of {name} cannot be those of {num_rows:,} rows")
    if evaluation.bins is not None:
        _check_bins(plan, evaluation.bins, evaluation.metrics, num_rows)


def scores_of(num_rows: int, metrics: Mapping[str, Sums]) -> Scores:
    """Metrics and intervals from sums over rows."""
    return Scores(
        num_rows=num_rows,
        metrics={name: _estimate(name, sums, num_rows) for name, sums in metrics.items()},
    )


def at_sites(plan: Plan, received: Sequence[UploadInfo]) -> AtSites | None:
    """What sites found with the model, each and together; None if none has sent anything."""
    infos = sorted((info for info in received if info.evaluation), key=lambda info: info.site)
    if not infos:
        return None
    num_rows = sum(info.num_rows for info in infos)
    pooled = _added([info.evaluation.metrics for info in infos if info.evaluation])
    found = [info.evaluation.bins for info in infos if info.evaluation]
    return AtSites(
        sites=tuple(
            SiteScores(site=info.site, scores=scores_of(info.num_rows, info.evaluation.metrics))
            for info in infos
            if info.evaluation
        ),
        pooled=scores_of(num_rows, pooled),
        bins=_bins([bins for bins in found if bins is not None]),
        public=len(infos) >= FEWEST_TO_POOL and not _has_small_cell(plan, num_rows, pooled),
    )


def _sums(name: str, rows: Tensor) -> Sums:
    total, squares = float(rows.sum()), float(rows.square().sum())
    if name in _SHARES:
        return Sums(total=total, squares=squares)
    return Sums(total=_rounded(total), squares=_rounded(squares))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _bin_sums(predictive: Categorical, targets: Tensor, min_cell: int) -> BinSums | None:
    found = reliability(predictive, targets, NUM_BINS)
    if any(0 < count < min_cell for count in found.count):
        return None
    count = torch.tensor(found.count, dtype=torch.float64)
    hits = (count * torch.tensor(found.accuracy, dtype=torch.float64)).round().long()
    confidence = (count * torch.tensor(found.confidence, dtype=torch.float64)).tolist()
    return BinSums(
        rows=tuple(found.count),
        hits=tuple(hits.tolist()),
        confidence=tuple(_rounded(value) for value in confidence),
    )


def _possible(plan: Plan, name: str, sums: Sums, num_rows: int) -> bool:
    total, squares = sums.total, sums.squares
    if name in _SHARES:
        return total == int(total) and 0 <= total <= num_rows and squares == total
    least = -_MAX_NLL if name == "nll" and not plan.classification else 0.0
    most = {"nll": _MAX_NLL, "brier": 2.0}.get(name, _MAX_MEAN)
    mean = total / num_rows
    if not least <= mean <= most * (1 + _SLACK):
        return False
    return squares * num_rows >= total * total * (1 - _SLACK)  # Cauchy and Schwarz


def _check_bins(plan: Plan, bins: BinSums, metrics: Mapping[str, Sums], num_rows: int) -> None:
    sizes = {len(bins.rows), len(bins.hits), len(bins.confidence)}
    if not plan.classification or sizes != {NUM_BINS}:
        raise UploadError("its reliability bins are not those of the plan")
    if any(0 < count < plan.rules.min_cell for count in bins.rows):
        raise UploadError(f"a reliability bin has fewer than {plan.rules.min_cell} rows")
    inside = all(
        hits <= rows and confidence <= rows * (1 + _SLACK)
        for rows, hits, confidence in zip(bins.rows, bins.hits, bins.confidence, strict=True)
    )
    if not inside or (sum(bins.rows), sum(bins.hits)) != (num_rows, metrics["accuracy"].total):
        raise UploadError("its reliability bins do not add up")


def _estimate(name: str, sums: Sums, num_rows: int) -> Estimate:
    mean = sums.total / num_rows
    if name in _SHARES:
        found = scipy.stats.binomtest(int(sums.total), num_rows).proportion_ci(
            _LEVEL, method="wilson"
        )
        return Estimate(value=mean, low=float(found.low), high=float(found.high))
    var = max(0.0, sums.squares / num_rows - mean * mean)
    reach = float(scipy.stats.t.ppf((1 + _LEVEL) / 2, num_rows - 1)) * math.sqrt(
        var / (num_rows - 1)
    )
    low, high = mean - reach, mean + reach
    if name in _ROOTS:
        return Estimate(value=math.sqrt(mean), low=math.sqrt(max(0.0, low)), high=math.sqrt(high))
    return Estimate(value=mean, low=low, high=high)


def _added(summed: Sequence[Mapping[str, Sums]]) -> dict[str, Sums]:
    """The sums over all sites, whatever their order."""
    return {
        name: Sums(
            total=math.fsum(metrics[name].total for metrics in summed),
            squares=math.fsum(metrics[name].squares for metrics in summed),
        )
        for name in summed[0]
    }


def _bins(summed: Sequence[BinSums]) -> tuple[Bin, ...]:
    """The diagram of all sites that sent one, without its empty bins."""
    found = []
    for index in range(NUM_BINS if summed else 0):
        count = sum(bins.rows[index] for bins in summed)
        if not count:
            continue
        confidence = min(1.0, math.fsum(bins.confidence[index] for bins in summed) / count)
        low, high = scipy.stats.binom.ppf([(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], count, confidence)
        found.append(
            Bin(
                count=count,
                confidence=confidence,
                accuracy=sum(bins.hits[index] for bins in summed) / count,
                null_low=float(low) / count,
                null_high=float(high) / count,
            )
        )
    return tuple(found)


def _has_small_cell(plan: Plan, num_rows: int, pooled: Mapping[str, Sums]) -> bool:
    """Whether a share tells of so few rows, right or wrong, that it could point to people."""
    shares = [sums.total for name, sums in pooled.items() if name in _SHARES]
    cells = [cell for total in shares for cell in (total, num_rows - total)]
    return any(0 < cell < plan.rules.min_cell for cell in cells)
