"""What somebody says and signs, in one form: JSON, and the signature of its bytes.

    kit.sig            in the kit: its files, and the study that it belongs to
    NAME.receipt       for a site: its key, what it sent, and the ledger's head at that time
    NAME.deletion      for a site, which of its files are deleted; or by a site, what it deleted
    result.sig         in a result's folder: its files, the model's among them
    model.sig          in a model's folder: its files, for those who have no more than the model
    adopted.sig        in an adopted model's folder, and by the site: its adjustment of the model

Approvals, surveys and what key holders open are signed in the same way. Two parts, each with a line
end: JSON, and the signature of its bytes under the statement's kind. So a statement of one kind is
never one of another.

What the coordinator signs of a study names it by the digest of the first entry of its ledger, which
has a random number in it: two studies of one kit have different names. Each such statement carries
the ledger's head, so anyone who holds one can show later that a ledger is another. The
coordinator's public key is enough to check all of it, without a network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field, ValidationError

from predbayes.errors import KeyFileError, StudyError
from predbayes.exchange.strict import SiteName, Strict
from predbayes.files import file_digest, leaves_of, open_regular
from predbayes.text import printable
from predbayes_study.trust.signing import Kind, PublicKey, SigningKey, is_hex

KIT_SIGNATURE, RESULT_SIGNATURE, MODEL_SIGNATURE = "kit.sig", "result.sig", "model.sig"
ADOPTED_SIGNATURE, IN_TOTO = "adopted.sig", "result.intoto.jsonl"
RECEIPT, DELETION = ".receipt", ".deletion"

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_PART = "[A-Za-z0-9][A-Za-z0-9._-]*"
FileName = Annotated[str, Field(pattern=f"^{_PART}(/{_PART})*$")]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]

_MAX_BYTES = 1_000_000
_SIGNATURE = 128  # hexadecimal digits
_SHOWN = 200  # characters of what is wrong


class Statement(Strict):
    """What can be signed; its kind is signed with it."""

    format: Literal[1] = 1
    kind: Kind

    @property
    def signer(self) -> str:
        """The public key that the statement names as its signer's; empty where it names none."""
        return ""


S = TypeVar("S", bound=Statement)


@dataclass(frozen=True, slots=True)
class Signed(Generic[S]):
    """A statement as it was signed."""

    statement: S
    content: bytes  # its JSON, of which every byte is signed
    signature: str  # empty: it is not signed yet
    name: str = ""  # of its file, for refusals

    @classmethod
    def of(cls, statement: S, key: SigningKey | None, *, indent: int | None = None) -> Signed[S]:
        """Sign a statement; without a key it stays unsigned."""
        content = statement.model_dump_json(indent=indent).encode()
        return cls(statement, content, "" if key is None else key.sign(statement.kind, content))

    @classmethod
    def parse(cls, form: type[S], content: bytes, name: str) -> Signed[S]:
        """Take apart what `file` made. Nobody has checked the signature yet.

        Args:
            form: Class of the statement.
            content: All bytes of the file.
            name: Name of the file, for refusals.
        """
        text, _, last = content.removesuffix(b"\n").rpartition(b"\n")
        signature = last.decode("ascii", errors="replace")
        if not content.endswith(b"\n") or (signature and not is_hex(signature, _SIGNATURE)):
            raise StudyError(f"{name} is cut short, or has no signature of predbayes")
        try:
            return cls(form.model_validate_json(text), text, signature, name)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            wrong = printable(" ".join([*map(str, first["loc"]), first["msg"]]))[:_SHOWN]
            raise StudyError(f"{name} is not a {_named(form)} of predbayes: {wrong}") from error

    @classmethod
    def read(cls, path: Path, form: type[S], max_bytes: int = _MAX_BYTES) -> Signed[S]:
        """Read a file, as `parse` does."""
        try:
            with open_regular(path) as file:
                content = file.read(max_bytes)
        except OSError as error:
            raise StudyError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise StudyError(f"{path.name} is not a file") from error
        return cls.parse(form, content, path.name)

    def file(self) -> bytes:
        """Return the bytes of its file."""
        return self.content + f"\n{self.signature}\n".encode()

    def is_by(self, key: str) -> bool:
        """Return whether a public key, as hexadecimal digits, signed it."""
        try:
            return PublicKey(key).verifies(self.statement.kind, self.content, self.signature)
        except KeyFileError:
            return False  # no key at all

    def checked(self, key: PublicKey | None = None, **says: object) -> S:
        """Return the statement, if this key signed it and it says what it must.

        Args:
            key: Whose signature it needs; without it, that of the key that the statement names.
            says: Fields of the statement, such as its plan and study, with what they must be.
        """
        if not self.is_by(self.statement.signer if key is None else key.hex):
            whose = "the key that it names" if key is None else "the coordinator's key"
            raise StudyError(f"{self.name} is not signed with {whose}, or was altered")
        for name, value in says.items():
            if getattr(self.statement, name) != value:
                raise StudyError(f"{self.name} belongs to a different {name}")
        return self.statement


