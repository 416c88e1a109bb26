"""From predictions of the sites to a model and what is known about it: a function of their set.

    gather    each upload in the order of digests, folded and dropped; its predictions on the
              labelled and scored rows are kept
    compare   sites with each other on all rows (`predbayes_study.result.comparison`)
    screen    each site against the labelled rows (`predbayes_study.result.screening`)
    pool      the plan's pool, tuned on the labelled rows, with the coordinator's own model in it
    distil    one network that predicts what the pool predicts
    score     on rows that had no part in it

If the plan has no `evaluate` rows, the labelled rows are dealt into parts, and everything after
`compare` is done once more for each part without its labels and inputs, so that each row is scored
by a pool and a student that never saw it. That includes screening: sites that are left out because
the labels go against them flatter a score by those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.distill import DISTILLATION, without_unseen_inputs
from predbayes.methods.distilled import DistilledState, taught_by
from predbayes.methods.pooled import contribution
from predbayes.pools import terms
from predbayes.pools.auto import AutoPool
from predbayes.pools.pool import Pool, PoolState
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.folds import folds, in_row_order
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import Contribution, PredictiveSum
from predbayes.predictive.selection import MIN_LABELS, distrusted_gates, why_untunable
from predbayes.progress import tell_step
from predbayes.summand import fold
from predbayes_study.plan.models import standard_prior, student_network
from predbayes_study.plan.schema import Plan
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.analysis import Analysis, Conclusion, Evidence, naming
from predbayes_study.result.comparison import ComparedRows, SiteComparison
from predbayes_study.result.schema import (
    CandidateResult,
    PoolResult,
    SiteResult,
    StudentResult,
)
from predbayes_study.result.scoring import score
from predbayes_study.result.screening import screen_sites
from predbayes_study.result.weighing import Caps, Screened, some_of
from predbayes_study.tasks import task_of

MOST_SCORED_WHOLE = 200
"""Sites of which each has measures of all rows at once, as the AUROC; of more means over rows."""

MOST_EVEN = 100
"""Sites up to which the curve of beta has even steps."""

_NUM_PARTS = 5
_NUM_CURVE = 21

SumBy = Callable[[Tensor, Predictive | None], PredictiveSum[Any]]
"""The sum of the sites that stay if they are screened by these labelled rows, and an own model."""


def conclude(evidence: Evidence) -> Conclusion:
    """Screen, pool, distil and score the uploads that count."""
    analysis = Analysis.of(evidence)
    rows = _compared_rows(analysis, len(evidence.uploads))
    tell_step(f"read the uploads, {len(evidence.uploads):,} in all")
    gathered = gather(evidence, analysis, rows.index)
    with naming(
        _most_extreme(gathered.judged), "is the most extreme of those that cannot be pooled"
    ):
        own = analysis.own_model()
        tell_step("compare sites with each other")
        compared = _compared(analysis, rows, gathered)
        tell_step("screen sites")
        found = gathered.screened(compared, torch.arange(len(analysis.reference.targets)), own)
        total = gathered.without(found)

        def sum_by(rows: Tensor, own: Predictive | None) -> PredictiveSum[Any]:
            screened = gathered.screened(compared, rows, own)
            return total if screened.same(found) else gathered.without(screened)

        sites = gathered.site_results(found)
        return conclude_sum(evidence, analysis, total, own, sum_by, sites, found.cautions())


def conclude_sum(
    evidence: Evidence,
    analysis: Analysis,
    total: PredictiveSum[Any],
    own: Predictive | None,
    sum_by: SumBy,
    sites: Sequence[SiteResult],
    cautions: tuple[str, ...],
) -> Conclusion:
    """Pool the sum of the sites, distil the pool, and score both.

    Args:
        evidence: What the result is made of.
        analysis: Its plan, reference rows and labels.
        total: Sum of the sites that count, on all reference rows, labelled rows first.
        own: The coordinator's own model on all reference rows.
        sum_by: Sum of the sites that would count if some labelled rows were all there are.
        sites: What is known of each site.
        cautions: What a reader should know of the sites.
    """
    state = _distilled(analysis, total, own)
    held_out = _held_out(analysis, total, state, sum_by)
    student = state.student
    arrays = student.samples.arrays().values()
    return analysis.conclusion(
        evidence,
        model=student,
        predicted=held_out.student,
        own=own,
        student=StudentResult(
            scores=analysis.score(held_out.student),
            gap=state.gap,
            temperature=state.temperature,
            num_parameters=sum(array[0].numel() for array in arrays),
        ),
        pool=_pool_result(analysis, total, own, state.teacher),
        sites=sites,
        cautions=(*_cautions(analysis, own, state.teacher), *cautions),
        pooled=analysis.score(held_out.pooled),
        mixture=analysis.score(held_out.mixture),
    )


# Lifting: no label has a part in it, and no row of the reference rows has to do with another


def pool_of(plan: Plan, own: Predictive | None) -> Pool[PredictiveSum[Any]]:
    """The pool that a plan names; the coordinator's model where it has a part."""
    prior: Predictive | Literal["flat"] = standard_prior(plan) or "flat"
    floor = plan.pool.floor
    match plan.pool.method:
        case "auto":
            return AutoPool(own, prior=prior, floor=floor)
        case "beta":
            return terms.beta(prior=prior, floor=floor)
        case "mixture":
            return terms.mixture(prior=prior, floor=floor)
        case "product":
            return terms.product(prior=prior, floor=floor)


