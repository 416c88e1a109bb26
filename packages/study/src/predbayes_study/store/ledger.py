"""The ledger: every step of a study, append-only, each entry chained to the one before.

One line of JSON per entry, in `ledger.jsonl`:

    digest_n = SHA-256(content of entry n, which has digest_(n-1) in it)

so that no entry can be changed, dropped from the middle or put in another order without changing
the last digest, which stands in every report. What the study is, is read from the ledger alone:
a file that no entry names does not count.

If the coordinator has a key, each line also carries his signature of the entry's digest. The digest
covers all entries before, so the last signature is enough to know that the whole ledger is his.

A process may die while it writes. An entry counts when all of it is there, if need be without the
end of its line, and the files that it names are in place before it is written; a line cut short is
removed by the next step that writes, as the step that wrote it never ended.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from predbayes.errors import StudyError
from predbayes.files import SHARED, open_regular
from predbayes.system import open_in_place
from predbayes_study.trust.signing import PublicKey, SigningKey

FIRST = "0" * 64
"""What stands for the digest of an entry before the first."""

_TAIL = 1 << 16  # bytes that are looked at first for the last line

_encoded = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode


@dataclass(frozen=True)  # without slots, where the digest is kept
class Entry:
    """One step: what was done, when, and what it was done with."""

    number: int
    at: str  # ISO 8601, UTC
    step: str
    data: Mapping[str, Any]
    previous: str
    signature: str = ""  # of the digest

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all of it, the chain up to here included."""
        return hashlib.sha256(self.content().encode()).hexdigest()

    def line(self) -> bytes:
        """The entry as it stands in the file."""
        beside = f',"signature":"{self.signature}"' if self.signature else ""
        return f'{{"digest":"{self.digest}","entry":{self.content()}{beside}}}\n'.encode()

    def signed(self, key: SigningKey | None) -> Entry:
        """Return the same entry with a signature, if there is a key."""
        if key is None:
            return self
        return replace(self, signature=key.sign("ledger head", self.digest.encode()))

    def is_signed_by(self, key: str) -> bool:
        """Return whether it has the signature of a public key; without a key, whether it has none.

        Args:
            key: As hexadecimal digits, or empty.
        """
        if not key:
            return not self.signature
        return PublicKey(key).verifies("ledger head", self.digest.encode(), self.signature)

    def content(self) -> str:
        """What the digest is of."""
        names = ("number", "at", "step", "data", "previous")
        return _encoded({name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Ledger:
    """A file of entries."""

    path: Path

    def entries(self) -> list[Entry]:
        """All entries; a ledger whose chain is broken is refused.

        A last line that was cut short is left out: see `mend`.
        """
        return list(self.read())

    def read(self) -> Iterator[Entry]:
        """Yield the entries, as `entries` does."""
        last = 0, FIRST
        for line in self._lines():
            entry = _entry(line if line.endswith(b"\n") else line + b"\n", last)
            if entry is not None:
                yield entry
                last = entry.number, entry.digest
            elif line.endswith(b"\n"):
                raise StudyError(f"entry {last[0] + 1} of {self.path.name} was altered")

    def entry(self, number: int) -> Entry:
        """Read one entry by its number, without what is around it."""
        line = next(itertools.islice(self._lines(), number - 1, None), b"")
        entry = _parsed(line)
        if entry is None or entry.number != number:
            raise StudyError(f"entry {number} of {self.path.name} was altered")
        return entry

    def problems(self) -> list[str]:
        """List what is wrong with the file, one line each."""
        try:
            for _ in self.read():
                pass
        except StudyError as error:
            return [str(error)]
        return [f"{self.path.name} ends in the middle of an entry"] if self._ends()[1] else []

    def mend(self) -> None:
        """Remove a last line that was cut short, as after a crash.

        Any other end is refused. What is before it is looked at by whoever reads it.
        """
        last, cut = self._ends()
        if not cut:
            return
        before = _parsed(last)
        after = (0, FIRST) if before is None else (before.number, before.digest)
        if _entry(cut + b"\n", after) is not None:
            # Complete but for the end of the line: the step was done, so it stays.
            with self._opened(os.O_WRONLY | os.O_APPEND) as file:
                _write(file, b"\n")
        elif _starts_an_entry(cut):
            with self._opened(os.O_RDWR) as file:
                file.truncate(os.fstat(file.fileno()).st_size - len(cut))
                os.fsync(file.fileno())
        else:
            name = self.path.name
            raise StudyError(f"the end of {name} is not what a crash leaves: it was altered")

    def append(
        self,
        step: str,
        data: Mapping[str, Any],
        at: str | None = None,
        *,
        after: tuple[int, str] | None = None,
        key: SigningKey | None = None,
    ) -> Entry:
        """Add an entry, on the disk when this returns.

        Args:
            step: What was done.
            data: What it was done with.
            at: When; now.
            after: Number and digest of the last entry, if the caller has just read the ledger; a
                thousand entries need not be read a thousand times.
            key: Signs the entry.
        """
        if after is None:
            last = self.entries()[-1:] if self.path.exists() else []
            after = (last[0].number, last[0].digest) if last else (0, FIRST)
        entry = Entry(after[0] + 1, at or now(), step, data, after[1]).signed(key)
        self.write([entry])
        return entry

    def write(self, entries: Sequence[Entry]) -> None:
        """Add entries that were made for this place, on the disk when this returns.

        A process that dies meanwhile leaves the first of them, or none.
        """
        with self._opened(os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
            _write(file, b"".join(entry.line() for entry in entries))

    def _opened(self, flags: int) -> BinaryIO:
        """Open the file itself to write; a link in its place is refused."""
        return open(open_in_place(self.path, flags, SHARED), "r+b" if flags & os.O_RDWR else "ab")

    def _lines(self) -> Iterator[bytes]:
        try:
            with open_regular(self.path) as file:
                yield from file
        except OSError as error:
            raise StudyError(f"cannot read {self.path}: {error.strerror}") from error

    def _ends(self) -> tuple[bytes, bytes]:
        """The last whole line, and what comes after it."""
        try:
            with open_regular(self.path) as file:
                length, size = _TAIL, os.fstat(file.fileno()).st_size
                while True:
                    file.seek(max(0, size - length))
                    content = file.read(length)
                    end = content.rfind(b"\n") + 1
                    start = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
                    if start or length >= size:
                        return content[start:end], content[end:]
                    length *= 4
        except OSError as error:
            raise StudyError(f"cannot read {self.path}: {error.strerror}") from error


def now() -> str:
    """The time of an entry."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _entry(line: bytes, after: tuple[int, str]) -> Entry | None:
    """Read a line; None if it is not the entry after the one of this number and digest."""
    entry = _parsed(line)
    return entry if entry and (entry.number - 1, entry.previous) == after else None


def _parsed(line: bytes) -> Entry | None:
    """Read a line; None if it is no entry."""
    try:
        found = json.loads(line)
        entry = Entry(**found["entry"], signature=found.get("signature", ""))
        # Written again it must be the same bytes: JSON has many spellings, a ledger has one.
        same = entry.line() == line and isinstance(entry.data, dict) and type(entry.number) is int
        return entry if same else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _starts_an_entry(cut: bytes) -> bool:
    """Whether these bytes may be the first of an entry: no complete JSON value is among them."""
    if not b'{"digest":"'.startswith(cut[:11]):
        return False
    try:
        json.JSONDecoder().raw_decode(cut.decode(errors="replace"))
    except (ValueError, RecursionError):
        return True
    return False


def _write(file: Any, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
