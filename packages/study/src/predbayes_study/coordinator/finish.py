"""The step that makes a numbered result, and the files of a result.

The result is a function of the *set* of accepted files, folded in the order of their digests: in
whatever order sites came, and whoever came and went meanwhile.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from predbayes.errors import StudyError, UploadError, checking, no_such
from predbayes.exchange.header import UploadInfo
from predbayes.files import digests, file_digest, make_folder
from predbayes.progress import tell_step
from predbayes.threads import threads
from predbayes_study import attachments
from predbayes_study.coordinator.differencing import in_public, require_apart
from predbayes_study.coordinator.signer import Signer
from predbayes_study.coordinator.state import LABELS, MODEL_FOLDER, FinishedResult, State
from predbayes_study.coordinator.step import Step
from predbayes_study.coordinator.study import Study
from predbayes_study.extra import added
from predbayes_study.kit.kit import Labels
from predbayes_study.payload import payload_of
from predbayes_study.payloads.details import evaluation_of
from predbayes_study.plan.schema import Plan
from predbayes_study.report.outstanding import site_files
from predbayes_study.report.report import render_card, render_report
from predbayes_study.result.accepted import RESULT_FILE, Accepted, AcceptedUpload
from predbayes_study.result.analysis import Conclusion, Evidence, ResultMeta, UnusableUploadError
from predbayes_study.result.evaluation import at_sites
from predbayes_study.result.level import level_of
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import Finding, Result, SiteResult
from predbayes_study.result.statistics.coverage import add_counts, coverages
from predbayes_study.store.ledger import now
from predbayes_study.tasks.echo import ModelLevel
from predbayes_study.trust.statement import IN_TOTO, MODEL_SIGNATURE, RESULT_SIGNATURE

_log = logging.getLogger(__name__)

A = TypeVar("A", bound=Accepted)
T = TypeVar("T")

_ONNX = f"{MODEL_FOLDER}/model.onnx"
_BESIDE_FINDINGS = {
    "number", "finished", "ledger_digest", "withdrawn", "versions", "at_sites", "extras",
}  # fmt: skip


def finish(
    step: Step,
    leave_out: frozenset[str],
    *,
    onnx: bool,
    device: str = "cpu",
    openings: Sequence[Path] = (),
) -> tuple[FinishedResult, Result]:
    """Make a numbered result of what is in; the last one, if nothing changed since."""
    state, study = step.state, step.study
    _require_whole(study.plan, leave_out, openings)
    for site in sorted(leave_out - state.uploads.keys()):
        raise StudyError(no_such("site with an upload", site, state.uploads))
    current = state.current
    if current is not None and current.serves(leave_out, [_ONNX] if onnx else []):
        return current, study.result(current.number)
    _require_ready(study.plan, state, leave_out)
    meta = ResultMeta(state.next_number, now(), state.last, len(state.withdrawn))
    openings = openings or kept_openings(study, state.of_these_uploads)
    with make_folder(study.result_folder(meta.number), 0o700) as scratch:
        # What is used of them is what is kept: on a share they may change meanwhile.
        copies = [scratch / f"holder-{n}{study.plan.opening}" for n in range(1, len(openings) + 1)]
        for path, copy in zip(openings, copies, strict=True):
            shutil.copyfile(path, copy)
        found = _found(step, meta, leave_out, copies, device)
        # Whom screening leaves out is known from here on.
        require_apart(study.plan, state, found.result.out)
        shown = in_public(study.plan, state, found.result, found.model.weights_digest())
        _write(found, shown, scratch, onnx=onnx)
        files = digests(scratch, scratch.rglob("*"))
        if step.signer is not None:
            files |= _sign(step.signer, scratch, files)
    made = {"left_out": sorted(leave_out), "files": files}
    if screened := sorted(found.result.out - leave_out):
        made["screened"] = screened
    step.record("finish", _made_of(state, found) | made, at=meta.finished)
    return state.results[-1], found.result


def _require_ready(plan: Plan, state: State, leave_out: frozenset[str]) -> None:
    """Refuse a result of too few sites, or one that the plan forbids."""
    num_sites, quorum = len(state.uploads) - len(leave_out), plan.rules.quorum
    if num_sites < quorum:
        raise StudyError(f"sites that are in: {num_sites}; the plan's quorum is {quorum}")
    if plan.rules.screening == "report":  # or it is not known yet who is in it
        require_apart(plan, state, leave_out)


def _made_of(state: State, found: Conclusion) -> dict[str, object]:
    """What the ledger says of a result beside its files."""
    data: dict[str, object] = {
        "number": found.result.number,
        "uploads": {upload.site: upload.digest for upload in state.in_order},
        "outcome": outcome(found),
    }
    if shown := state.evaluations_of(found.model.weights_digest()):
        data["evaluations"] = [accepted.digest for accepted in shown]
    if state.attachments:
        data["attachments"] = list(state.attachment_digests)
    return data


def _require_whole(plan: Plan, leave_out: frozenset[str], openings: Sequence[Path]) -> None:
    """Refuse to take a site out of a sealed sum, and files of holders where nothing is sealed."""
    if not plan.opening and openings:
        raise StudyError("the plan's sums are not sealed: leave --opening out")
    if plan.opening and leave_out:
        raise StudyError(
            "the plan's sums are sealed, so that no site can be left out of one; withdraw it "
            "before `predbayes study request`"
        )


def kept_openings(study: Study, result: FinishedResult | None) -> list[Path]:
    """Return what key holders opened for a result: it is in its folder."""
    if result is None or not study.plan.opening:
        return []
    return sorted(study.result_folder(result.number).glob(f"*{study.plan.opening}"))


def _found(
    step: Step,
    meta: ResultMeta,
    leave_out: frozenset[str],
    openings: Sequence[Path],
    device: str,
) -> Conclusion:
    """What the uploads give."""
    state, study = step.state, step.study
    last = state.of_these_uploads
    if last is not None and last.serves(leave_out, []):
        # New are evaluations, attachments, or a file that is asked for: the model stays to the bit.
        return evaluated(study, state, _again(study, last, meta))
    sent = state.uploads.values()
    gone = sorted(accepted.site for accepted in sent if accepted.digest in state.deleted)
    if gone:
        raise StudyError(
            f"the upload of {gone[0]} is deleted, so no new result can be made of it; withdraw "
            f"{gone[0]} to go on without it"
        )
    found = conclude_study(study, state, meta, leave_out, device, openings)
    return evaluated(study, state, found)


def conclude_study(
    study: Study,
    state: State,
    meta: ResultMeta,
    leave_out: frozenset[str],
    device: str = "cpu",
    openings: Sequence[Path] = (),
) -> Conclusion:
    """Screen, pool, distil and score a study's uploads, with the plan's number of threads.

    An upload that no result can be made of is left out, and the result says so: one site must not
    stop the others. The result stays a function of the set of uploads.
    """
    kit, uploads, unusable = study.kit, state.in_order, list[SiteResult]()
    labels = Labels.load(study.folder / LABELS, kit)
    while True:
        evidence = Evidence(kit, labels, uploads, study.read, meta, leave_out, openings, device)
        try:
            with threads(kit.plan.learner.threads):
                found = payload_of(kit.plan).conclude(evidence)
            break
        except UnusableUploadError as error:
            left = [accepted for accepted in uploads if accepted.site != error.site]
            if len({one.site for one in left} - leave_out) < max(1, kit.plan.rules.quorum):
                raise
            _log.warning("%s is left out: its upload cannot be used (%s)", error.site, error.why)
            (broken,) = (accepted for accepted in uploads if accepted.site == error.site)
            unusable.append(_unusable(broken, error.why))
            uploads = left
    sites = sorted([*found.result.sites, *unusable], key=lambda site: site.site)
    result = found.result.model_copy(update={"sites": tuple(sites)})
    return dataclasses.replace(found, result=result)


def _unusable(accepted: AcceptedUpload, why: str) -> SiteResult:
    """What a result says of a site whose upload it cannot use."""
    found = Finding(kind="unusable", text=f"Its upload cannot be used: {why}.")
    return SiteResult.of(accepted, 0.0, findings=(found,), left_out=True)


def _usable(files: Iterable[A], read: Callable[[A], T]) -> list[T]:
    """Read files that no model is made of; leave out, by name, those that cannot be used."""
    found = []
    for accepted in files:
        try:
            with checking(UploadError):
                found.append(read(accepted))
        except UploadError as error:
            what = f"what {accepted.site} sent (entry {accepted.number} of the ledger)"
            _log.warning("%s is left out: %s", what, error)
    return found


def _again(study: Study, last: FinishedResult, meta: ResultMeta) -> Conclusion:
    """A result's findings and model, with another number and date."""
    folder = study.result_folder(last.number)
    if digests(folder, folder.rglob("*")) != dict(last.files):
        raise StudyError(f"result {last.number} was altered; run `predbayes study verify`")
    return Conclusion(
        dataclasses.replace(_model(study, last.number), plan=study.plan, number=meta.number),
        study.result(last.number).model_copy(update=dataclasses.asdict(meta)),
    )


