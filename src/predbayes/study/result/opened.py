"""A study of sealed sums: pooled, distilled and scored from the opened sum, and nothing else.

    add       the masked words of every upload, each read and dropped: memory does not grow
    open      the summed masks of every key holder taken away (`predbayes.exchange.masking`)
    pool      the plan's pool of the sum, tuned on the labelled rows, with the coordinator's own
              model in it; then distil and score as in any study (`conclude`)

    screen    before that, if the plan has `privacy.scores`: one number of each site was opened, how
              far it agrees with the labels (`predbayes.predictive.agreement`), and who stands out
              by it is named, or left out of the sum that is opened

What needs a single upload does not exist here: what a site's predictions are worth alone, its
influence, copies, weights by site, a limit to a site's rows against the median site. The result
says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from predbayes.errors import PoolError, StudyError
from predbayes.exchange.masking import WORDS, unmasked, unmasked_scores, words_digest
from predbayes.learning.training import resolve_device
from predbayes.predictive.agreement import standing_out, usual
from predbayes.predictive.families import Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.words import from_words
from predbayes.study.kit.kit import Kit, Labels
from predbayes.study.plan.schema import Privacy
from predbayes.study.result.accepted import AcceptedUpload
from predbayes.study.result.conclude import Conclusion, Heading, Read, Report, Run, Start
from predbayes.study.result.head import Total
from predbayes.study.result.schema import Finding, SiteResult

ABSENT = (
    "The sum of the sites was sealed: nobody saw what a single site sent. So sites were not "
    "screened or compared, and no site has a score, an influence or a weight of its own."
)
SCORED = (
    "The sum of the sites was sealed: of a single site one number was opened, how far it agrees "
    "with the labels. Sites were screened by that alone, and not compared with each other."
)


PROMISED = (
    "The sum has noise of every site, and the model is {}. Sites did not tell their numbers of "
    "rows: each counts as one."
)


class FromHolders(NamedTuple):
    """What key holders returned: one file of each, of either kind."""

    openings: Sequence[Path] = ()
    scores: Sequence[Path] = ()


NOTHING_RETURNED = FromHolders()


class Scored(NamedTuple):
    """How far each site agrees with the labels, in nats per labelled row, and who stands out."""

    agreements: Mapping[str, float]
    findings: Mapping[str, Finding]
    left_out: frozenset[str]


NOBODY_SCORED = Scored({}, {}, frozenset())


def score_sites(
    kit: Kit,
    labels: Labels,
    uploads: Sequence[AcceptedUpload],
    read: Read,
    files: Sequence[Path],
) -> Scored:
    """Screen the sites by the number that key holders opened of each; without files nobody is."""
    sealing = kit.plan.sealing
    assert sealing is not None
    if not files:
        if kit.plan.rules.screening == "leave-out":
            raise StudyError(
                "the plan leaves sites out by their scores: give --score with what each holder "
                "returned of `predbayes holder score`"
            )
        return NOBODY_SCORED
    if not sealing.scores:
        raise StudyError("the plan has no privacy.scores: leave --score out")
    form = sealing.form(kit.plan)
    try:
        weighing = labels.weighing(kit.plan.num_outputs)
        hidden = {}
        for accepted in uploads:
            words = read(accepted).arrays[WORDS]
            hidden[accepted.site] = words_digest(words), weighing.total(form, words)
        totals = unmasked_scores(hidden, files, kit.digest, sealing.public_keys)
        agreements = {s: weighing.agreement(form, total) for s, total in sorted(totals.items())}
    except PoolError as error:
        raise StudyError(f"sites cannot be scored: {error}") from error
    findings = {
        site: _finding(kind, agreements, site) for site, kind in standing_out(agreements).items()
    }
    left_out = findings.keys() if kit.plan.rules.screening == "leave-out" else ()
    return Scored(agreements, findings, frozenset(left_out))


def _finding(
    kind: Literal["contradicts", "uninformative"], agreements: Mapping[str, float], site: str
) -> Finding:
    said = "go against the labels" if kind == "contradicts" else "say next to nothing of the labels"
    return Finding(
        kind=kind,
        text=(
            f"Its predictions {said}: agreement {agreements[site]:+.2f} nats per labelled row, "
            f"where the median site has {usual(agreements):+.2f}."
        ),
    )


def conclude_opened(
    kit: Kit,
    labels: Labels,
    uploads: Sequence[AcceptedUpload],
    read: Read,
    heading: Heading,
    returned: FromHolders,
    *,
    start: Start | None = None,
    device: str = "cpu",
) -> Conclusion:
    """Open the sum of the uploads; pool, distil and score it.

    Args:
        kit: Of the study.
        labels: The coordinator's.
        uploads: All of them: none but by its score can be left out of a sum that is opened.
        read: How an upload is read.
        heading: Of the result.
        returned: By the key holders.
        start: The student of an earlier result, to begin from.
        device: Where networks are run and trained.
    """
    assert kit.plan.sealing is not None
    scored = score_sites(kit, labels, uploads, read, returned.scores)
    summed = [accepted for accepted in uploads if accepted.site not in scored.left_out]
    opened = _opened(kit, kit.plan.sealing, summed, read, returned.openings)
    total = Total(opened[labels.order])
    reference = labels.reference
    run = Run(kit.plan, reference, labels, start, str(resolve_device(device)))
    own = run.own_model()
    state = run.finish(total, reference, own)

    def sum_by(_rows: Tensor, _own: Predictive | None) -> Total:
        return total

    held_out = run.held_out(sum_by, total, state)
    most = kit.plan.sealing.max_rows
    sites = [_site(accepted, most, scored) for accepted in uploads]
    told = [SCORED if scored.agreements else ABSENT]
    if (promised := kit.plan.site_privacy) is not None:
        told.append(PROMISED.format(promised.text))
    return Report(run, sites, tuple(told), total, own, state, held_out).conclusion(kit, heading)


def _opened(
    kit: Kit,
    sealing: Privacy,
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


def _site(accepted: AcceptedUpload, most: int, scored: Scored) -> SiteResult:
    finding = scored.findings.get(accepted.site)
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
        agreement=scored.agreements.get(accepted.site),
        findings=() if finding is None else (finding,),
        left_out=accepted.site in scored.left_out,
    )
