"""A study: the run of a plan, in one folder.

    study/
      kit/                    plan and reference inputs, as every site has them
      labels.json             the coordinator's labels and which rows they are of
      ledger.jsonl            every step (`predbayes.study.store.ledger`)
      uploads/DIGEST.safetensors
      results/N/              result.json, report.html, report-public.html, model-card.html, model/

A step first puts its files in place and then writes its entry; a step that only removes files
writes its entry first. So a process that is killed leaves a study that is as before the step, or as
after it but for files that no entry names or files that an entry has removed, which the next step
clears away. Running the command again completes it.

The result is a function of the *set* of accepted files, folded in the order of their digests: in
whatever order sites came, and whoever came and went meanwhile.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import ValidationError

from predbayes.errors import PredbayesError, StudyError, UploadError, no_such
from predbayes.exchange.header import UploadInfo, printable
from predbayes.exchange.signing import PublicKey
from predbayes.exchange.strict import require_site_name
from predbayes.exchange.upload import Upload
from predbayes.files import TEMPORARY, file_digest, make_folder, put, remove, sync_folder
from predbayes.optional import require
from predbayes.seeding import threads
from predbayes.study.coordinator.intake import Intake
from predbayes.study.coordinator.live import LIVE_FILE
from predbayes.study.coordinator.state import (
    MODEL_FOLDER,
    AcceptedEvaluation,
    FinishedResult,
    State,
)
from predbayes.study.kit.kit import PLAN_FILE, Kit, Labels
from predbayes.study.plan.schema import Plan, read_text
from predbayes.study.report.report import render_card, render_report
from predbayes.study.result.accepted import AcceptedUpload
from predbayes.study.result.conclude import Conclusion, Occasion, Start, conclude
from predbayes.study.result.evaluation import at_sites
from predbayes.study.result.model import CalibratedModel
from predbayes.study.result.schema import Result
from predbayes.study.store.files import LOCK, RUN_LOCK, copy_bounded, locked
from predbayes.study.store.ledger import Entry, Ledger, now

_KIT, _LABELS, _LEDGER = "kit", "labels.json", "ledger.jsonl"
_UPLOADS, _RESULTS = "uploads", "results"
_UPLOAD_NAME = re.compile(rf"[0-9a-f]{{64}}\.safetensors|{re.escape(TEMPORARY)}.*")
_ONNX = "model/model.onnx"
_OCCASIONAL = {"number", "finished", "ledger_digest", "withdrawn", "versions", "at_sites"}


@dataclass(frozen=True, slots=True)
class Study:
    """A study's folder, and the steps that can be taken in it."""

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / _LEDGER).is_file():
            raise StudyError(
                f"there is no study in {self.folder}; begin one with `predbayes study init`"
            )

    @classmethod
    def init(cls, folder: Path, kit_folder: Path, labels_path: Path) -> Study:
        """Begin a study of a frozen plan in a new folder."""
        if folder.exists():
            raise StudyError(f"{folder} exists; give another folder with --study")
        kit = Kit.load(kit_folder)
        Labels.load(labels_path, kit)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with make_folder(folder, 0o700) as scratch:
            shutil.copytree(kit_folder, scratch / _KIT)
            shutil.copyfile(labels_path, scratch / _LABELS)
            (scratch / _LABELS).chmod(0o600)
            (scratch / _UPLOADS).mkdir()
            (scratch / _RESULTS).mkdir()
            files = _digests(scratch, [*(scratch / _KIT).rglob("*"), scratch / _LABELS])
            Ledger(scratch / _LEDGER).append("init", {"plan": kit.digest, "files": files})
        return cls(folder)

    @property
    def kit(self) -> Kit:
        """Plan and reference inputs."""
        return Kit.load(self.folder / _KIT)

    @property
    def labels(self) -> Labels:
        """The coordinator's labels, and which reference rows they are of."""
        return Labels.load(self.folder / _LABELS, self.kit)

    @property
    def plan(self) -> Plan:
        """What the study agreed on; quicker to read than the kit."""
        return Plan.load(self.folder / _KIT / PLAN_FILE)

    @property
    def ledger(self) -> Ledger:
        """The record of every step."""
        return Ledger(self.folder / _LEDGER)

    def state(self) -> State:
        """What the ledger says."""
        return State.of(self.ledger.entries())

    def result(self, number: int) -> Result:
        """A numbered result."""
        path = self.result_folder(number) / "result.json"
        try:
            return Result.model_validate_json(path.read_bytes(), strict=False)
        except (OSError, ValidationError) as error:
            raise StudyError(
                f"result {number} cannot be read; run `predbayes study verify`"
            ) from error

    def result_folder(self, number: int) -> Path:
        """Where a result is."""
        return self.folder / _RESULTS / str(number)

    def admit(self, site: str, key: PublicKey) -> bool:
        """Record a site's key; False if it has that key already."""
        with self._step() as step:
            return step.admit(site, key)

    def admit_all(self, keys: Mapping[str, PublicKey]) -> None:
        """As `admit` for each site; one lock for all."""
        with self._step() as step:
            for site, key in keys.items():
                step.admit(site, key)

    def add(self, path: Path) -> AcceptedUpload | AcceptedEvaluation | None:
        """Check a file and take it in; None if it is in already."""
        with self._step() as step:
            return step.add(path)

    def add_all(
        self, paths: Iterable[Path]
    ) -> Iterator[AcceptedUpload | AcceptedEvaluation | UploadError | None]:
        """As `add` for each file, with its refusal in place of an exception; one lock for all."""
        with self._step() as step:
            for path in paths:
                try:
                    yield step.add(path)
                except UploadError as error:
                    yield error

    def withdraw(self, site: str) -> str:
        """Take out all that a site sent, delete its bytes, and return its upload's digest."""
        with self._step() as step:
            sent = step.state.sent_by(site)
            if not sent:
                done = [digest for digest, name in step.state.withdrawn.items() if name == site]
                if done:
                    return done[-1]  # again, as after a crash
                raise StudyError(no_such("upload of a site", site, step.state.uploads))
            digest = sent[0].digest
            step.record("withdraw", {"site": site, "digest": digest})
            step.clear()
            return digest

    def finish(
        self, *, leave_out: Sequence[str] = (), warm: bool = False, onnx: bool = False
    ) -> tuple[FinishedResult, Result]:
        """Make a numbered result of what is in; the last one, if nothing changed since.

        Args:
            leave_out: Sites whose uploads are not pooled; they are shown all the same.
            warm: Start from the last student; the result is then a function of that one, too.
            onnx: Also write the model for ONNX runtimes.
        """
        if onnx:
            require("onnxscript", "onnx")
        with self._step() as step:
            return step.finish(frozenset(leave_out), warm=warm, onnx=onnx)

    def verify(self, *, rebuild: bool = False) -> list[str]:
        """Everything that is not as the ledger says, as one line each.

        Args:
            rebuild: Also make the last result again from the files, and compare it.
        """
        problems = self.ledger.problems()
        if problems:
            return problems
        state = self.state()
        problems = _altered(self.folder, _recorded(state))
        if problems or not rebuild:
            return problems
        return _rebuilt(self, state)

    def read(self, accepted: AcceptedUpload | AcceptedEvaluation) -> Upload:
        """An accepted upload; one whose bytes changed since is refused."""
        path = self._upload_path(accepted.digest)
        if not path.is_file() or file_digest(path) != accepted.file_digest:
            raise StudyError(
                f"the upload of {accepted.site} was altered; run `predbayes study verify`"
            )
        return Upload.load(path)

    def _upload_path(self, digest: str) -> Path:
        return self.folder / _UPLOADS / f"{digest}.safetensors"

    @contextmanager
    def _step(self) -> Iterator[_Step]:
        with locked(self.folder):
            self.ledger.mend()
            step = _Step(self, self.state())
            step.clear()
            yield step


