"""What the coordinator says of a study, in a file that he signed.

    kit.sig            in the kit: its files, and the study that it belongs to
    NAME.receipt       for a site: its key, what it sent, and the ledger's head at that time
    NAME.deletion      for a site: which of its files are deleted, and what could not be
    result.sig         in a result's folder: its files, the model's among them
    model.sig          in a model's folder: its files, for whoever has no more than the model
    adopted.sig        in an adopted model's folder, and by the site: its adjustment of the model

Two lines: JSON, and the signature of its bytes. A study is named by the digest of the first entry
of its ledger, which has a random number in it: two studies of one kit have different names. Every
statement carries the ledger's head, so whoever holds one can tell later that a ledger is another.

All of it but the last can be checked with the coordinator's public key alone, without a network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from predbayes.errors import StudyError
from predbayes.exchange.strict import SiteName, Strict
from predbayes.files import digests, open_regular
from predbayes_study.trust.signing import PublicKey, SigningKey

KIT_SIGNATURE, RESULT_SIGNATURE, MODEL_SIGNATURE = "kit.sig", "result.sig", "model.sig"
ADOPTED_SIGNATURE = "adopted.sig"
RECEIPT, DELETION = ".receipt", ".deletion"

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_PART = "[A-Za-z0-9][A-Za-z0-9._-]*"
FileName = Annotated[str, Field(pattern=f"^{_PART}(/{_PART})*$")]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]

_MAX_BYTES = 1_000_000


class Statement(Strict):
    """What every statement has: of which study it is, and when in its ledger it was made."""

    format: Literal[1] = 1
    kind: Literal["kit", "receipt", "result", "model", "deletion", "adoption"]
    plan: Digest
    study: Digest  # of the ledger's first entry
    head: Digest  # of its last entry, when this was said
    number: Annotated[int, Field(gt=0)]  # of that entry

    @property
    def heads(self) -> dict[int, str]:
        """The digests of entries of the ledger that it states, by number."""
        return {self.number: self.head}


class FilesStatement(Statement):
    """The files of a folder."""

    kind: Literal["kit", "result", "model"]
    files: dict[FileName, Digest]

    def problems(self, folder: Path, own: str, without: Collection[str] = ()) -> list[str]:
        """List the files that are missing, altered, or not among those that were signed.

        Args:
            folder: Where they are.
            own: The name of the file with this statement.
            without: Names of files that may be missing.
        """
        there = digests(folder, (path for path in folder.rglob("*") if path != folder / own))
        return [
            *(f"{name} is missing" for name in sorted(self.files.keys() - {*there, *without})),
            *(f"{name} is not signed" for name in sorted(there.keys() - self.files.keys())),
            *(f"{name} was altered" for name in sorted(there) if self._differs(name, there[name])),
        ]

    def _differs(self, name: str, digest: str) -> bool:
        return self.files.get(name, digest) != digest


class Receipt(Statement):
    """What the study has of a site."""

    kind: Literal["receipt"] = "receipt"
    at: Time
    site: SiteName
    key: Digest  # with which it was admitted
    upload: Digest | None = None
    evaluations: tuple[Digest, ...] = ()
    entry: Annotated[str, Field(max_length=2000)] = ""  # that added the upload, as in the ledger

    @property
    def heads(self) -> dict[int, str]:
        """The ledger's head and, before it, the entry that added the upload."""
        added = self._added()
        return super().heads if added is None else {added[0]: added[1]} | super().heads

    def proves_upload(self) -> bool:
        """Return whether its entry says that the ledger has the upload; true without an upload."""
        return self._added() is not None or (self.upload is None and not self.entry)

    def _added(self) -> tuple[int, str] | None:
        """Number and digest of the entry; None if it does not add this upload before the head."""
        digest = hashlib.sha256(self.entry.encode()).hexdigest()
        try:
            told = json.loads(self.entry)
            number, data = told["number"], told["data"]
            said = told["step"], data["site"], data["digest"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        is_there = type(number) is int and 0 < number <= self.number
        is_there = is_there and (number < self.number or digest == self.head)
        return (number, digest) if is_there and said == ("add", self.site, self.upload) else None


class Deletion(Statement):
    """Which files of a site are deleted."""

    kind: Literal["deletion"] = "deletion"
    at: Time
    site: SiteName
    removed: dict[Digest, Time]  # content digests, and when it was recorded
    remains: tuple[str, ...]  # what a command cannot delete


class Adoption(Statement):
    """A site's own adjustment of a model; study, head and number are those of the model.

    The site signs it, with the key that it names: whoever reads it must know whether that is the
    site's.
    """

    kind: Literal["adoption"] = "adoption"
    site: SiteName
    key: Digest
    model: Digest  # of the model.json that has the adjustment in it


S = TypeVar("S", bound=Statement)


def signed(statement: Statement, key: SigningKey) -> bytes:
    """Return a statement as a file."""
    content = statement.model_dump_json().encode()
    return content + f"\n{key.sign(statement.kind, content)}\n".encode()


def read_signed(path: Path, kind: type[S], key: PublicKey, says: Mapping[str, object]) -> S:
    """Read a statement; one that this key did not sign, or that says something else, is refused.

    Args:
        path: The file.
        kind: What it should state.
        key: The coordinator's.
        says: What its fields must be.
    """
    statement, content, signature = _parsed(path, kind)
    if not key.verifies(statement.kind, content, signature):
        raise StudyError(f"{path.name} is not signed with the coordinator's key, or was altered")
    return _saying(statement, says, path)


def read_adoption(path: Path, says: Mapping[str, object]) -> Adoption:
    """Read what a site signed of its adjustment, with the key that it names."""
    adoption, content, signature = _parsed(path, Adoption)
    if not PublicKey(adoption.key).verifies(adoption.kind, content, signature):
        raise StudyError(f"{path.name} is not signed with the key that it names, or was altered")
    return _saying(adoption, says, path)


def _parsed(path: Path, kind: type[S]) -> tuple[S, bytes, str]:
    """The statement, its bytes, and the signature of these, which nobody has checked yet."""
    content, _, signature = _read(path).rpartition(b"\n")[0].rpartition(b"\n")
    try:
        statement = kind.model_validate_json(content)
    except ValidationError as error:
        raise StudyError(f"{path.name} is no {_kind(kind)} of predbayes") from error
    return statement, content, signature.decode("ascii", errors="replace")


def _saying(statement: S, says: Mapping[str, object], path: Path) -> S:
    wrong = [name for name, value in says.items() if getattr(statement, name) != value]
    if wrong:
        raise StudyError(f"{path.name} is of another {wrong[0]}")
    return statement


def _kind(kind: type[Statement]) -> str:
    return {Receipt: "receipt", Deletion: "receipt of a deletion"}.get(kind, "signature")


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(_MAX_BYTES)
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror}") from error
    if not content.endswith(b"\n"):
        raise StudyError(f"{path.name} is cut short")
    return content
