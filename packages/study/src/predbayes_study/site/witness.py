"""What a site can check of the coordinator's, offline, and the ledger heads that it remembers.

Kit, receipt, result and model are signed with the key that the plan names. Whoever has compared the
plan's words, or has the coordinator's public key from himself, needs nothing else to check them.

Each of them carries a head of the study's ledger. A site keeps those that it has seen in
`heads.jsonl` beside its `site.toml`, with the key that signed them, and puts the newest of the
plan's own key into what it sends. A coordinator who
shows two sites, or one site at two times, different ledgers is found out: by the site, if it sees
two heads for one entry; by `predbayes study verify`, if a file names a head that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from predbayes.errors import PredbayesError, StudyError
from predbayes.exchange.header import Header
from predbayes.exchange.strict import Strict
from predbayes.exchange.upload import Upload
from predbayes_study.payloads.details import is_signed_by
from predbayes_study.plan.schema import PLAN_FILE, Plan
from predbayes_study.result.model import HEADER_FILE, model_folder, plan_of
from predbayes_study.store.journal import Journal
from predbayes_study.trust.coordinator import CoordinatorPublicKey
from predbayes_study.trust.sealed import SUFFIX
from predbayes_study.trust.signing import PublicKey, fingerprint
from predbayes_study.trust.statement import (
    DELETION,
    KIT_SIGNATURE,
    MODEL_SIGNATURE,
    RESULT_SIGNATURE,
    Deletion,
    Digest,
    FilesStatement,
    Folder,
    Receipt,
    Signed,
    StudyStatement,
)

FILE = "heads.jsonl"
_UPLOAD = ".safetensors"
_PATIENCE = 10  # seconds for another command to note its head


class _Seen(Strict):
    """A head that a site has seen, and the key that signed it."""

    study: Digest
    number: Annotated[int, Field(gt=0)]
    head: Digest
    key: Digest


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads that a site has seen."""

    folder: Path

    def note(self, statement: StudyStatement, key: PublicKey) -> str:
        """Remember a statement's head, and return the newest of its study.

        A head that contradicts an earlier one is refused. A study is one of the key that signed:
        whoever names it under a key of his own says nothing about it.
        """
        with self._journal.writing(_PATIENCE) as append:
            known = self._known((statement.study, key.hex))
            for number, head in statement.heads.items():
                if known.get(number, head) != head:
                    raise StudyError(
                        f"the coordinator has shown two ledgers: their entries {number} "
                        f"differ; keep both files, and {self._journal.path}"
                    )
                if number not in known:
                    seen = _Seen(study=statement.study, number=number, head=head, key=key.hex)
                    append("saw", seen)
                known[number] = head
        return known[max(known)]

    def _known(self, asked: tuple[str, str]) -> dict[int, str]:
        """Heads of a study under a key by number of the entry."""
        seen = (record for _, record in self._journal.read())
        return {one.number: one.head for one in seen if (one.study, one.key) == asked}

    @property
    def _journal(self) -> Journal[_Seen]:
        return Journal(self.folder / FILE, {"saw": _Seen})


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found in some files of a study."""

    statements: tuple[StudyStatement, ...]
    problems: tuple[str, ...]
    key: CoordinatorPublicKey | None  # by which they were checked
    unproven: tuple[Path, ...] = ()  # name evaluations or deletions, of which no entry is in them


def verify_files(
    paths: Sequence[Path], key: CoordinatorPublicKey | None = None, words: str = ""
) -> Verified:
    """Check kits, results, models, receipts and uploads of one study.

    Args:
        paths: A folder with a kit, a result or a model; a receipt; or an upload, which a receipt
            among the paths must name.
        key: The coordinator's, from himself; without it, the key in the first plan.
        words: The plan's fingerprint, as it was read out; empty if nobody compares it here.
    """
    plans = [_plan_in(path) for path in paths if path.is_dir()]
    key = key or next((plan.coordinator for plan in plans), None)
    if key is None:
        unsigned = "the plan names no coordinator's key: nothing of the coordinator's is signed"
        why = unsigned if plans else "give the kit, too, or the coordinator's key"
        return Verified((), (why,), None)
    problems: list[str] = []
    found: list[StudyStatement] = []
    unproven: list[Path] = []
    for path in (path for path in paths if path.suffix not in (_UPLOAD, SUFFIX)):
        try:
            statement, wrong = _statement(path, key)
            found.append(statement)
            is_of_others = isinstance(statement, Receipt) and bool(statement.evaluations)
            if is_of_others or isinstance(statement, Deletion):
                unproven.append(path)
            problems += [f"{path}: {problem}" for problem in wrong]
        except PredbayesError as error:
            problems.append(f"{path}: {error}")
    problems += _contradictions(found, words)
    for path in (path for path in paths if path.suffix in (_UPLOAD, SUFFIX)):
        problems += _not_received(path, found)
    return Verified(tuple(found), tuple(problems), key, tuple(unproven))


def _statement(path: Path, key: CoordinatorPublicKey) -> tuple[StudyStatement, list[str]]:
    """Read what is said in a place, and list what is not as it says."""
    if path.suffix == DELETION:
        return Signed.read(path, Deletion).checked(key.signing), []
    if not path.is_dir():
        receipt = Signed.read(path, Receipt).checked(key.signing)
        wrong = "it does not prove that the ledger has the upload"
        return receipt, [] if receipt.proves_upload() else [wrong]
    plan = _plan_in(path)
    if plan.coordinator != key:
        raise StudyError("its plan names another coordinator's key")
    return _folder_statement(path, plan, key.signing)


def _folder_statement(path: Path, plan: Plan, key: PublicKey) -> tuple[FilesStatement, list[str]]:
    kind, name = next(
        (kind, name)
        for kind, name, mark in (
            ("kit", KIT_SIGNATURE, PLAN_FILE),
            ("model", MODEL_SIGNATURE, HEADER_FILE),
            ("result", RESULT_SIGNATURE, ""),
        )
        if (path / mark).exists()
    )
    statement = Signed.read(path / name, FilesStatement).checked(key, kind=kind, plan=plan.digest())
    return statement, statement.problems(Folder.read(path), name)


def _plan_in(folder: Path) -> Plan:
    if (folder / PLAN_FILE).is_file():
        return Plan.load(folder / PLAN_FILE)
    return plan_of(model_folder(folder))


def _contradictions(found: Sequence[StudyStatement], words: str) -> Iterator[str]:
    if words and any(fingerprint(statement.plan) != words for statement in found):
        yield "the plan's words are others than those given"
    if len({statement.study for statement in found}) > 1:
        yield "they are not all of one study"
    heads = {head for statement in found for head in statement.heads.items()}
    if len({number for number, _ in heads}) < len(heads):
        yield "the coordinator has shown two ledgers: keep these files"


def _not_received(path: Path, found: Sequence[StudyStatement]) -> Iterator[str]:
    """Yield why no receipt is of an upload."""
    receipts = [statement for statement in found if isinstance(statement, Receipt)]
    if path.suffix == SUFFIX:
        yield f"{path}: it is sealed: give held-back.safetensors, which stayed here"
        return
    try:
        header = Header.read(path)
        digest = Upload.load(path, header).digest()
    except PredbayesError as error:
        yield f"{path}: {error}"
        return
    received = [r for r in receipts if digest in (r.upload, *r.evaluations)]
    deleted = any(isinstance(s, Deletion) and digest in s.removed for s in found)
    if deleted and not received:
        return  # which tells, too, that the study had it
    if not received:
        yield f"{path}: no receipt given here is of this file"
    elif header.signature is not None and not any(
        is_signed_by(header, receipt.key, digest) for receipt in received
    ):
        yield f"{path}: it is not signed with the key that the site was admitted with"
