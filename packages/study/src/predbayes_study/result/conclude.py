"""From accepted uploads to a model and what is known about it: one pure function of the set.

    read      each upload in the order of digests, folded and dropped; its predictions on the
              labelled and scored rows are kept
    compare   sites with each other on all rows (`predbayes_study.result.comparison`)
    screen    each site against the labelled rows (`predbayes_study.result.screening`)
    pool      the plan's pool, tuned on the labelled rows, with the coordinator's own model in it
    distil    one network that predicts what the pool predicts
    score     on rows that had no part in it

Scores are of the `evaluate` rows where the plan has some. Otherwise the labelled rows are dealt
into parts, and everything after `compare` is done once more for each part without its labels and
inputs, so that each row is scored by a pool and a student that never saw it. That includes
screening: sites that are left out because the labels go against them flatter a score by those.

Every generator derives from the plan's seed, so that the same uploads give the same bits.
"""

from __future__ import annotations

import logging
import platform
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

import predbayes
from predbayes.errors import (
    DivergedError,
    PoolError,
    PredbayesError,
    StudyError,
    TrainingError,
    UploadError,
)
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.distill import DISTILLATION, without_unseen_inputs
from predbayes.learning.local import NetworkPredictor
from predbayes.learning.named import AUTO
from predbayes.learning.training import resolve_device
from predbayes.methods.distilled import DistilledState, taught_by
from predbayes.methods.pooled import contribution
from predbayes.pools.pool import PoolState
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.folds import folds, in_row_order
from predbayes.predictive.measures import mean_estimate
from predbayes.predictive.metrics import nll, nll_rows
from predbayes.predictive.pooling import Contribution, PredictiveSum
from predbayes.predictive.selection import GATED, MIN_LABELS, TERMS, distrusted_gates, why_untunable
from predbayes.progress import tell_step
from predbayes.seeding import generator
from predbayes.summand import fold
from predbayes_study.kit.kit import Kit, Labels
from predbayes_study.plan.models import (
    choose_learner,
    make_learner,
    standard_prior,
    student_network,
)
from predbayes_study.plan.schema import Plan
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.comparison import ComparedRows, SiteComparison
from predbayes_study.result.groups import group_scores
from predbayes_study.result.importance import importances
from predbayes_study.result.lifting import contributed, lifting, pool_of
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import (
    CandidateResult,
    PoolResult,
    Result,
    Scores,
    SiteResult,
    StudentResult,
)
from predbayes_study.result.scoring import (
    row_values,
    score,
    verdict,
)
from predbayes_study.result.screening import screen_sites
from predbayes_study.result.weighing import UNLIMITED, RowCaps, Screened
from predbayes_study.tasks import task_of

_log = logging.getLogger(__name__)

MOST_SCORED_WHOLE = 200
"""Sites of which each has measures of all rows at once, as the AUROC; of more means over rows."""

MOST_EVEN = 100
"""Sites up to which the curve of beta has even steps."""

_NUM_PARTS = 5
_NUM_CURVE = 21

Read = Callable[[AcceptedUpload], Upload]
"""How an accepted upload is read; the caller knows where the files are."""

SumBy = Callable[[Tensor, Predictive | None], PredictiveSum[Any]]
"""The sum of the sites that stay if they are screened by these labelled rows, and an own model."""