def lifting(plan: Plan) -> Callable[[Contribution], PredictiveSum[Any]]:
    """How the plan's pool, without the coordinator's model, lifts a contribution."""
    return partial(pool_of(plan, None).lift, PoolState(prior=standard_prior(plan)))


def contributed(upload: Upload) -> Contribution:
    """What a site predicts, within bounds."""
    return contribution(upload, upload.predictive().bounded(LOG_PROB_FLOOR))


# Reading


@dataclass(frozen=True, slots=True)
class _Site:
    """What is kept of an upload once it is folded."""

    accepted: AcceptedUpload
    info: UploadInfo
    labelled: Contribution
    scored: Predictive
    compared: Contribution  # on the rows of `_compared_rows`
    covered: float | None  # share of its rows that lie where reference rows do, by its gate

    def __post_init__(self) -> None:
        """Keep nothing but these rows: a slice would keep all that its site sent in memory."""
        for name in ("labelled", "scored", "compared"):
            object.__setattr__(self, name, compact(getattr(self, name)))


def compact(kept: Any) -> Any:
    """Return a predictive or a contribution whose tensors have memory of their own."""
    if isinstance(kept, Tensor):
        whole = kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()
        return kept if whole else kept.clone(memory_format=torch.contiguous_format)
    if not is_dataclass(kept) or isinstance(kept, type):
        return kept
    return replace(kept, **{f.name: compact(getattr(kept, f.name)) for f in fields(kept)})


@dataclass(frozen=True, slots=True)
class Gathered:
    """The uploads of a study as they were read, and the sum of those that count."""

    evidence: Evidence
    analysis: Analysis
    limits: Caps
    sites: Sequence[_Site]
    total: PredictiveSum[Any]  # of all that are not left out by hand, labelled rows first

    @property
    def judged(self) -> list[_Site]:
        """The sites that are not left out by hand."""
        return [site for site in self.sites if site.accepted.site not in self.evidence.leave_out]

    def screened(self, compared: SiteComparison, rows: Tensor, own: Predictive | None) -> Screened:
        """Judge the sites by some of the labelled rows.

        Args:
            compared: What the sites are to each other.
            rows: Labelled rows to judge by.
            own: The coordinator's own model, whose first rows are these.
        """
        analysis, judged, leave_out = self.analysis, self.judged, self.evidence.leave_out
        if not judged:
            return Screened.of({}, compared, leave_out, self.limits)
        found = screen_sites(
            # Without a label there are no rows but these to find copies and constants on.
            [s.labelled.at(rows) if len(rows) else s.compared for s in judged],
            analysis.reference.targets[rows],
            plan=analysis.plan,
            own=None if own is None else own[: len(rows)],
            suspects=compared.findings,
            total=self.total[rows] if len(rows) else None,
        )
        return Screened.of(found, compared, leave_out, self.limits)

    def without(self, found: Screened) -> PredictiveSum[Any]:
        """Return the sum after some sites are left out, or count for fewer rows.

        Sums are exact, so these sites are read again and no other.
        """
        changed = found.changed(self.evidence.uploads, self.evidence.leave_out)
        if not changed:
            return self.total
        lift, order, total = lifting(self.analysis.plan), self.analysis.labels.order, self.total

        def sent(accepted: AcceptedUpload) -> Contribution:
            return contributed(self.evidence.read(accepted))

        if stay := [accepted for accepted in changed if accepted.site not in found.dropped]:
            fewer = fold(lift(found.applied(sent(accepted))) for accepted in stay)
            total = total.combined(fewer[order], sign=1)
        gone = fold(lift(self.limits.applied(sent(accepted))) for accepted in changed)
        return total.combined(gone[order], sign=-1)

    def site_results(self, screened: Screened) -> list[SiteResult]:
        """Return what is known of each site."""
        whole = len(self.sites) <= MOST_SCORED_WHOLE
        return [self._site_result(site, screened, whole=whole) for site in self.sites]

    def _site_result(self, site: _Site, screened: Screened, *, whole: bool) -> SiteResult:
        accepted, info, analysis = site.accepted, site.info, self.analysis
        found = screened.sites.get(accepted.site)
        with naming(accepted.site):
            alone = score(analysis.plan, site.scored, analysis.scored_targets, whole=whole)
        return SiteResult.of(
            accepted,
            min(float(info.num_rows), screened.most(accepted.site)),
            covered=site.covered,
            class_rows=info.class_rows,
            alone=alone,
            influence=None if found is None else found.influence,
            findings=screened.findings(accepted.site),
            left_out=accepted.site in screened.dropped,
        )


