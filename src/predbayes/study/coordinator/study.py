"""A study: the run of a plan, in one folder, and the steps that can be taken in it.

Each step holds the folder's lock and ends with an entry in the ledger: see
`predbayes.study.coordinator.step`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from predbayes.errors import StudyError, UploadError
from predbayes.exchange.signing import PublicKey
from predbayes.files import make_folder
from predbayes.optional import require
from predbayes.study.coordinator.finish import digests, finish
from predbayes.study.coordinator.folder import KIT, LABELS, LEDGER, RESULTS, UPLOADS, StudyFolder
from predbayes.study.coordinator.state import FinishedResult
from predbayes.study.coordinator.step import Step, begin_step
from predbayes.study.coordinator.verify import verify
from predbayes.study.kit.kit import Kit, Labels
from predbayes.study.result.accepted import Accepted
from predbayes.study.result.schema import Result
from predbayes.study.store.audit import AuditLog
from predbayes.study.store.ledger import Ledger


@dataclass(frozen=True, slots=True, init=False)
class Study(StudyFolder):
    """A study's folder, and the steps that can be taken in it."""

    @classmethod
    def init(cls, folder: str | Path, kit_folder: str | Path, labels_path: str | Path) -> Study:
        """Begin a study of a frozen plan in a new folder."""
        folder = Path(folder)
        if folder.exists():
            raise StudyError(f"{folder} exists; give another folder with --study")
        kit = Kit.load(kit_folder)
        Labels.load(labels_path, kit)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with make_folder(folder, 0o700) as scratch:
            shutil.copytree(kit_folder, scratch / KIT)
            shutil.copyfile(labels_path, scratch / LABELS)
            (scratch / LABELS).chmod(0o600)
            (scratch / UPLOADS).mkdir()
            (scratch / RESULTS).mkdir()
            files = digests(scratch, [*(scratch / KIT).rglob("*"), scratch / LABELS])
            Ledger(scratch / LEDGER).append("init", {"plan": kit.digest, "files": files})
            AuditLog.at(scratch).note("init", plan=kit.digest)
        return cls(folder)

    def admit(self, site: str, key: PublicKey, rows: int | None = None) -> bool:
        """Record a site's key; False if there is nothing new.

        Args:
            site: Its name.
            key: By which its files are known.
            rows: How many it trains on, as agreed with it. An upload of others is refused. Without
                them the site's own word counts, and every page says so.
        """
        with self._noted_admission(site, key), begin_step(self) as step:
            return step.admit(site, key, rows)

    def admit_all(self, keys: Mapping[str, PublicKey]) -> None:
        """Record the keys of several sites, as `admit` does; one lock for all."""
        with begin_step(self) as step:
            for site, key in keys.items():
                with self._noted_admission(site, key):
                    step.admit(site, key)

    def add(self, path: str | Path) -> Accepted | None:
        """Check a file and take it in; None if it is in already."""
        with begin_step(self) as step:
            return self._add(step, Path(path))

    def add_all(self, paths: Iterable[str | Path]) -> Iterator[Accepted | UploadError | None]:
        """Take in several files, as `add` does; one lock for all.

        Each refusal is given in place of an exception.
        """
        with begin_step(self) as step:
            for path in paths:
                try:
                    yield self._add(step, Path(path))
                except UploadError as error:
                    yield error

    def withdraw(self, site: str) -> str:
        """Take out all that a site sent, delete its bytes, and return its upload's digest."""
        with self.audit.during("withdraw", site=site) as what, begin_step(self) as step:
            digest = step.withdraw(site)
            what["upload"] = digest
            return digest

    def finish(
        self,
        *,
        leave_out: Sequence[str] = (),
        warm: bool = False,
        onnx: bool = False,
        device: str = "cpu",
    ) -> tuple[FinishedResult, Result]:
        """Make a numbered result of what is in; the last one, if nothing changed since.

        Args:
            leave_out: Sites whose uploads are not pooled; they are shown all the same.
            warm: Start from the last student; the result is then a function of that one, too.
            onnx: Also write the model for ONNX runtimes.
            device: Where networks are run and trained: ``cpu``, ``cuda``, ``auto``. Another device
                than the CPU gives other last digits, so `verify` cannot make the result again.
        """
        if onnx:
            require("onnxscript", "onnx")
        with self.audit.during("finish", long=True) as what, begin_step(self) as step:
            made = finish(step, frozenset(leave_out), warm=warm, onnx=onnx, device=device)
            what |= {"result": made[0].number, "outcome": made[0].outcome}
            return made

    def verify(self, *, rebuild: bool = False) -> list[str]:
        """Return everything that is not as the ledger says, as one line each.

        Args:
            rebuild: Also make the last result again from the files, and compare it.
        """
        return verify(self, rebuild=rebuild)

    def _noted_admission(self, site: str, key: PublicKey) -> AbstractContextManager[object]:
        return self.audit.during("admit", site=site, key=key.fingerprint)

    def _add(self, step: Step, path: Path) -> Accepted | None:
        with self.audit.during("add", file=path.name) as what:
            accepted = step.add(path)
            if accepted is None:
                what["again"] = True
            else:
                what |= {"site": accepted.site, "upload": accepted.digest}
            return accepted
