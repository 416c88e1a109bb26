"""The server's half of a study: one round over nodes that come, go, and come back.

`flower.driver` asks and asks again. Each upload is a file in the study as soon as it is here,
checked as any other file is.

All that must survive is in the study's folder. A new run over the same folder goes on: sites that
are in are not asked.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predbayes.errors import StudyError, UploadError
from predbayes.exchange.header import Signature, from_metadata
from predbayes.exchange.upload import Upload
from predbayes.files import write_bytes
from predbayes_flower import events
from predbayes_flower.driver import Decision, Driver
from predbayes_flower.round import RoundSettings, RoundState
from predbayes_flower.wire import read_upload, sealed_content, to_tensor, words
from predbayes_study.coordinator.intake import Intake
from predbayes_study.coordinator.run_status import RunStatus, one_run
from predbayes_study.coordinator.study import Study
from predbayes_study.payload import EVALUATION
from predbayes_study.report.unlabelled import in_short
from predbayes_study.trust.sealed import read_envelope
from predbayes_study.wording import counted

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60  # with a command that is at work on the study


@dataclass(slots=True)
class StudyHandler:
    """Takes the sites' signed uploads into a study.

    Args:
        study: The study.
        scratch: A folder for uploads that are not in it yet.
    """

    study: Study
    scratch: Path
    files: dict[Path, events.Take] = field(default_factory=dict)  # not in the study yet
    most_bytes: int = field(init=False)
    _plan_digest: str = field(init=False)

    def __post_init__(self) -> None:
        self.most_bytes = Intake.of(self.study.plan).max_bytes
        self._plan_digest = self.study.plan.digest()

    def question(self, _send: events.Send, /) -> Any:
        """Return the digest of the plan, whatever is asked; a node is told nothing else."""
        return words(plan=self._plan_digest)

    def keep(self, take: events.Take, content: Any) -> None:
        """Write an upload as a file, for the study to check."""
        path = self.scratch / f"{len(self.files)}.safetensors"
        site = _write_upload(content, self.most_bytes, path)
        if site != take.site:
            raise UploadError("its upload is in the name of another site")
        self.files[path] = take

    def settle(self, wait: bool, /) -> Iterator[Decision]:
        """Take files into the study, from where nothing can lose them."""
        end = time.monotonic() + (_PATIENCE_SECONDS if wait else 0)
        while self.files:
            yield from self._add()
            if time.monotonic() >= end:
                return
            if self.files:
                time.sleep(1)

    def _add(self) -> list[Decision]:
        """Add files; none if the study is in use."""
        try:
            answers = list(self.study.add_all(list(self.files), uploads_only=True))
        except StudyError as error:
            _log.debug("%s", error)  # a person's command; it is over in a moment
            return []
        decided: list[Decision] = []
        for (path, take), answer in zip(self.files.items(), answers, strict=True):
            decided.append((take, answer if isinstance(answer, UploadError) else None))
            path.unlink(missing_ok=True)
        self.files.clear()
        return decided

    def already(self) -> frozenset[str]:
        """Return the sites that are in, also those that came as a file."""
        return frozenset(self.study.state().uploads)

    def note(self, state: RoundState) -> None:
        """Write how the round stands, for `predbayes study status`."""
        RunStatus(state.standing(), round(state.left, 1)).save(self.study.folder)


@dataclass(frozen=True, slots=True)
class Round:
    """One round over a Flower grid: takes the sites' signed uploads into a study.

    What a site does is said by the plan that it approved, and by nothing else. So a round is no
    `Federation`, which would hand a method's own task to the sites: `FlowerFederation` does that.
    """

    grid: Any
    study: Study
    settings: RoundSettings = field(default_factory=RoundSettings)

    def run(self) -> dict[str, events.SiteState]:
        """Ask, take, ask again; return the state of every site."""
        with tempfile.TemporaryDirectory() as scratch:
            return dict(self.driver(Path(scratch)).run().sites)

    def driver(self, scratch: Path) -> Driver:
        """Return what carries the round out, with a folder for uploads on their way."""
        admitted = frozenset(self.study.state().keys)
        quorum = self.study.plan.rules.quorum
        state = RoundState(admitted, self.settings, time.monotonic(), quorum=quorum)
        return Driver(self.grid, StudyHandler(self.study, scratch), state)


def run_study(
    grid: Any,
    folder: Path,
    settings: RoundSettings,
    *,
    finish: bool = True,
    device: str = "cpu",
) -> dict[str, events.SiteState]:
    """Run a round over a study's folder, and make the result if the quorum is there.

    A sealed sum has to be opened by its key holders first, who are not in the round.
    """
    if folder == Path():
        raise StudyError("the run names no study; give --run-config 'study=\"/srv/study\"'")
    if not folder.is_absolute():
        raise StudyError(f"{folder} is relative; a run needs the absolute path of its study")
    study = Study(folder)
    with one_run(folder):
        sites = Round(grid, study, settings).run()
        num_in = len(study.state().uploads)
        quorum = study.plan.rules.quorum
        if num_in < quorum:
            came = counted(num_in, "site")
            raise StudyError(f"the round ended with {came}; the plan's quorum is {quorum}")
        if study.plan.opening:
            _log.info("the round has ended; next: predbayes study request, for the key holders")
        elif finish:
            all_sites = {**dict.fromkeys(sorted(study.state().keys), "not there"), **sites}
            RunStatus(all_sites, 0.0, finishing=True).save(folder)
            _log.info("the round has ended; the result is being made")
            recorded, result = study.finish(device=device)
            _log.info("result %s: %s", recorded.number, in_short(study.plan, result))
            _log.info("report: %s", study.result_folder(recorded.number) / "report.html")
    return sites


def _write_upload(content: Any, most_bytes: int, path: Path) -> str:
    """Write what came as the file that it is at the site, and return whose it says that it is."""
    metadata, arrays = read_upload(content, most_bytes)
    sealed = None if metadata else sealed_content(arrays)
    if sealed is not None:
        write_bytes(path, sealed)
        return read_envelope(path).site
    upload, signature = unpack_upload(content, most_bytes)
    if upload.info.kind == EVALUATION:
        raise UploadError("its answer is an evaluation and no upload")
    upload.save(path, signature)
    return upload.info.site


def unpack_upload(content: Any, most_bytes: int) -> tuple[Upload, Signature | None]:
    """Read an upload and its signature from a record, whoever sent it."""
    metadata, arrays = read_upload(content, most_bytes)
    info, signature = from_metadata(metadata, "a node's answer")
    return Upload(info, {str(name): to_tensor(a) for name, a in arrays.items()}), signature
