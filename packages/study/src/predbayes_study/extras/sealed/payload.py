"""Masked terms: predictions of which only the sum over many sites can be read.

    make      predictions and counts of classes as words under masks, whose seeds are sealed to the
              key holders of the plan (`predbayes_study.extras.sealed.masking`)
    check     one seal of the site for each key holder; nothing else can be seen of it
    conclude  add the words of every upload; take the summed masks of every key holder away; then
              pool, distil and score the sum as in any study

What needs a single upload does not exist here: what a site's predictions are worth alone, its
influence, copies, weights by site, a limit to a site's rows against the median site. The result
says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from predbayes.errors import PoolError, StudyError, TrainingError, UploadError
from predbayes.exchange.header import Spec
from predbayes.exchange.upload import Upload
from predbayes.learning.local import Predictor
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical, Predictive, Survival
from predbayes.predictive.pooling import PredictiveSum
from predbayes_study.extras.sealed.masking import (
    WORDS,
    check_seals,
    masked,
    unmasked,
    words_digest,
)
from predbayes_study.extras.sealed.section import Sealed
from predbayes_study.extras.sealed.secure_sum import from_words, to_words
from predbayes_study.payload import ModelPayload
from predbayes_study.payloads.predictions import Predictions
from predbayes_study.plan.schema import Plan
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.analysis import Analysis, Conclusion, Evidence
from predbayes_study.result.conclude import conclude_sum
from predbayes_study.result.schema import SiteResult

if TYPE_CHECKING:
    from predbayes_study.site.fitting import Job

ABSENT = (
    "The sum of the sites was sealed: nobody saw what a single site sent. So sites were not "
    "screened or compared, and no site has a score, an influence or a weight of its own. No "
    "check would find a key holder who added numbers to the sum before it was opened."
)

ENDED = (
    "This plan ends without a result: its key holders never open the sum of all of these sites but "
    "one, under any plan. The same sites can begin anew under a new plan that they approve; to "
    "leave a site out, that plan needs other key holders"
)


class MaskedTerms(ModelPayload):
    """A site's terms of the pool under masks."""

    kind = "masked"
    permission = "predictions"  # of which it tells less
    words = "sealed.html.j2"
    masks = True
    again = (
        "Two sums of the same sites reveal what changed between them, and this site alone where "
        "the other sites did not change, or one of the sums lacks it."
    )

    def arrays(self, plan: Plan) -> Mapping[str, Spec]:
        """Return one array of words."""
        return {WORDS: Spec("int64", (_terms(plan).form(plan).size,))}

    def in_words(self, plan: Plan) -> str:
        """Return what leaves, and who can read it."""
        rows = f"{plan.reference.num_rows:,} reference rows"
        return f"predictions on {rows} under masks, opened only in a sum of many sites"

    def meanings(self, plan: Plan, num_trained: int) -> Mapping[str, str]:
        """Return what the words are."""
        del num_trained
        return {
            WORDS: f"the site’s terms of the pool for {plan.reference.num_rows:,} reference rows "
            f"and {plan.num_outputs} classes, each plus a number at random that only the key "
            "holders of the plan can find again: without them these words are noise",
        }

    def make(self, job: Job) -> tuple[Upload, Predictor]:
        """Predict and mask. Masks are random and never kept: made again, it is another file."""
        plan, key = job.kit.plan, job.key
        if key is None:
            raise TrainingError(
                "the plan's sums are sealed: `predbayes site train` makes what leaves, with a key"
            )
        # Under a mask no count of one site is seen, so small ones need not stay.
        upload, own = Predictions().predict(job)
        predictive, counts = upload.predictive(), upload.info.class_rows
        assert isinstance(predictive, Categorical | Survival)  # as a sealed plan has it
        class_rows = None if counts is None else torch.tensor(counts, dtype=torch.float64)
        words = to_words(
            _terms(plan).form(plan),
            predictive.bounded(LOG_PROB_FLOOR),
            upload.info.num_rows,
            class_rows,
        )
        return masked(job.named(upload), words, _terms(plan).recipients, key), own

    def check(self, plan: Plan, upload: Upload, key: str) -> None:
        """Refuse counts in the open, and words without a seal for each key holder."""
        if upload.info.class_rows is not None:
            raise UploadError("it counts classes in the open, which a sealed plan does not ask for")
        check_seals(upload, _terms(plan).recipients, key)

    def lift(self, plan: Plan, upload: Upload) -> Tensor:
        """Return the words, which add up modulo 2^64."""
        del plan
        return upload.arrays[WORDS]

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Open the sum of all uploads; pool, distil and score it."""
        analysis = Analysis.of(evidence)
        total = self._opened(evidence)[evidence.labels.order]

        def sum_by(rows: Tensor, own: Predictive | None) -> PredictiveSum[Any]:
            del rows, own  # no site can be left out
            return total

        most = _terms(analysis.plan).max_rows
        sites = [
            SiteResult.of(accepted, float(min(accepted.num_rows, most)))
            for accepted in evidence.uploads
        ]
        own = analysis.own_model()
        return conclude_sum(evidence, analysis, total, own, sum_by, sites, (ABSENT,))

    def _opened(self, evidence: Evidence) -> PredictiveSum[Any]:
        plan, uploads = evidence.kit.plan, evidence.uploads
        form = _terms(plan).form(plan)
        if len(uploads) > form.max_sites:
            raise StudyError(
                f"{len(uploads):,} sites are in, above max_sites = {form.max_sites:,} of the plan"
            )
        words, sites = torch.zeros(form.size, dtype=torch.int64), {}
        for accepted in uploads:
            sent = self.lift(plan, evidence.read(accepted))
            sites[accepted.site] = words_digest(sent)
            words += sent
        words = unmasked(
            words, sites, evidence.openings, evidence.kit.digest, _terms(plan).public_keys
        )
        try:
            total = from_words(form, words, len(uploads))
        except PoolError as error:
            raise StudyError(f"{error}. {ENDED}") from error
        _require_stated(uploads, float(total.weight("moments")), form.max_rows)
        return total


def _terms(plan: Plan) -> Sealed:
    """The terms on which a plan's sums are sealed."""
    section = plan.section(Sealed)
    assert section is not None  # as the kind of what is sent says
    return section


def _require_stated(uploads: Sequence[AcceptedUpload], rows: float, most: int) -> None:
    """Refuse a sum of other rows than its sites state: some site sealed another number."""
    stated = sum(min(accepted.num_rows, most) for accepted in uploads)
    if rows != stated:  # exactly: whole rows are whole units of a word
        raise StudyError(
            f"the opened sum is of {rows:,.10g} rows, but its sites state {stated:,}: some site "
            f"sealed another number than it states, and no one can see which. {ENDED}"
        )
