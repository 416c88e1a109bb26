"""A study: the run of a plan, in one folder, and the steps that can be taken in it.

    kit/             plan and reference inputs, as every site has them
    labels.json      the coordinator's labels, and which rows they are of
    ledger.jsonl     every step (`predbayes_study.store.ledger`)
    audit.jsonl      who asked for what (`predbayes_study.store.audit`)
    uploads/         DIGEST.safetensors, and attachments as DIGEST.KIND
    results/N/       result.json, reports, card, model/
    .key-path        where the coordinator's key is, if the plan names one

Where there is such a key, kit, results and models have a file that signs the others
(`predbayes_study.trust.statement`). Each step holds the folder's lock and ends with an entry in the
ledger (`predbayes_study.coordinator.step`). Arrays are imported only where they are read: a command
that registers a site or writes a receipt starts in under a second.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic_core import from_json

from predbayes.errors import PredbayesError, StudyError, UploadError
from predbayes.files import digests, file_digest, make_folder
from predbayes.optional import require
from predbayes_study.coordinator.differencing import is_forbidden, told_apart
from predbayes_study.coordinator.signer import KEY_PATH, Signer, private_key
from predbayes_study.coordinator.state import (
    KIT,
    LABELS,
    LEDGER,
    RESULTS,
    UPLOADS,
    FinishedResult,
    State,
)  # fmt: skip
from predbayes_study.coordinator.status import MOST_SITES, status_of
from predbayes_study.coordinator.step import Step, begin_step
from predbayes_study.plan.schema import PLAN_FILE, Plan
from predbayes_study.result.accepted import RESULT_FILE, Accepted, AcceptedAttachment
from predbayes_study.result.schema import Result
from predbayes_study.store.audit import AuditLog, Fact, GatheredLog
from predbayes_study.store.ledger import Ledger
from predbayes_study.trust.coordinator import CoordinatorPublicKey
from predbayes_study.trust.signing import PublicKey
from predbayes_study.trust.statement import KIT_SIGNATURE

if TYPE_CHECKING:
    from predbayes.exchange.upload import Upload
    from predbayes_study.kit.kit import Kit, Labels

REMAINS = (
    "files as they were mailed, carried or stored elsewhere, and copies in backups",
    "what a SuperLink's database or log may still have",
    "blocks of a disk that the system has not written anew",
    "results, reports and models that were made from them, with copies given out",
)
"""What no command here can delete."""

_MOST_STEPS = 1000  # that are written at once
_MOST_SECONDS = 5.0  # that a step waits to be written
_NAME_BYTES = 16  # that tell two studies of one kit apart


@dataclass(frozen=True, slots=True, init=False)
class Study:
    """A study's folder: what is in it, and the steps that can be taken."""

    folder: Path

    def __init__(self, folder: str | Path) -> None:
        object.__setattr__(self, "folder", Path(folder))
        if not (self.folder / LEDGER).is_file():
            raise StudyError(
                f"there is no study in {self.folder}; begin one with `predbayes study init`"
            )

    @property
    def plan_path(self) -> Path:
        """The path of the plan."""
        return self.folder / KIT / PLAN_FILE

    @property
    def plan(self) -> Plan:
        """The plan of the study; quicker to read than the kit."""
        return Plan.load(self.plan_path)

    @property
    def ledger(self) -> Ledger:
        """The record of every step."""
        return Ledger(self.folder / LEDGER)

    @property
    def audit(self) -> AuditLog:
        """The record of who asked for what, refusals included."""
        return AuditLog.at(self.folder)

    def state(self) -> State:
        """Return what the ledger says."""
        return State.of(self.ledger.read())

    def result(self, number: int, *, sites: bool = True) -> Result:
        """Read a numbered result; without its sites, of which there may be many, if not asked."""
        path = self.result_folder(number) / RESULT_FILE
        try:
            if sites:
                return Result.model_validate_json(path.read_bytes(), strict=False)
            found = from_json(path.read_bytes()) | {"sites": []}
            return Result.model_validate(found, strict=False)
        except (OSError, ValueError, TypeError) as error:  # not JSON, or not a result
            raise StudyError(
                f"result {number} cannot be read; run `predbayes study verify`"
            ) from error

    def result_folder(self, number: int) -> Path:
        """Return where a result is."""
        return self.folder / RESULTS / str(number)

    def upload_path(self, accepted: Accepted) -> Path:
        """Return where an accepted upload, evaluation or attachment is."""
        suffix = f".{accepted.kind}" if isinstance(accepted, AcceptedAttachment) else ".safetensors"
        return self.folder / UPLOADS / f"{accepted.digest}{suffix}"

    @property
    def kit(self) -> Kit:
        """Plan and reference inputs."""
        from predbayes_study.kit.kit import Kit

        return Kit.load(self.folder / KIT)

    @property
    def labels(self) -> Labels:
        """The coordinator's labels, and which reference rows they are of."""
        from predbayes_study.kit.kit import Labels

        return Labels.load(self.folder / LABELS, self.kit)

    def read(self, accepted: Accepted) -> Upload:
        """Read an accepted upload; one that changed since, or is not the site's, is refused."""
        from predbayes.exchange.header import Header
        from predbayes.exchange.upload import Upload, small_content
        from predbayes_study.payloads.details import is_signed_by

        path = self.upload_path(accepted)
        # A small one is read once, and what is checked is what is used.
        content = small_content(path)
        digest = None
        if content is not None:
            digest = hashlib.sha256(content).hexdigest()
        elif path.is_file():
            digest = file_digest(path)
        if digest != accepted.file_digest:
            raise StudyError(
                f"the upload of {accepted.site} was altered; run `predbayes study verify`"
            )
        if content is not None:
            header = Header.of(content, path.name)
            upload = Upload.of_bytes(content, header)
        else:
            header = Header.read(path)
            upload = Upload.load(path, header)
        named = (upload.info.site, upload.digest()) == (accepted.site, accepted.digest)
        if not named or not is_signed_by(header, accepted.key, accepted.digest):
            raise StudyError(
                f"{accepted.site} did not sign the upload that stands in its name; run "
                "`predbayes study verify`"
            )
        return upload

    @classmethod
    def init(
        cls,
        folder: str | Path,
        kit_folder: str | Path,
        labels_path: str | Path,
        key_path: str | Path | None = None,
    ) -> Study:
        """Begin a study of a frozen plan in a new folder.

        Args:
            folder: The new folder.
            kit_folder: What `freeze` made of the plan.
            labels_path: The labels that belong to it.
            key_path: The coordinator's private key, if the plan names one. Sites then need the kit
                that is in the new folder: it is signed, and names the study.
        """
        from predbayes_study.kit.kit import Kit, Labels

        folder = Path(folder)
        if folder.exists():
            raise StudyError(f"{folder} exists; give another folder with --study")
        kit = Kit.load(kit_folder)
        _require_fresh(kit, key_path)
        Labels.load(labels_path, kit)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with make_folder(folder, 0o700) as scratch:
            shutil.copytree(kit_folder, scratch / KIT)
            shutil.copyfile(labels_path, scratch / LABELS)
            (scratch / LABELS).chmod(0o600)
            kit = Kit.load(scratch / KIT)  # what is signed is the copy, which nobody else changes
            Labels.load(scratch / LABELS, kit)
            (scratch / UPLOADS).mkdir()
            (scratch / RESULTS).mkdir()
            if key_path is not None:
                (scratch / KEY_PATH).write_bytes(str(Path(key_path).absolute()).encode())
            _begin(scratch, kit)
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
        noted = self.audit.during("admit", site=site, key=key.fingerprint)
        with noted, begin_step(self) as step:
            is_new = step.admit(site, key, rows)
            step.flush()
            return is_new

    def admit_all(
        self, keys: Mapping[str, PublicKey], refused: list[PredbayesError] | None = None
    ) -> int:
        """Record the keys of several sites, as `admit` does, in batches; return how many are new.

        Args:
            keys: The key of each site.
            refused: Where to note why a site is refused; the others are admitted all the same.
                Without it a refusal ends it, and those before it stay.
        """
        with begin_step(self) as step, _Batch(step, self.audit) as batch:
            new = 0
            for site, key in keys.items():
                try:
                    with batch.log.during("admit", site=site, key=key.fingerprint):
                        new += step.admit(site, key)
                except PredbayesError as error:
                    if refused is None:
                        batch.end()
                        raise
                    refused.append(error)
                if batch.is_full:
                    batch.end()
            batch.end()
            return new

    def add(self, path: str | Path) -> Accepted | None:
        """Check a file and take it in; None if it is in already."""
        with begin_step(self) as step, self.audit.during("add", file=Path(path).name) as what:
            accepted = _add(step, Path(path), what)
            step.flush()
            return accepted

    def add_all(
        self, paths: Iterable[str | Path], *, uploads_only: bool = False
    ) -> Iterator[Accepted | UploadError | None]:
        """Take in several files, as `add` does, in batches; one lock for all.

        Each refusal is given in place of an exception. What is given is in the ledger.

        Args:
            paths: The files.
            uploads_only: Whether an evaluation, which may be sealed so that nobody sees it before,
                is refused.
        """
        answers: list[Accepted | UploadError | None] = []
        with begin_step(self) as step, _Batch(step, self.audit) as batch:
            for path in map(Path, paths):
                try:
                    with batch.log.during("add", file=path.name) as what:
                        answers.append(_add(step, path, what, uploads_only=uploads_only))
                except UploadError as error:
                    answers.append(error)
                if batch.is_full:
                    batch.end()
                    yield from answers
                    answers.clear()
            batch.end()
            yield from answers

    def receipt(self, site: str) -> bytes:
        """Return a signed receipt for a site: its key, what it sent, the ledger's head."""
        with self.audit.during("receipt", site=site), begin_step(self) as step:
            return step.receipt(site)

    def delete(self, site: str) -> bytes | None:
        """Delete the bytes of what a site sent, and return a signed receipt if there is a key.

        Results stay as they are, and digests stay in the ledger; a new result cannot be made of
        what is deleted.
        """
        with self.audit.during("delete", site=site) as what, begin_step(self) as step:
            what["files"] = len(step.delete(site))
            return None if step.signer is None else step.signer.deletion(site, REMAINS)

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
        onnx: bool = False,
        device: str = "cpu",
        openings: Sequence[str | Path] = (),
    ) -> tuple[FinishedResult, Result]:
        """Make a numbered result of what is in; the last one, if nothing changed since.

        Args:
            leave_out: Sites whose uploads are not pooled; they are shown all the same.
            onnx: Also write the model for ONNX runtimes.
            device: Where networks are run and trained: ``cpu``, ``cuda``, ``auto``. Another device
                than the CPU gives other last digits, so `verify` cannot make the result again.
            openings: Where sums are sealed: what each key holder opened.
        """
        from predbayes_study.coordinator.finish import finish

        if onnx:
            require("onnxscript", "core[onnx]")
        with self.audit.during("finish", long=True) as what, begin_step(self) as step:
            made = finish(
                step,
                frozenset(leave_out),
                onnx=onnx,
                device=device,
                openings=[*map(Path, openings)],
            )
            what |= {"result": made[0].number, "outcome": made[0].outcome}
            return made

    def told_apart(self, leave_out: Iterable[str] = ()) -> list[str]:
        """Say from which earlier results one without these sites differs by one site alone.

        Where the plan forbids such a result nothing is said: `finish` refuses it.
        """
        return [] if is_forbidden(self.plan) else told_apart(self.state(), leave_out)

    def verify(
        self,
        *,
        rebuild: bool = False,
        key: CoordinatorPublicKey | None = None,
        contains: Iterable[str] = (),
    ) -> list[str]:
        """Return everything that is not as the ledger says, as one line each.

        Args:
            rebuild: Also make the last result again from the files, and compare it.
            key: The coordinator's, from himself; without it, the key is the one in the plan.
            contains: Heads of the ledger that somebody noted, as digests or in words; or the paths
                of receipts, which are compared with the ledger at the entry where they were made.
        """
        from predbayes_study.coordinator.verify import verify

        return verify(self, rebuild=rebuild, key=key, contains=contains)

    def _repr_html_(self) -> str:
        return status_of(self, MOST_SITES)._repr_html_()


