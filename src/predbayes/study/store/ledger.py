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
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from predbayes.errors import StudyError
from predbayes.exchange.signing import PublicKey, SigningKey
from predbayes.exchange.strict import Strict

R = TypeVar("R", bound=Strict)

FIRST = "0" * 64
"""What stands for the digest of an entry before the first."""


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
        return hashlib.sha256(self._content().encode()).hexdigest()

    def line(self) -> bytes:
        """The entry as it stands in the file."""
        signed = f',"signature":"{self.signature}"' if self.signature else ""
        return f'{{"digest":"{self.digest}","entry":{self._content()}{signed}}}\n'.encode()

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

    def _content(self) -> str:
        names = (field.name for field in fields(self) if field.name != "signature")
        content = {name: getattr(self, name) for name in names}
        return json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A file of entries."""

    path: Path

    def entries(self) -> list[Entry]:
        """All entries; a ledger whose chain is broken is refused.

        A last line that was cut short is left out: see `mend`.
        """
        whole, cut = self._read()
        entries = self._parsed(whole)
        last = _last(cut, entries)
        return entries if last is None else [*entries, last]

    def records(self, forms: Mapping[str, type[R]]) -> Iterator[tuple[str, R]]:
        """Yield the steps of a file that may be there, with their data in the form of each step.

        An entry of another step or form is refused: the chain tells that nobody changed it since,
        not that predbayes wrote it.
        """
        for entry in self.entries() if self.path.exists() else ():
            form = forms.get(entry.step)
            try:
                if form is None:
                    raise ValueError
                yield entry.step, form.model_validate_json(json.dumps(dict(entry.data)))
            except ValueError as error:
                where = f"entry {entry.number} of {self.path.name}"
                raise StudyError(f"{where} is not what predbayes writes: it was altered") from error

    def problems(self) -> list[str]:
        """List what is wrong with the file, one line each."""
        whole, cut = self._read()
        try:
            self._parsed(whole)
        except StudyError as error:
            return [str(error)]
        return [f"{self.path.name} ends in the middle of an entry"] if cut else []

    def mend(self) -> None:
        """Remove a last line that was cut short, as after a crash; any other damage is refused."""
        whole, cut = self._read()
        entries = self._parsed(whole)
        if not cut:
            return
        if _last(cut, entries) is not None:
            # Complete but for the end of the line: the step was done, so it stays.
            with self.path.open("ab") as file:
                _write(file, b"\n")
        elif _starts_an_entry(cut):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
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
            number, previous = _next(self.entries() if self.path.exists() else [])
        else:
            number, previous = after[0] + 1, after[1]
        entry = Entry(number, at or now(), step, data, previous).signed(key)
        with self.path.open("ab") as file:
            _write(file, entry.line())
        return entry

    def _read(self) -> tuple[bytes, bytes]:
        """Whole lines, and what comes after the last of them."""
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise StudyError(f"cannot read {self.path}: {error.strerror}") from error
        end = content.rfind(b"\n") + 1
        return content[:end], content[end:]

    def _parsed(self, content: bytes) -> list[Entry]:
        global _known
        before, known = _known if content.startswith(_known[0]) else (b"", ())
        entries = list(known)
        for line in content[len(before) :].splitlines(keepends=True):
            entry = _entry(line, entries)
            if entry is None:
                raise StudyError(f"entry {len(entries) + 1} of {self.path.name} was altered")
            entries.append(entry)
        _known = (content, tuple(entries))
        return entries


def now() -> str:
    """The time of an entry."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_known: tuple[bytes, tuple[Entry, ...]] = (b"", ())
"""The ledger that was read last: one that only grew since is read on from there."""


def _entry(line: bytes, before: list[Entry]) -> Entry | None:
    """Read a line; None if it is no entry, or not the one after those before it."""
    try:
        found = json.loads(line)
        entry = Entry(**found["entry"], signature=found.get("signature", ""))
        # Written again it must be the same bytes: JSON has many spellings, a ledger has one.
        same = entry.line() == line and isinstance(entry.data, dict)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return entry if same and (entry.number, entry.previous) == _next(before) else None


def _last(cut: bytes, before: list[Entry]) -> Entry | None:
    """Return the entry of a last line that lacks no more than its end."""
    return _entry(cut + b"\n", before) if cut else None


def _next(entries: list[Entry]) -> tuple[int, str]:
    return (len(entries) + 1, entries[-1].digest) if entries else (1, FIRST)


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