def _model(study: Study, number: int) -> CalibratedModel:
    """The model of a result; whoever froze the plan allowed the network that it names."""
    folder = study.result_folder(number) / MODEL_FOLDER
    return CalibratedModel.load(folder, (study.plan.model.module,))


def evaluated(study: Study, state: State, found: Conclusion) -> Conclusion:
    """Return the same with what sites have said about the model, and about their rows.

    Evaluations are of the model before its level was set, whichever result a site had: so those of
    all results of the same uploads add up, and the level is a function of the set of them.
    """
    found = dataclasses.replace(found, model=dataclasses.replace(found.model, level=None))
    sent = state.evaluations_of(found.model.weights_digest())
    received = [accepted for accepted in sent if accepted.digest not in state.deleted]
    infos = _usable(received, lambda accepted: _evaluation(study, accepted))
    shown = at_sites(study.plan, infos, found.result.out)
    # A site that is left out of the model has no part in its level, nor in what is promised.
    counted = {
        info.site: (info.num_rows, evaluation_of(info))
        for info in infos
        if info.site not in found.result.out
    }
    model = found.model
    if shown is not None and (level := level_of(study.plan, counted)) is not None:
        shown = shown.model_copy(update={"level": level})
        own = ModelLevel(inverse_temperature=level.inverse_temperature, shifts=level.shifts)
        model = dataclasses.replace(model, level=own)
    if shown is not None and shown.pooled.scores is not None:
        with threads(study.plan.learner.threads):
            predictive = model.before_level(study.kit.inputs)
        sums = add_counts(said.scores for _, said in counted.values())
        pooled = shown.pooled.model_copy(update={"scores": sums})
        promised = coverages(study.plan, predictive, sums)
        shown = shown.model_copy(update={"pooled": pooled, "coverages": promised})
    change = {"at_sites": shown, "extras": _attached(study, state, found.result)}
    return Conclusion(model, found.result.model_copy(update=change))