@dataclass(frozen=True)  # without slots, where what is read once is kept
class _Step:
    """A study while its lock is held."""

    study: Study
    state: State

    @cached_property
    def intake(self) -> Intake:
        """The checks of the study's plan, which is read once."""
        return _intake(read_text(self.study.folder / _KIT / PLAN_FILE))

    def record(self, step: str, data: dict[str, object], at: str | None = None) -> Entry:
        """Write an entry, and take it into the state."""
        after = self.state.num_entries, self.state.last
        entry = self.study.ledger.append(step, data, at, after=after)
        self.state.take(entry)
        return entry

    def clear(self) -> None:
        """Remove what a killed process left, and the bytes of uploads that were withdrawn."""
        folder = self.study.folder
        wanted = {f"{accepted.digest}.safetensors" for accepted in self.state.accepted}
        # Whatever else is there is somebody's: `verify` names it, and nothing deletes it.
        _remove_from(
            folder / _UPLOADS,
            lambda name: name not in wanted and bool(_UPLOAD_NAME.fullmatch(name)),
        )
        unfinished = str(self.state.next_number)
        _remove_from(
            folder / _RESULTS, lambda name: name == unfinished or name.startswith(TEMPORARY)
        )

    def admit(self, site: str, key: PublicKey) -> bool:
        require_site_name(site)
        if self.state.keys.get(site) == key.hex:
            return False
        if key.hex in self.state.retired:
            raise StudyError(f"{site} needs a new key: this one was in use before")
        owner = next((name for name, k in self.state.keys.items() if k == key.hex), None)
        if owner is not None:
            raise StudyError(f"this is the key of {owner}; each site has a key of its own")
        self.record("admit", {"site": site, "key": key.hex})
        return True

    def add(self, path: Path) -> AcceptedUpload | AcceptedEvaluation | None:
        intake = self.intake
        # A copy of our own: nobody changes it between the check and the rename.
        scratch = self.study.folder / _UPLOADS / f"{TEMPORARY}upload"
        try:
            num_bytes = copy_bounded(path, scratch, intake.max_bytes)
            upload = intake.check(scratch, self.state.keys)
            if upload.info.kind == "weights":
                intake.check_networks(upload, self.study.kit.inputs)
            if upload.info.kind == "evaluation":
                return self._accept_evaluation(scratch, upload, num_bytes)
            return self._accept(scratch, upload, num_bytes)
        except PredbayesError as error:
            shown = printable(path.name)
            text = str(error).replace(scratch.name, shown)
            raise UploadError(text if shown in text else f"{shown}: {text}") from error
        finally:
            remove(scratch)

    def _accept(self, scratch: Path, upload: Upload, num_bytes: int) -> AcceptedUpload | None:
        info, digest = upload.info, upload.digest()
        before = self.state.uploads.get(info.site)
        if before is not None and before.digest == digest:
            return None
        if before is not None:
            raise UploadError(
                f"{info.site} has an upload in the study already; withdraw it first, and admit "
                "the site again with a new key"
            )
        self._keep("add", scratch, info, digest, num_bytes, kind=info.kind)
        return self.state.uploads[info.site]

    def _accept_evaluation(
        self, scratch: Path, upload: Upload, num_bytes: int
    ) -> AcceptedEvaluation | None:
        info, digest, state = upload.info, upload.digest(), self.state
        assert info.evaluation is not None  # as its kind says
        model = info.evaluation.model
        before = state.evaluations.get((info.site, model))
        if before is not None and before.digest == digest:
            return None
        if digest in state.replaced:
            raise UploadError("the site has sent a newer evaluation of this model")
        if all(result.model != model for result in state.results):
            raise UploadError("it is of a model that is no result of this study")
        self._keep("evaluate", scratch, info, digest, num_bytes, model=model)
        self.clear()  # the one that it replaces
        return state.evaluations[info.site, model]

    def _keep(
        self,
        step: str,
        scratch: Path,
        info: UploadInfo,
        digest: str,
        num_bytes: int,
        **more: object,
    ) -> None:
        """Put a file in its place, and then write the entry that names it."""
        data = {
            "site": info.site,
            "digest": digest,
            "file_digest": file_digest(scratch),
            "num_bytes": num_bytes,
            "num_rows": info.num_rows,
            **more,
        }
        put(scratch, self.study._upload_path(digest))
        self.record(step, data)

    def finish(
        self, leave_out: frozenset[str], *, warm: bool, onnx: bool
    ) -> tuple[FinishedResult, Result]:
        state, study = self.state, self.study
        for site in sorted(leave_out - state.uploads.keys()):
            raise StudyError(no_such("site with an upload", site, state.uploads))
        current = state.current
        if current is not None and current.serves(leave_out, [_ONNX] if onnx else [], warm=warm):
            return current, study.result(current.number)
        quorum = study.plan.rules.quorum
        if len(state.uploads) - len(leave_out) < quorum:
            raise StudyError(
                f"{len(state.uploads) - len(leave_out)} sites are in; the plan's quorum is {quorum}"
            )
        number = state.next_number
        occasion = Occasion(number, now(), state.last, len(state.withdrawn))
        last = state.of_these_uploads
        if last is not None and last.serves(leave_out, [], warm=warm):
            # New are evaluations, or a file that is asked for: the model stays to the bit.
            found, start = _again(study, last, occasion), last.start
        else:
            began = self._start() if warm else None
            found = _conclude(study, state.in_order, occasion, leave_out, began)
            start = None if began is None else began.number
        found = _evaluated(study, state, found)
        with make_folder(study.result_folder(number), 0o700) as scratch:
            _write(found, scratch, onnx=onnx)
            files = _digests(scratch, scratch.rglob("*"))
        data: dict[str, object] = {
            "number": number,
            "uploads": {upload.site: upload.digest for upload in state.in_order},
            "left_out": sorted(leave_out),
            "files": files,
            "outcome": outcome(found),
            "start": start,
        }
        if shown := state.evaluations_of(found.model.weights_digest()):
            data["evaluations"] = [accepted.digest for accepted in shown]
        self.record("finish", data, at=occasion.finished)
        return state.results[-1], found.result

    def _start(self) -> Start:
        """The last student, as long as nobody who is in it has left."""
        if not self.state.results:
            raise StudyError("there is no result to start from; finish without --warm")
        last = self.state.results[-1]
        now_in = {upload.site: upload.digest for upload in self.state.uploads.values()}
        gone = sorted(dict(last.uploads).items() - now_in.items())
        if gone:
            raise StudyError(
                f"{gone[0][0]} has withdrawn since result {last.number}, and the model of "
                "that result learnt from it; finish without --warm"
            )
        return _start_of(self.study, last.number)


