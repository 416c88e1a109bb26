"""A study of sums: one model of all sites' rows, from the total of their moments.

    read     each upload in the order of digests, added and dropped; the sums are exact, so that
             neither the order nor the number of sites changes a bit of the total
    fit      the head of the total (`predbayes.learning.moments`), which is the model: nothing is
             tuned and nothing is distilled
    judge    if there are labels: the head, that of each site's sums alone, and that of all sums but
             a site's, which tells what the site adds

No label has a part in the model, so all are there to score it. Without labels nothing is known of a
single site but that its sums are those of some rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from predbayes.errors import UploadError
from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkPredictor
from predbayes.learning.moments import Moments, MomentsHead
from predbayes.learning.named import AUTO
from predbayes.learning.training import resolve_device
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Predictive
from predbayes.predictive.measures import mean_estimate
from predbayes.predictive.metrics import nll_rows
from predbayes_study.extras.moments.network import as_predictor
from predbayes_study.kit.kit import Kit, Labels
from predbayes_study.plan.models import summed_classes, summed_features
from predbayes_study.plan.schema import Plan
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.conclude import Conclusion, Read, ResultMeta, Run, naming
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import (
    Finding,
    PoolResult,
    Result,
    Scores,
    SiteResult,
    StudentResult,
)
from predbayes_study.result.scoring import score

_HARM = 0.025  # probability that some harmless site of all is called harmful


def summed(plan: Plan, upload: Upload) -> Moments:
    """Return the sums of an upload; refuse what is not of the rows that it says."""
    assert plan.moments is not None
    found = Moments.from_arrays(summed_features(plan), summed_classes(plan), upload.arrays)
    if found.num_rows != upload.info.num_rows:
        raise UploadError(
            f"its sums are over {found.num_rows:,} rows, and it states {upload.info.num_rows:,}"
        )
    if found.class_rows != upload.info.class_rows:
        raise UploadError("its sums are over other rows of each class than it states")
    asked = plan.moments.rows_per_feature * plan.num_summed
    if found.num_rows < asked:
        raise UploadError(
            f"its sums are over {found.num_rows:,} rows; moments.rows_per_feature of the plan asks "
            f"for {asked:,}, because fewer tell who is in them"
        )
    return found


def fitted(total: Moments) -> MomentsHead:
    """Return the model of some sums; refuse one that has no finite weights."""
    try:
        head = total.head()
    except RuntimeError as error:  # of which torch makes those of linear algebra
        raise UploadError("no model can be fitted to its sums") from error
    found = (head.weights, head.spread, head.centre)
    if not all(bool(array.isfinite().all()) for array in found):
        raise UploadError("the model of its sums is not finite")
    return head


def conclude_sums(
    kit: Kit,
    labels: Labels,
    uploads: Sequence[AcceptedUpload],
    read: Read,
    meta: ResultMeta,
    leave_out: frozenset[str] = frozenset(),
    device: str = "cpu",
) -> Conclusion:
    """Add up the sums that count, fit their head, and judge it where there are labels."""
    run = Run(kit.plan, labels.reference, labels, str(resolve_device(device)))
    return _Summed(run, uploads, read, leave_out).conclusion(kit, meta)


@dataclass(frozen=True)  # without slots, where what is made once is kept
class _Summed:
    """A study's sums, their model and what is known of it."""

    run: Run
    uploads: Sequence[AcceptedUpload]
    read: Read
    leave_out: frozenset[str]

    @cached_property
    def total(self) -> Moments:
        """The sums over all rows of the sites that count."""
        counted = (accepted for accepted in self.uploads if accepted.site not in self.leave_out)
        found: Moments | None = None
        for accepted in counted:
            moments = self._moments(accepted)
            with naming(self._largest, "has the most of more rows than can be added"):
                found = moments if found is None else found.add_(moments)
        assert found is not None  # as a quorum is at least one
        return found

    @property
    def _largest(self) -> str:
        """The site with the most rows."""
        return max(self.uploads, key=lambda accepted: accepted.num_rows).site

    @cached_property
    def model(self) -> NetworkPredictor:
        """The head of the total."""
        return as_predictor(fitted(self.total))

    @cached_property
    def predicted(self) -> Predictive:
        """What it predicts for the scored rows."""
        return self._scored(self.model)

    def conclusion(self, kit: Kit, meta: ResultMeta) -> Conclusion:
        run, plan = self.run, self.run.plan
        own = run.own_model()
        scores = self._score(self.predicted)
        result = Result(
            **run.told(kit, meta, self.model),
            **run.judged(self.predicted, tuple(self._cautions())),
            sites=tuple(sorted(self._sites(), key=lambda site: site.site)),
            pool=self._pool(own),
            pooled=None,
            mixture=None,
            server_only=None if own is None else self._score(own[run.scored_rows]),
            student=self._student(scores),
            paid=run.paid(own, self.predicted),
            bytes_in=sum(accepted.num_bytes for accepted in self.uploads),
            bytes_out=kit.num_bytes * len(self.uploads),
        )
        return Conclusion(CalibratedModel(plan, self.model, meta.number), result)

    def _moments(self, accepted: AcceptedUpload) -> Moments:
        with naming(accepted.site):
            return summed(self.run.plan, self.read(accepted))

    def _scored(self, model: NetworkPredictor) -> Predictive:
        return model.predict(self.run.reference.inputs[self.run.scored_rows])

    def _score(self, predictive: Predictive) -> Scores | None:
        return score(self.run.plan, predictive, self.run.scored_targets)

    def _cautions(self) -> Iterator[str]:
        if not len(self.run.scored_targets):
            yield (
                "Nobody could check what a single site sent: without labels, sums that are those "
                "of some rows are taken as they are."
            )

    def _sites(self) -> Iterator[SiteResult]:
        seen: dict[bytes, str] = {}
        for accepted in self.uploads:
            moments = self._moments(accepted)
            copied = seen.setdefault(moments.sums.numpy().tobytes(), accepted.site)
            with naming(accepted.site):
                yield self._site(accepted, moments, "" if copied == accepted.site else copied)

    def _site(self, accepted: AcceptedUpload, moments: Moments, copied: str) -> SiteResult:
        is_out = accepted.site in self.leave_out
        has_labels = bool(len(self.run.scored_targets))
        alone = self._score(self._scored(as_predictor(fitted(moments)))) if has_labels else None
        changed = self._influence(moments) if has_labels and not is_out else None
        return SiteResult(
            site=accepted.site,
            digest=accepted.digest,
            kind=accepted.kind,
            num_rows=accepted.num_rows,
            agreed_rows=accepted.agreed_rows,
            counted_rows=float(accepted.num_rows),
            num_bytes=accepted.num_bytes,
            class_rows=moments.class_rows,
            alone=alone,
            influence=changed,
            findings=tuple(self._findings(changed, copied)),
            left_out=is_out,
        )

    def _influence(self, part: Moments) -> Estimate | None:
        """What the model loses without a site's sums, in NLL; None if there are no others."""
        total, targets = self.total, self.run.scored_targets
        if part.num_rows == total.num_rows:
            return None
        others = fitted(Moments(total.features, total.num_classes, total.sums - part.sums))
        predicted = others.predict(self.run.reference.inputs[self.run.scored_rows])
        return mean_estimate(nll_rows(predicted, targets) - nll_rows(self.predicted, targets))

    def _findings(self, changed: Estimate | None, copied: str) -> Iterator[Finding]:
        if copied:
            yield Finding(kind="copy", text=f"Its sums are those of {copied}: one is a copy.")
        if changed is not None and _is_harm(changed, len(self.uploads)):
            yield Finding(
                kind="harmful",
                text=f"Without it the model is better by {-changed.value:.3f} nats per row.",
            )

    def _pool(self, own: Predictive | None) -> PoolResult:
        run = self.run
        return PoolResult(
            method="moments",
            name="sum of moments",
            reason="the plan asks for sums, which add up to those of all rows in one place",
            weights={},
            candidates=(),
            curve=(),
            num_labels=len(run.reference.targets),
            own="" if own is None or run.plan.pool.own != AUTO else run.own_learner,
        )

    def _student(self, scores: Scores | None) -> StudentResult:
        arrays = self.model.samples.parameters.values()
        return StudentResult(
            scores=scores,
            gap=0.0,
            temperature=1.0,
            num_parameters=sum(math.prod(array.shape[1:]) for array in arrays),
        )


def _is_harm(found: Estimate, num_sites: int) -> bool:
    """Say whether it is below 0 by more than chance would give one of so many sites."""
    clearly = -NormalDist().inv_cdf(_HARM / num_sites)
    error = (found.high - found.low) / (2 * 1.96)
    return found.value < -clearly * error
