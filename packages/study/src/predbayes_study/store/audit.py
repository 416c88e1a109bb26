"""The audit log: one line of JSON for each act, at a site and at the coordinator.

    {"number":7,"time":"2026-11-16T08:20:01Z","act":"train","outcome":"done","user":"anna",
     "what":{"plan":"...","upload":"..."},"previous":"...","digest":"..."}

It is for the institution's own collector of logs. The ledger says what a study is; this says who
asked for what on this computer, refusals included. An act that takes long has a line `begun`, so a
process that was killed is seen. A line has digests, names and counts, never a value of a row. All
of it is ASCII: whatever a stranger's text contains, it begins no second line and moves no cursor.

The digest is the SHA-256 of the line without its last key, and `previous` that of the line before.
A line that was changed, dropped or put elsewhere is found, unless all from there on were written
anew or cut off. So a collector fetches lines as they come. Writers take turns. A line that a killed
process left unfinished is removed by the next writer, which says so.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from predbayes.errors import KeyFileError, PredbayesError, StudyError, UploadError
from predbayes.system import opened_alone, user
from predbayes.text import printable
from predbayes_study.store.ledger import FIRST, now

AUDIT_FILE = "audit.jsonl"
AUDIT_LOCK = ".lock-audit"
_MOST_CHARACTERS = 300  # of one fact
_SEAL = 77  # bytes that a digest takes at the end of a line
_TAIL = 1 << 12  # bytes that are looked at first for the last line

Outcome = Literal["begun", "done", "refused", "stopped", "failed"]
Fact = str | int | bool | None


@dataclass(frozen=True, slots=True)
class AuditLog:
    """A file of such lines."""

    path: Path

    @classmethod
    def at(cls, folder: Path, named: str = "") -> AuditLog:
        """Return the log of a site or a study: in its folder, or where its own file says."""
        return cls(folder / (named or AUDIT_FILE))

    @contextmanager
    def during(self, act: str, /, *, long: bool = False, **what: Fact) -> Iterator[dict[str, Fact]]:
        """Note an act with its outcome when it ends, however that is.

        Args:
            act: What is done.
            long: Whether to note also that it has begun.
            what: What it is done with; what is learnt on the way is added to what is yielded.
        """
        if long:
            self.note(act, "begun", **what)
        try:
            yield what
        except PredbayesError as error:
            self.note(act, "refused", **what, reason=_reason(error))
            raise
        except BaseException as error:
            by_hand = isinstance(error, KeyboardInterrupt)
            self.note(act, "stopped" if by_hand else "failed", **what, reason=type(error).__name__)
            raise
        self.note(act, "done", **what)

    def note(self, act: str, outcome: Outcome = "done", /, **what: Fact) -> None:
        """Add one line, on the disk when this returns."""
        self.note_all([(act, outcome, what)])

    def note_all(self, acts: Iterable[tuple[str, Outcome, Mapping[str, Fact]]]) -> None:
        """Add a line for each act, on the disk when this returns."""
        with opened_alone(self.path) as handle:
            last, cut = _tail(handle)
            told = list(acts)
            if cut:
                os.ftruncate(handle, os.fstat(handle).st_size - cut)
                told.insert(0, ("mend", "done", {"bytes": cut}))
            lines = [last]
            for act in told:
                lines += [_line(lines[-1], *act)]
            _write(handle, b"".join(line + b"\n" for line in lines[1:]))

    def problems(self) -> list[str]:
        """List what is wrong with the file, one line each; a file that is not there is as it is."""
        try:
            *lines, cut = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        last = b""
        for number, line in enumerate(lines, 1):
            if _place(line) != (number, _digest(last)) or _sealed(line[:-_SEAL] + b"}") != line:
                return [f"line {number} of {self.path.name} was altered, or one before it is gone"]
            last = line
        return [f"{self.path.name} ends in the middle of an entry"] if cut else []


@dataclass(frozen=True, slots=True)
class GatheredLog(AuditLog):
    """A log whose lines wait: those of many small acts reach the disk together."""

    waiting: list[tuple[str, Outcome, Mapping[str, Fact]]] = field(default_factory=list)

    def note(self, act: str, outcome: Outcome = "done", /, **what: Fact) -> None:
        """Add one line, on the disk after `write`."""
        self.waiting.append((act, outcome, what))

    def write(self, *, undone: bool = False) -> None:
        """Bring the lines to the disk; if what was done is lost, those that do not say so."""
        told = [one for one in self.waiting if not (undone and one[1] == "done")]
        self.waiting.clear()
        if told:
            self.note_all(told)


def _line(last: bytes, act: str, outcome: Outcome, what: Mapping[str, Any]) -> bytes:
    """Return the line after the last one."""
    content = {
        "number": (_place(last)[0] if last else 0) + 1,
        "time": now(),
        "act": act,
        "outcome": outcome,
        "user": user(),
        "what": {name: _bounded(value) for name, value in what.items() if value is not None},
        "previous": _digest(last),
    }
    return _sealed(json.dumps(content, separators=(",", ":")).encode())


def _write(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]  # of much perhaps a part at a time
    os.fsync(handle)


def _tail(handle: int) -> tuple[bytes, int]:
    """Return the last whole line, and how many bytes come after it."""
    size, length = os.fstat(handle).st_size, _TAIL
    while True:
        os.lseek(handle, max(0, size - length), os.SEEK_SET)
        content = os.read(handle, length)
        end = content.rfind(b"\n")
        start = content.rfind(b"\n", 0, max(end, 0)) + 1
        if start or length >= size:
            return content[start : max(end, 0)], len(content) - end - 1
        length *= 4


def _place(line: bytes) -> tuple[int, str]:
    """Return the number of a line and the digest that it has of the one before."""
    try:
        content = json.loads(line)
        return int(content["number"]), str(content["previous"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0, ""  # somebody wrote into the file


def _sealed(content: bytes) -> bytes:
    """Return an object with its digest as its last key."""
    return content[:-1] + b',"digest":"%b"}' % hashlib.sha256(content).hexdigest().encode()


def _digest(line: bytes) -> str:
    return line[-66:-2].decode(errors="replace") if line else FIRST


def _bounded(value: Any) -> Any:
    return printable(value, _MOST_CHARACTERS) if isinstance(value, str) else value


def _reason(error: PredbayesError) -> str:
    """Say why; what is said about a table or a file of the site's own could quote a cell."""
    quotes_nothing = isinstance(error, KeyFileError | StudyError | UploadError)
    return str(error) if quotes_nothing else type(error).__name__