def _evaluation(study: Study, accepted: Accepted) -> UploadInfo:
    """Read what a site says about a model, if it can be pooled."""
    info = study.read(accepted).info
    at_sites(study.plan, [info])
    return info


def _attached(study: Study, state: State, result: Result) -> dict[str, Any]:
    """What attachments of the sites whose uploads count say together, by kind."""
    counted = {site.site for site in result.sites} - result.out
    plan, said = study.plan, {}
    for kind in attachments.attachment_kinds():
        sent = [
            accepted
            for accepted in state.attachments.values()
            if accepted.kind == kind
            and accepted.site in counted
            and accepted.digest not in state.deleted
        ]
        files = _usable(
            sent,
            lambda one: attachments.read_attachment(
                one.kind, study.upload_path(one), plan, {one.site: one.key}, one.digest
            ),
        )
        if files and (told := attachments.kind_named(kind).conclude(plan, files, len(counted))):
            said[kind] = told
    return said


def outcome(found: Conclusion) -> str:
    """Return the digest of what was found, without its number and date: equal for equal uploads."""
    content = hashlib.sha256(found.result.model_dump_json(exclude=_BESIDE_FINDINGS).encode())
    for name, array in sorted(found.model.predictor.samples.arrays().items()):
        content.update(f"\n{name} {tuple(array.shape)}\n".encode())
        content.update(array.contiguous().numpy().tobytes())
    return content.hexdigest()


def _sign(signer: Signer, folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Sign the model, and all of the result with it; the digests of the new files."""
    inside = f"{MODEL_FOLDER}/"
    model = {n.removeprefix(inside): d for n, d in files.items() if n.startswith(inside)}
    own = inside + MODEL_SIGNATURE
    (folder / own).write_bytes(signer.files("model", model))
    new = {own: file_digest(folder / own)}
    (folder / IN_TOTO).write_bytes(signer.in_toto({**files, **new}))
    new[IN_TOTO] = file_digest(folder / IN_TOTO)
    (folder / RESULT_SIGNATURE).write_bytes(signer.files("result", {**files, **new}))
    return new | {RESULT_SIGNATURE: file_digest(folder / RESULT_SIGNATURE)}


def _write(found: Conclusion, shown: Result, folder: Path, *, onnx: bool) -> None:
    """Write all files of a result; on pages that may be public what may be shown."""
    tell_step("write report, model card and model")
    plan, result = found.model.plan, found.result
    texts = {
        RESULT_FILE: result.model_dump_json(indent=1) + "\n",
        "report.html": render_report(plan, result, public=False),
        "report-public.html": render_report(plan, shown, public=True),
        "model-card.html": render_card(plan, shown),
        **{name: extra.load(reference)(plan, shown) for name, extra, reference in added("files")},
        **site_files(result),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    found.model.save(folder / MODEL_FOLDER)
    if onnx:
        found.model.export_onnx(folder / _ONNX)