@dataclass(slots=True)
class _Batch:
    """Steps whose entries are written at once, and the lines of the audit log that tell of them."""

    step: Step
    audit: AuditLog
    log: GatheredLog = field(init=False)
    began: float = 0.0

    def __enter__(self) -> Self:
        self.log, self.began = GatheredLog(self.audit.path), time.monotonic()
        return self

    @property
    def is_full(self) -> bool:
        """Whether it has taken so much, or so long, that it should be written."""
        waits = time.monotonic() - self.began > _MOST_SECONDS
        return waits or len(self.log.waiting) >= _MOST_STEPS

    def end(self) -> None:
        """Write it, and begin the next one."""
        self.step.flush()
        self.log.write()
        self.began = time.monotonic()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.log.write(undone=True)  # if anything is left, it never was


def _add(
    step: Step, path: Path, what: dict[str, Fact], *, uploads_only: bool = False
) -> Accepted | None:
    """Take in a file, and tell what it is."""
    accepted = step.add(path, uploads_only=uploads_only)
    if accepted is None:
        what["again"] = True
    else:
        what |= {"site": accepted.site, "upload": accepted.digest}
    return accepted


def _require_fresh(kit: Kit, key_path: str | Path | None) -> None:
    """Refuse a kit that is of a study already, or a key that its plan does not name."""
    if (kit.folder / KIT_SIGNATURE).exists():
        raise StudyError(f"{kit.folder} is the kit of a study that has begun; freeze a new one")
    if key_path is not None and kit.plan.coordinator is None:
        raise StudyError("the plan names no coordinator's key: freeze it with --key")


def _begin(folder: Path, kit: Kit) -> None:
    """Write the first entry and, where there is a key, the kit's signature, which names it."""
    files = digests(folder, [*(folder / KIT).rglob("*"), folder / LABELS])
    data: dict[str, object] = {"plan": kit.digest, "files": files}
    if kit.plan.coordinator is None:
        Ledger(folder / LEDGER).append("init", data)
        return
    public = kit.plan.coordinator.signing.hex
    key = private_key(folder, public, kit.plan.coordinator.encryption).signing
    data |= {"key": public, "name": secrets.token_bytes(_NAME_BYTES).hex()}
    begun = Ledger(folder / LEDGER).append("init", data, key=key)
    names = {name.removeprefix(f"{KIT}/"): d for name, d in files.items() if name != LABELS}
    content = Signer(key, State.of([begun])).files("kit", names)
    (folder / KIT / KIT_SIGNATURE).write_bytes(content)