def gather(evidence: Evidence, analysis: Analysis, compared: Tensor) -> Gathered:
    """Read every upload, keep some rows of it, and add up those that are not left out by hand.

    Args:
        evidence: The uploads.
        analysis: The plan, reference rows and labels.
        compared: Rows on which sites are compared.
    """
    uploads, leave_out = evidence.uploads, evidence.leave_out
    limits = _limits(evidence, analysis.plan)
    order, lift = analysis.labels.order, lifting(analysis.plan)
    sites: list[_Site] = []

    def summands() -> Iterator[PredictiveSum[Any]]:
        for accepted in uploads:
            with naming(accepted.site):
                upload = evidence.read(accepted)
                # In the kit's order: the sum is reordered, and not each upload.
                sent = contributed(upload)
                counted = limits.applied(sent)
                lifted = None if accepted.site in leave_out else lift(counted)
                labelled = counted.at(order[analysis.reference.labelled])
                others = sent.at(order[compared])  # what it says, and not what it counts for
            scored = sent.predictive[order[analysis.scored_rows]]
            covered = None if sent.gate is None else float(sent.gate.double().exp().mean())
            sites.append(_Site(accepted, upload.info, labelled, scored, others, covered))
            if lifted is not None:
                yield lifted

    total = fold(summands())[order]
    return Gathered(evidence, analysis, limits, sites, total)


def _limits(evidence: Evidence, plan: Plan) -> Caps:
    """What sites count for at most, by what those say that are not left out by hand."""
    counted = [u for u in evidence.uploads if u.site not in evidence.leave_out]
    limits = Caps.of(plan, [accepted.num_rows for accepted in counted])
    if plan.gate is None and task_of(plan).is_bounded:
        return limits  # sites say nothing of a row that they count by

    def sent() -> Iterator[Contribution]:
        for accepted in some_of(counted):
            with naming(accepted.site):
                yield contributed(evidence.read(accepted))

    return limits.of_rows(plan.rules.max_weight, sent())


def _most_extreme(sites: Sequence[_Site]) -> str:
    """The site with the largest coordinate on the scored rows."""
    largest = {
        site.accepted.site: float(site.scored.natural().abs().max()) if len(site.scored) else 0.0
        for site in sites
    }
    return max(largest, key=largest.__getitem__, default="")


def _compared_rows(analysis: Analysis, num_sites: int) -> ComparedRows:
    """The rows on which sites are compared with each other."""
    plan = analysis.plan
    num_elements = num_sites * task_of(plan).numbers_per_row(plan)
    rng = analysis.rng("compared rows")
    return ComparedRows.of(analysis.reference, num_elements, rng=rng)


def _compared(analysis: Analysis, rows: ComparedRows, gathered: Gathered) -> SiteComparison:
    """Compare sites with each other.

    Without gates if the pool does without them: who switches them off does not escape.
    """
    judged = gathered.judged
    if not judged:
        return SiteComparison({}, ())
    gates = {s.accepted.site: s.compared.gate for s in judged if s.compared.gate is not None}
    if distrusted_gates(gathered.total):
        gates = {}
    predicted = {site.accepted.site: site.compared.predictive for site in judged}
    return rows.compare(predicted, gates=gates, rng=analysis.rng("comparison"))


# Pooling