@dataclass(frozen=True, slots=True)
class ResultMeta:
    """What a result says about itself beside what it found."""

    number: int
    finished: str
    ledger_digest: str
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The model, and the result that tells about it."""

    model: CalibratedModel
    result: Result


@dataclass(frozen=True, slots=True)
class _Site:
    """What is kept of an upload once it is folded."""

    accepted: AcceptedUpload
    info: UploadInfo
    labelled: Contribution
    scored: Predictive
    compared: Contribution  # on the rows of `Run.compared_rows`
    covered: float | None  # share of its rows that lie where reference rows do, by its gate

    def __post_init__(self) -> None:
        """Keep nothing but these rows: a slice would keep all that its site sent in memory."""
        for name in ("labelled", "scored", "compared"):
            object.__setattr__(self, name, compact(getattr(self, name)))


def conclude(
    kit: Kit,
    labels: Labels,
    uploads: Sequence[AcceptedUpload],
    read: Read,
    meta: ResultMeta,
    *,
    leave_out: frozenset[str] = frozenset(),
    device: str = "cpu",
) -> Conclusion:
    """Screen, pool, distil and score the uploads that count, in the order of digests.

    Sites that are left out by hand are shown all the same. Networks are run and trained on the
    device.
    """
    reference = labels.reference
    limits = RowCaps.of(kit.plan, [u.num_rows for u in uploads if u.site not in leave_out])
    run = Run(kit.plan, reference, labels, str(resolve_device(device)), limits)
    rows = run.compared_rows(len(uploads))
    tell_step(f"read the uploads, {len(uploads):,} in all")
    sites, total = run.read(uploads, read, leave_out, rows.index)
    judged = [site for site in sites if site.accepted.site not in leave_out]
    with naming(_most_extreme(judged), "is the most extreme of those that cannot be pooled"):
        own = run.own_model()
        tell_step("compare sites with each other")
        compared = _compared(run, rows, judged, total)
        sums = _Sums(run, uploads, read, leave_out, judged, compared, total)
        labelled = torch.arange(len(reference.targets))
        tell_step("screen sites")
        found = sums.screened(labelled, own)
        total = sums.of(found)
        state = run.finish(total, reference, own)

        def sum_by(rows: Tensor, own: Predictive | None) -> PredictiveSum[Any]:
            screened = sums.screened(rows, own)
            return total if screened.same(found) else sums.of(screened)

        held_out = run.held_out(sum_by, total, state)
        report = Report(
            run, _site_results(run, sites, found), found.cautions(), total, own, state, held_out
        )
        return report.conclusion(kit, meta)


def _compared(
    run: Run, rows: ComparedRows, judged: Sequence[_Site], total: PredictiveSum[Any]
) -> SiteComparison:
    """Sites with each other; where all are in sums nobody is.

    Without gates where the pool does without them: who switches them off does not escape.
    """
    if not judged:
        return SiteComparison({}, ())
    gates = {s.accepted.site: s.compared.gate for s in judged if s.compared.gate is not None}
    if distrusted_gates(total):
        gates = {}
    predicted = {site.accepted.site: site.compared.predictive for site in judged}
    return rows.compare(predicted, gates=gates, rng=run.rng("comparison"))


@torch.inference_mode()  # of many small operations the bookkeeping for gradients is a good part
def rehearse(plan: Plan, upload: Upload, predictive: Predictive) -> None:
    """Do with one upload alone all that `conclude` will do with it; refuse it if that fails.

    Rows have nothing to do with each other, so those that have a least or greatest coordinate stand
    for all. They are scored by the targets that are worst for them: no label is needed.
    """
    rows = _extreme_rows(predictive, upload.gate)
    sent = contribution(upload, predictive).at(rows)
    sent = replace(sent, predictive=sent.predictive.bounded(LOG_PROB_FLOOR))
    terms = TERMS[type(sent.predictive)]
    prior = standard_prior(plan)
    summand = sent.summand(prior=prior, terms=terms, floor=plan.pool.floor)
    lifted = summand.with_floats(summand.floats(), 1, prior)
    pools = [lifted.mixture(), lifted.product()]
    if GATED in lifted.components:
        pools.append(lifted.pool({GATED: 1.0}))
    if not _all_finite([pool.moments() for pool in pools]):
        raise UploadError("what it predicts cannot be pooled: it is not finite")
    scores = row_values(plan, sent.predictive, task_of(plan).worst(sent.predictive))
    if not _all_finite(scores.values()):
        raise UploadError("what it predicts cannot be scored: it is not finite")


def _extreme_rows(predictive: Predictive, gate: Tensor | None) -> Tensor:
    """Rows that have the least or the greatest of some coordinate."""
    gates = [] if gate is None else [gate.unsqueeze(1)]
    columns = torch.cat([predictive.natural(), predictive.moments(), *gates], -1)
    values = columns.T.contiguous().numpy()  # whose search along memory is much the quicker
    return torch.from_numpy(np.concatenate([values.argmin(1), values.argmax(1)]))


def _all_finite(values: Iterable[Tensor]) -> bool:
    return bool(torch.cat([value.flatten().double() for value in values]).isfinite().all())


def compact(kept: Any) -> Any:
    """Return a predictive or a contribution whose tensors have memory of their own."""
    if isinstance(kept, Tensor):
        whole = kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()
        return kept if whole else kept.clone(memory_format=torch.contiguous_format)
    if not is_dataclass(kept) or isinstance(kept, type):
        return kept
    return replace(kept, **{f.name: compact(getattr(kept, f.name)) for f in fields(kept)})


@contextmanager
def naming(site: str, what: str = "cannot be used") -> Iterator[None]:
    """Name the site whose upload is at fault, and the way out."""
    try:
        yield
    except (PoolError, UploadError, DivergedError, ValidationError) as error:
        why = str(error) if isinstance(error, PredbayesError) else "a figure is not finite"
        raise StudyError(
            f"the upload of {site} {what} ({why}); take it out with `predbayes study withdraw "
            f"{shlex.quote(site)}`, then finish again"
        ) from error


def _most_extreme(sites: Sequence[_Site]) -> str:
    """The site with the largest coordinate on the scored rows."""
    largest = {
        site.accepted.site: float(site.scored.natural().abs().max()) if len(site.scored) else 0.0
        for site in sites
    }
    return max(largest, key=largest.__getitem__, default="")


@dataclass(frozen=True)  # without slots, where what is made once is kept
class Run:
    """The steps that need plan, reference rows and labels."""

    plan: Plan
    reference: ReferenceRows
    labels: Labels
    device: str = "cpu"
    limits: RowCaps = UNLIMITED

    @property
    def scored_rows(self) -> slice:
        """Reference rows that are scored."""
        reference = self.reference
        return reference.evaluate if reference.num_evaluate else reference.labelled

    @property
    def scored_targets(self) -> Tensor:
        """Their labels."""
        reference = self.reference
        return self.labels.evaluate_targets if reference.num_evaluate else reference.targets

    def rng(self, *path: str | int) -> torch.Generator:
        """Return a generator of one use."""
        return generator(self.plan.seed, "finish", *path)

    def compared_rows(self, num_sites: int) -> ComparedRows:
        """The rows on which sites are compared with each other."""
        num_elements = num_sites * task_of(self.plan).numbers_per_row(self.plan)
        return ComparedRows.of(self.reference, num_elements, rng=self.rng("compared rows"))

    def read(
        self,
        uploads: Sequence[AcceptedUpload],
        read: Read,
        leave_out: frozenset[str],
        compared: Tensor,
    ) -> tuple[list[_Site], PredictiveSum[Any]]:
        """Every site, and the sum of those that are not left out, labelled rows first."""
        sites: list[_Site] = []
        order = self.labels.order

        def summands() -> Iterator[PredictiveSum[Any]]:
            for accepted in uploads:
                with naming(accepted.site):
                    upload = read(accepted)
                    sent = self._contribution(upload)
                    lifted = None if accepted.site in leave_out else self._lifting(sent)
                    labelled = sent.at(order[self.reference.labelled])
                    others = sent.at(order[compared])
                scored = sent.predictive[order[self.scored_rows]]
                covered = None if sent.gate is None else float(sent.gate.double().exp().mean())
                sites.append(_Site(accepted, upload.info, labelled, scored, others, covered))
                if lifted is not None:
                    yield lifted

        return sites, fold(summands())[order]

    def changed(
        self,
        total: PredictiveSum[Any],
        uploads: Sequence[AcceptedUpload],
        read: Read,
        found: Screened,
    ) -> PredictiveSum[Any]:
        """The sum after some of its sites are left out, or count for fewer rows.

        Sums are exact, so these sites are read again and no other.
        """
        order, stay = self.labels.order, [u for u in uploads if u.site not in found.dropped]

        def bounded(accepted: AcceptedUpload) -> PredictiveSum[Any]:
            sent = self._contribution(read(accepted))
            return self._lifting(sent.limited(found.most(accepted.site)))

        if stay:
            total = total.combined(fold(map(bounded, stay))[order], sign=1)
        gone = fold(self._lifting(self._contribution(read(accepted))) for accepted in uploads)
        return total.combined(gone[order], sign=-1)

    def _contribution(self, upload: Upload) -> Contribution:
        """What a site predicts on the reference rows, in the kit's order: the sum is reordered."""
        return contributed(upload, upload.predictive(), self.limits.most)

    @cached_property
    def _lifting(self) -> Callable[[Contribution], PredictiveSum[Any]]:
        return lifting(self.plan)

    def own_model(self) -> Predictive | None:
        """The coordinator's own model on all reference rows, honest on the labelled ones."""
        reference, name = self.reference, self.plan.pool.own
        if name == "none" or why_untunable(reference.targets):
            return None
        tell_step("fit the coordinator's own model of the labelled rows")
        try:
            learner = make_learner(self.plan, self.own_learner, self.device)
            return cross_fitted(
                learner, reference.inputs, reference.targets, rng=self.rng("own model")
            )
        except TrainingError as error:
            _log.warning("the pool is without a model of the labelled rows: %s", error)
            return None

    @cached_property
    def own_learner(self) -> str:
        """The name of the coordinator's own model; `auto` is what serves the labelled rows best.

        All of them choose one of three once: that they are then predicted by it as if they had not
        chosen flatters it by less than they can tell.
        """
        reference, name = self.reference, self.plan.pool.own
        if name != AUTO:
            return name
        rows = reference.inputs[reference.labelled], reference.targets
        return choose_learner(
            self.plan, rows, device=self.device, rng=self.rng("own model", "choice")
        ).name

    def finish(
        self, total: PredictiveSum[Any], reference: ReferenceRows, own: Predictive | None
    ) -> DistilledState[PoolState]:
        """Tune, pool and distil."""
        tell_step("tune the pool and distil it into the common model")
        pool = pool_of(self.plan, own)
        rng = self.rng("pool")
        state = taught_by(
            pool.finish(pool.init(reference), total, reference, rng=rng),
            reference,
            student_network(self.plan),
            settings=DISTILLATION,
            device=self.device,
            rng=rng,
        )
        if self.plan.model.module:
            return state
        seen = reference.inputs[reference.distillation]
        return replace(state, distilled=without_unseen_inputs(state.student, seen))

    def told(self, kit: Kit, meta: ResultMeta, model: NetworkPredictor) -> dict[str, Any]:
        """What a result says of the study, and of the columns that its model looks at."""
        inputs, rng = self.reference.inputs, self.rng("importances")
        return {
            "number": meta.number,
            "finished": meta.finished,
            "study": self.plan.name,
            "plan_digest": kit.digest,
            "ledger_digest": meta.ledger_digest,
            "withdrawn": meta.withdrawn,
            "importances": importances(self.plan, model, inputs, rng=rng),
            "versions": versions(),
        }

    def judged(self, predicted: Predictive, cautions: tuple[str, ...]) -> dict[str, Any]:
        """What a result says of predictions of the scored rows."""
        plan, targets, rows = self.plan, self.scored_targets, self.scored_rows
        task, shown = task_of(plan), None
        if len(targets):
            shown = task.calibration(plan, predicted, targets, rng=self.rng("reliability"))
        groups, group_words = group_scores(plan, self.reference.inputs[rows], predicted, targets)
        can_judge, words = verdict(plan, len(targets), shown, cautions)
        return {
            "scored_on": self._scored_on,
            "num_scored": len(targets),
            "can_judge": can_judge,
            "cautions": cautions,
            "verdict": words,
            "class_shares": task.class_shares(plan, targets),
            "risks": task.risks(plan, predicted, targets, rng=self.rng("risks")),
            "groups": groups,
            "group_words": group_words,
            task.shown_as: shown,
        }

    @property
    def _scored_on(self) -> str:
        if not len(self.scored_targets):
            return "nothing"
        return "evaluate" if self.reference.num_evaluate else "cross-fitted"

    def paid(self, own: Predictive | None, predicted: Predictive) -> Estimate | None:
        """What sites gained over the coordinator's labels alone, in nats per row."""
        targets = self.scored_targets
        if own is None or not len(targets):
            return None
        alone = nll_rows(own[self.scored_rows], targets)
        return mean_estimate(alone - nll_rows(predicted, targets))

    def held_out(
        self, sum_by: SumBy, total: PredictiveSum[Any], state: DistilledState[PoolState]
    ) -> HeldOut:
        """Pool, student and mixture on the scored rows, made without them."""
        reference = self.reference
        if not reference.num_evaluate and len(reference.targets):
            tell_step("pool and distil again without the rows that are scored")
            return self._without_their_labels(sum_by)
        rows = self.scored_rows
        return HeldOut(
            state.teacher.predictive[rows],
            state.student.predict(reference.inputs[rows]),
            total.mixture()[rows],
        )

    def _without_their_labels(self, sum_by: SumBy) -> HeldOut:
        """Screen, tune, pool and distil without each part of the labelled rows; predict it."""
        reference = self.reference
        num_labels, num_rows = len(reference.targets), len(reference.inputs)
        parts = folds(num_labels, _NUM_PARTS, rng=self.rng("parts"))
        others = torch.arange(num_labels, num_rows)
        found: list[HeldOut] = []
        for out, rest in parts:
            order = torch.cat([rest, others, out])
            part = ReferenceRows(reference.inputs[order], reference.targets[rest], len(out))
            inner = Run(self.plan, part, self.labels, self.device)
            own = inner.own_model()
            total = sum_by(rest, own)[order]
            found.append(inner.held_out(sum_by, total, inner.finish(total, part, own)))
        return HeldOut(
            *(
                in_row_order(parts, [getattr(one, name) for one in found])
                for name in ("pooled", "student", "mixture")
            )
        )


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictives of the scored rows by what was made without their labels."""

    pooled: Predictive
    student: Predictive
    mixture: Predictive


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sum of the sites that stay, whichever labelled rows they are screened by."""

    run: Run
    uploads: Sequence[AcceptedUpload]
    read: Read
    leave_out: frozenset[str]
    judged: Sequence[_Site]
    compared: SiteComparison
    total: PredictiveSum[Any]  # of all that are not left out by hand

    def screened(self, rows: Tensor, own: Predictive | None) -> Screened:
        """Judge the sites by some of the labelled rows; the first of the own model are these."""
        run = self.run
        if not self.judged:
            return Screened.of({}, self.compared, self.leave_out, run.limits)
        found = screen_sites(
            # Without a label there are no rows but these to find copies and constants on.
            [s.labelled.at(rows) if len(rows) else s.compared for s in self.judged],
            run.reference.targets[rows],
            plan=run.plan,
            own=None if own is None else own[: len(rows)],
            suspects=self.compared.findings,
            total=self.total[rows] if len(rows) else None,
        )
        return Screened.of(found, self.compared, self.leave_out, run.limits)

    def of(self, found: Screened) -> PredictiveSum[Any]:
        """The sum without those left out, each site for as many rows as it counts for."""
        if changed := found.changed(self.uploads, self.leave_out):
            return self.run.changed(self.total, changed, self.read, found)
        return self.total