def outcome(found: Conclusion) -> str:
    """Digest of what was found, whenever and under which number: equal for equal uploads."""
    content = hashlib.sha256(found.result.model_dump_json(exclude=_OCCASIONAL).encode())
    for name, array in sorted(found.model.predictor.samples.arrays().items()):
        content.update(f"\n{name} {tuple(array.shape)}\n".encode())
        content.update(array.contiguous().numpy().tobytes())
    return content.hexdigest()


def _start_of(study: Study, number: int) -> Start:
    model = CalibratedModel.load(study.result_folder(number) / MODEL_FOLDER)
    return Start(number, model.predictor.samples)


def _conclude(
    study: Study,
    uploads: Sequence[AcceptedUpload],
    occasion: Occasion,
    leave_out: frozenset[str],
    start: Start | None,
) -> Conclusion:
    kit = study.kit
    labels = Labels.load(study.folder / _LABELS, kit)
    with threads(kit.plan.learner.threads):
        return conclude(
            kit, labels, uploads, study.read, occasion, leave_out=leave_out, start=start
        )


def _again(study: Study, last: FinishedResult, occasion: Occasion) -> Conclusion:
    """A result's findings and model, on another occasion."""
    folder = study.result_folder(last.number)
    if _digests(folder, folder.rglob("*")) != dict(last.files):
        raise StudyError(f"result {last.number} was altered; run `predbayes study verify`")
    model = CalibratedModel.load(folder / MODEL_FOLDER)
    told = dataclasses.asdict(occasion)
    return Conclusion(
        dataclasses.replace(model, plan=study.plan, number=occasion.number),
        study.result(last.number).model_copy(update=told),
    )