def _distilled(
    analysis: Analysis, total: PredictiveSum[Any], own: Predictive | None
) -> DistilledState[PoolState]:
    """Tune, pool and distil."""
    tell_step("tune the pool and distil it into the common model")
    plan, reference = analysis.plan, analysis.reference
    pool, rng = pool_of(plan, own), analysis.rng("pool")
    state = taught_by(
        pool.finish(pool.init(reference), total, reference, rng=rng),
        reference,
        student_network(plan),
        settings=DISTILLATION,
        device=analysis.device,
        rng=rng,
    )
    if plan.model.module:
        return state
    seen = reference.inputs[reference.distillation]
    return replace(state, distilled=without_unseen_inputs(state.student, seen))


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """Predictions for the scored rows by what was made without their labels."""

    pooled: Predictive
    student: Predictive
    mixture: Predictive


def _held_out(
    analysis: Analysis,
    total: PredictiveSum[Any],
    state: DistilledState[PoolState],
    sum_by: SumBy,
) -> _HeldOut:
    """Predict the scored rows; labelled rows are predicted without themselves, part by part."""
    reference = analysis.reference
    if reference.num_evaluate or not len(reference.targets):
        rows = analysis.scored_rows
        return _HeldOut(
            state.teacher.predictive[rows],
            state.student.predict(reference.inputs[rows]),
            total.mixture()[rows],
        )
    tell_step("pool and distil again without the rows that are scored")
    num_labels, num_rows = len(reference.targets), len(reference.inputs)
    parts = folds(num_labels, _NUM_PARTS, rng=analysis.rng("parts"))
    others = torch.arange(num_labels, num_rows)
    found: list[_HeldOut] = []
    for out, rest in parts:
        order = torch.cat([rest, others, out])
        inner = analysis.on(
            ReferenceRows(reference.inputs[order], reference.targets[rest], len(out))
        )
        own = inner.own_model()
        part = sum_by(rest, own)[order]
        found.append(_held_out(inner, part, _distilled(inner, part, own), sum_by))
    return _HeldOut(
        in_row_order(parts, [one.pooled for one in found]),
        in_row_order(parts, [one.student for one in found]),
        in_row_order(parts, [one.mixture for one in found]),
    )


# What the result says of the pool


def _cautions(analysis: Analysis, own: Predictive | None, teacher: Any) -> Iterator[str]:
    """Say what is to be known of gates and labels."""
    choice, targets = teacher.choice, analysis.reference.targets
    if choice is not None and choice.distrusted:
        yield (
            f"The pool is the plain {choice.spec.name}, in which each site counts alike at all "
            f"reference rows: {choice.distrusted}."
        )
    if len(targets) < MIN_LABELS:
        return  # which the comparison of sites says
    if why := why_untunable(targets):
        yield f"Could not check any site against labels: {why}."
    elif own is None and analysis.plan.pool.own != "none":
        yield (
            "There is no model of the coordinator's labelled rows, to pool or to compare with: "
            "it could not be fitted to them."
        )


def _pool_result(
    analysis: Analysis, total: PredictiveSum[Any], own: Predictive | None, teacher: PoolState
) -> PoolResult:
    """Say which pool was taken, and why."""
    plan, choice, tuned = analysis.plan, teacher.choice, teacher.tuned
    if choice is not None:
        name, reason, weights = choice.name, choice.reason, dict(choice.tuned.weights)
    else:
        beta = teacher.beta
        name = plan.pool.method if tuned is None else f"beta = {beta:.2f}"
        reason = "as the plan says" if tuned is None else "tuned on the labelled rows"
        weights = {"mixture": 1 - beta, "product": beta}
    candidates = () if choice is None else choice.scores
    return PoolResult(
        method=plan.pool.method,
        name=name,
        reason=reason,
        weights=weights,
        candidates=tuple(
            CandidateResult(name=r.name, num_weights=r.num_weights, nll=r.nll, share=r.share)
            for r in candidates
        ),
        curve=_curve(analysis.reference, total),
        num_labels=len(analysis.reference.targets),
        own=analysis.chosen_own(own),
    )


def _curve(reference: ReferenceRows, total: PredictiveSum[Any]) -> tuple[tuple[float, float], ...]:
    """NLL on the labelled rows from the mixture to the product, where it is a distribution."""
    if not len(reference.targets):
        return ()
    labelled = total[reference.labelled]
    points = []
    for beta in _betas(total.num_clients):
        try:
            points.append((beta, nll(labelled.pool(beta), reference.targets)))
        except PoolError:
            break  # improper from here on
    return tuple(points)


def _betas(num_sites: int) -> list[float]:
    """From 0 to 1; of many sites the best is about 6 / n: steps are even in the logarithm."""
    if num_sites <= MOST_EVEN:
        return list(map(float, np.linspace(0, 1, _NUM_CURVE)))
    return [0.0, *np.geomspace(0.1 / num_sites, 1, 2 * _NUM_CURVE).tolist()]
