"""A study of sealed sums: pooled, distilled and scored from the opened sum, and nothing else.

    add       the masked words of every upload, each read and dropped: memory does not grow
    open      the summed masks of every key holder taken away (`extras.sealed.masking`)
    pool      the plan's pool of the sum, tuned on the labelled rows, with the coordinator's own
              model in it; then distil and score as in any study (`conclude`)

What needs a single upload does not exist here: what a site's predictions are worth alone, its
influence, copies, weights by site, a limit to a site's rows against the median site. The result
says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import PoolError, StudyError
from predbayes.learning.training import resolve_device
from predbayes.predictive.families import Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes_study.extras.sealed.masking import WORDS, unmasked, words_digest
from predbayes_study.extras.sealed.section import Sealed
from predbayes_study.extras.sealed.secure_sum import from_words
from predbayes_study.kit.kit import Kit, Labels
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.conclude import Conclusion, Read, Report, ResultMeta, Run
from predbayes_study.result.schema import SiteResult

ABSENT = (
    "The sum of the sites was sealed: nobody saw what a single site sent. So sites were not "
    "screened or compared, and no site has a score, an influence or a weight of its own."
)


def conclude_opened(
    kit: Kit,
    labels: Labels,
    uploads: Sequence[AcceptedUpload],
    read: Read,
    meta: ResultMeta,
    openings: Sequence[Path],
    *,
    device: str = "cpu",
) -> Conclusion:
    """Open the sum of the uploads; pool, distil and score it.

    Args:
        kit: Of the study.
        labels: The coordinator's.
        uploads: All of them: none can be left out of a sum that is opened.
        read: How an upload is read.
        meta: Number and date of the result.
        openings: One file of each key holder.
        device: Where networks are run and trained.
    """
    assert kit.plan.sealing is not None
    total = _opened(kit, kit.plan.sealing, uploads, read, openings)[labels.order]
    reference = labels.reference
    run = Run(kit.plan, reference, labels, str(resolve_device(device)))
    own = run.own_model()
    state = run.finish(total, reference, own)

    def sum_by(_rows: Tensor, _own: Predictive | None) -> PredictiveSum[Any]:
        return total

    held_out = run.held_out(sum_by, total, state)
    most = kit.plan.sealing.max_rows
    sites = [_site(accepted, most) for accepted in uploads]
    return Report(run, sites, (ABSENT,), total, own, state, held_out).conclusion(kit, meta)


def _opened(
    kit: Kit,
    sealing: Sealed,
    uploads: Sequence[AcceptedUpload],
    read: Read,
    openings: Sequence[Path],
) -> PredictiveSum[Any]:
    form = sealing.form(kit.plan)
    if len(uploads) > form.max_sites:
        raise StudyError(
            f"{len(uploads):,} sites are in, above max_sites = {form.max_sites:,} of the plan"
        )
    words, sites = torch.zeros(form.size, dtype=torch.int64), {}
    for accepted in uploads:
        sent = read(accepted).arrays[WORDS]
        sites[accepted.site] = words_digest(sent)
        words += sent  # modulo 2^64
    words = unmasked(words, sites, openings, kit.digest, sealing.public_keys)
    try:
        return from_words(form, words, len(uploads))
    except PoolError as error:
        raise StudyError(str(error)) from error


def _site(accepted: AcceptedUpload, most: int) -> SiteResult:
    return SiteResult(
        site=accepted.site,
        digest=accepted.digest,
        kind=accepted.kind,
        num_rows=accepted.num_rows,
        agreed_rows=accepted.agreed_rows,
        counted_rows=float(min(accepted.num_rows, most)),
        num_bytes=accepted.num_bytes,
        class_rows=None,
        alone=None,
        influence=None,
        findings=(),
        left_out=False,
    )