def _site_results(run: Run, sites: Sequence[_Site], screened: Screened) -> list[SiteResult]:
    whole = len(sites) <= MOST_SCORED_WHOLE
    return [_site_result(run, site, screened, whole=whole) for site in sites]


def _site_result(run: Run, site: _Site, screened: Screened, *, whole: bool) -> SiteResult:
    accepted, info = site.accepted, site.info
    found = screened.sites.get(accepted.site)
    with naming(accepted.site):
        alone = score(run.plan, site.scored, run.scored_targets, whole=whole)
    return SiteResult(
        site=accepted.site,
        digest=accepted.digest,
        kind=accepted.kind,
        num_rows=info.num_rows,
        agreed_rows=accepted.agreed_rows,
        counted_rows=min(float(info.num_rows), screened.most(accepted.site)),
        covered=site.covered,
        num_bytes=accepted.num_bytes,
        class_rows=info.class_rows,
        alone=alone,
        influence=None if found is None else found.influence,
        findings=screened.findings(accepted.site),
        left_out=accepted.site in screened.dropped,
    )


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run in words and figures."""

    run: Run
    sites: Sequence[SiteResult]
    cautions: tuple[str, ...]
    total: PredictiveSum[Any]
    own: Predictive | None
    state: DistilledState[PoolState]
    held_out: HeldOut

    def conclusion(self, kit: Kit, meta: ResultMeta) -> Conclusion:
        """Return the model with its result."""
        tell_step("score the model")
        run, plan = self.run, self.run.plan
        predicted = self.held_out.student
        result = Result(
            **run.told(kit, meta, self.state.student),
            **run.judged(predicted, self._cautions()),
            sites=tuple(sorted(self.sites, key=lambda site: site.site)),
            pool=self._pool(),
            pooled=self._score(self.held_out.pooled),
            mixture=self._score(self.held_out.mixture),
            server_only=None if self.own is None else self._score(self.own[run.scored_rows]),
            student=self._student(predicted),
            paid=run.paid(self.own, predicted),
            bytes_in=sum(site.num_bytes for site in self.sites),
            bytes_out=kit.num_bytes * len(self.sites),
        )
        return Conclusion(CalibratedModel(plan, self.state.student, meta.number), result)

    def _cautions(self) -> tuple[str, ...]:
        return (
            *self._distrusted(),
            *self._of_labels(),
            *self.cautions,
        )

    def _of_labels(self) -> Iterator[str]:
        targets = self.run.reference.targets
        if len(targets) < MIN_LABELS:
            return  # which the comparison of sites says
        if why := why_untunable(targets):
            yield f"Could not check any site against labels: {why}."
        elif self.own is None and self.run.plan.pool.own != "none":
            yield (
                "There is no model of the coordinator's labelled rows, to pool or to compare with: "
                "it could not be fitted to them."
            )

    def _distrusted(self) -> Iterator[str]:
        choice = self.state.teacher.choice
        if choice is not None and choice.distrusted:
            yield (
                f"The pool is the plain {choice.spec.name}, in which each site counts alike at all "
                f"reference rows: {choice.distrusted}."
            )

    def _score(self, predictive: Predictive) -> Scores | None:
        return score(self.run.plan, predictive, self.run.scored_targets)

    def _student(self, predicted: Predictive) -> StudentResult:
        student: NetworkPredictor = self.state.student
        arrays = student.samples.arrays().values()
        return StudentResult(
            scores=self._score(predicted),
            gap=self.state.gap,
            temperature=self.state.temperature,
            num_parameters=sum(array[0].numel() for array in arrays),
        )

    def _pool(self) -> PoolResult:
        teacher, plan = self.state.teacher, self.run.plan
        choice, tuned = teacher.choice, teacher.tuned
        if choice is not None:
            name, reason = choice.name, choice.reason
            weights: Any = choice.tuned.weights
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
            weights=dict(weights),
            candidates=tuple(
                CandidateResult(name=r.name, num_weights=r.num_weights, nll=r.nll, share=r.share)
                for r in candidates
            ),
            curve=self._curve(),
            num_labels=len(self.run.reference.targets),
            own="" if self.own is None or plan.pool.own != AUTO else self.run.own_learner,
        )

    def _curve(self) -> tuple[tuple[float, float], ...]:
        """NLL on the labelled rows from the mixture to the product, where it is a distribution."""
        reference = self.run.reference
        if not len(reference.targets):
            return ()
        labelled = self.total[reference.labelled]
        points = []
        for beta in _betas(self.total.num_clients):
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


def versions() -> dict[str, str]:
    """Return what the bits of a result depend on beside plan and uploads."""
    return {
        "predbayes": predbayes.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