def _evaluated(study: Study, state: State, found: Conclusion) -> Conclusion:
    """The same with what sites have said about the model."""
    received = state.evaluations_of(found.model.weights_digest())
    shown = at_sites(study.plan, [study.read(accepted).info for accepted in received])
    result = found.result.model_copy(update={"at_sites": shown})
    return dataclasses.replace(found, result=result)


def _write(found: Conclusion, folder: Path, *, onnx: bool) -> None:
    """All files of a result."""
    plan, result = found.model.plan, found.result
    texts = {
        "result.json": result.model_dump_json(indent=1) + "\n",
        "report.html": render_report(plan, result, public=False),
        "report-public.html": render_report(plan, result, public=True),
        "model-card.html": render_card(plan, result),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    found.model.save(folder / MODEL_FOLDER)
    if onnx:
        found.model.export_onnx(folder / _ONNX)


def _digests(root: Path, paths: Sequence[Path] | Iterator[Path]) -> dict[str, str]:
    files = sorted(path for path in paths if path.is_file())
    return {path.relative_to(root).as_posix(): file_digest(path) for path in files}


@lru_cache(maxsize=1)
def _intake(plan: str) -> Intake:
    """The checks of a plan, which is the same from step to step."""
    return Intake.of(Plan.loads(plan, PLAN_FILE))


def _remove_from(folder: Path, unwanted: Callable[[str], bool]) -> None:
    found = [name for name in os.listdir(folder) if unwanted(name)]
    for name in found:
        remove(folder / name)
    if found:
        sync_folder(folder)


def _recorded(state: State) -> dict[str, str]:
    """The digest of every file that should be there, by path."""
    files = dict(state.files)
    for accepted in state.accepted:
        files[f"{_UPLOADS}/{accepted.digest}.safetensors"] = accepted.file_digest
    for result in state.results:
        files |= {f"{_RESULTS}/{result.number}/{p}": d for p, d in result.files.items()}
    return files


def _altered(folder: Path, recorded: dict[str, str]) -> list[str]:
    """Files that are missing, altered, or not the study's."""
    passing = {folder / LOCK, folder / RUN_LOCK, folder / LIVE_FILE}
    there = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and path != folder / _LEDGER and path not in passing
    }
    problems = [f"{name} is missing" for name in sorted(recorded.keys() - there.keys())]
    problems += [f"{name} is not the study's" for name in sorted(there.keys() - recorded.keys())]
    for name in sorted(recorded.keys() & there.keys()):
        if file_digest(there[name]) != recorded[name]:
            problems.append(f"{name} was altered")
    return problems


def _rebuilt(study: Study, state: State) -> list[str]:
    """Make the last result again from the files, and compare every file of it."""
    if not state.results:
        return ["there is no result to rebuild; run `predbayes study finish`"]
    last = state.results[-1]
    if state.current is None:
        return [f"result {last.number} is of files that have changed since; finish again"]
    before = study.result(last.number)
    start = None if last.start is None else _start_of(study, last.start)
    occasion = Occasion(last.number, last.at, last.ledger, before.withdrawn)
    found = _conclude(study, state.in_order, occasion, frozenset(last.left_out), start)
    if outcome(found) != last.outcome:
        made, here = before.versions, found.result.versions
        differing = [f"{n} {made.get(n)}, here {here[n]}" for n in here if made.get(n) != here[n]]
        why = f" (it was made with {'; '.join(differing)})" if differing else ""
        return [f"rebuilding gives another result than number {last.number}{why}"]
    if _evaluated(study, state, found).result.at_sites != before.at_sites:
        return [f"result {last.number} does not show what the sites' evaluations say"]
    return []