def unsigned(content: bytes) -> bytes:
    """Return the bytes of a signed file as they were before it was signed."""
    return content.removesuffix(b"\n").rpartition(b"\n")[0] + b"\n\n"


class StudyStatement(Statement):
    """A statement about a study: which one, and where its ledger ended when it was made."""

    kind: Literal["kit", "receipt", "result", "model", "deletion", "adoption"]
    plan: Digest
    study: Digest  # of the ledger's first entry
    head: Digest  # of its last entry, when this was said
    number: Annotated[int, Field(gt=0)]  # of that entry

    @property
    def heads(self) -> dict[int, str]:
        """The digests of entries of the ledger that it states, by number."""
        return {self.number: self.head}


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a folder, each of which was read once: what is checked is what is used.

    On a share files may change between two readings.
    """

    path: Path
    digests: Mapping[str, str]  # of the bytes, by path below the folder
    contents: Mapping[str, bytes]  # of those that are used

    @classmethod
    def read(cls, path: Path, wanted: Collection[str] = ()) -> Folder:
        """Read all files of a folder, and keep what is in some of them."""
        found, contents = {}, {}
        for file in leaves_of(path):
            name = file.relative_to(path).as_posix()
            if not file.is_file():
                found[name] = ""  # a pipe, an empty folder, a link to one: nobody signed it
            elif name in wanted:
                with open_regular(file) as opened:
                    contents[name] = opened.read()
                found[name] = hashlib.sha256(contents[name]).hexdigest()
            else:
                found[name] = file_digest(file)
        return cls(path, found, contents)

    def content(self, name: str) -> bytes:
        """Return what is in a file; one that is not there is refused."""
        try:
            return self.contents[name]
        except KeyError as error:
            raise StudyError(f"there is no {name} in {self.path}") from error

    def inner(self, name: str) -> Folder:
        """Return a folder in it."""
        inside = f"{name}/"
        names = [path for path in self.digests if path.startswith(inside)]
        digests = {path.removeprefix(inside): self.digests[path] for path in names}
        kept = {p.removeprefix(inside): self.contents[p] for p in names if p in self.contents}
        return Folder(self.path / name, digests, kept)


class FilesStatement(StudyStatement):
    """The files of a folder."""

    kind: Literal["kit", "result", "model"]
    files: dict[FileName, Digest]

    def problems(self, folder: Folder, own: str, without: Collection[str] = ()) -> list[str]:
        """List the files that are missing, altered, or not among those that were signed.

        Args:
            folder: Where they are, as they were read.
            own: The name of the file with this statement.
            without: Names of files that may be missing.
        """
        there = {name: digest for name, digest in folder.digests.items() if name != own}
        return [
            *(f"{name} is missing" for name in sorted(self.files.keys() - {*there, *without})),
            *(f"{name} is not signed" for name in sorted(there.keys() - self.files.keys())),
            *(f"{name} was altered" for name in sorted(there) if self._differs(name, there[name])),
        ]

    def _differs(self, name: str, digest: str) -> bool:
        return self.files.get(name, digest) != digest


class Receipt(StudyStatement):
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


class Deletion(StudyStatement):
    """Which files of a site are deleted."""

    kind: Literal["deletion"] = "deletion"
    at: Time
    site: SiteName
    removed: dict[Digest, Time]  # content digests, and when it was recorded
    remains: tuple[str, ...]  # what a command cannot delete


class Adoption(StudyStatement):
    """A site's own adjustment of a model; study, head and number are those of the model.

    The site signs it, with the key that it names: whoever reads it must know whether that is the
    site's.
    """

    kind: Literal["adoption"] = "adoption"
    site: SiteName
    key: Digest
    model: Digest  # of the model.json that has the adjustment in it

    @property
    def signer(self) -> str:
        """The site's key."""
        return self.key


_NAMES = {"receipt": "receipt", "deletion": "receipt of a deletion", "survey": "survey"}


def _named(form: type[Statement]) -> str:
    """Return what a file of such statements is called."""
    return _NAMES.get(str(form.model_fields["kind"].default), "signature")
