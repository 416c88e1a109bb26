"""What a study is at a point in time, read from its ledger and nothing else.

    init      the plan, its files and the labels' digest
    admit     a site and its key; admitting again is a new key
    add       a site's upload, by its digest
    withdraw  a site takes its upload back; its bytes go, its digest stays
    finish    a numbered result: of which uploads, and its files

A site has one upload at most. One that withdrew is not admitted any more, and a key that was
replaced or withdrawn is never taken again: nobody can put an old upload back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from predbayes.errors import StudyError
from predbayes.study.ledger import FIRST, Entry


@dataclass(frozen=True, slots=True)
class AcceptedUpload:
    """A file that counts."""

    site: str
    digest: str  # of its content
    file_digest: str  # of its bytes
    num_bytes: int
    num_rows: int
    kind: Literal["predictions", "weights"]
    at: str


@dataclass(frozen=True, slots=True)
class FinishedResult:
    """A result, and what it was made of."""

    number: int
    at: str
    uploads: Mapping[str, str]  # digest by site
    left_out: tuple[str, ...]  # by hand
    files: Mapping[str, str]  # digest of the bytes, by path in the result's folder
    outcome: str  # digest of what was found: equal for equal sets of uploads
    start: int | None
    ledger: str  # digest of the entry before

    def serves(self, left_out: frozenset[str], files: Sequence[str]) -> bool:
        """Whether it is what one would make with these sites left out, and has these files."""
        return frozenset(self.left_out) == left_out and set(files) <= self.files.keys()


@dataclass(slots=True)
class State:
    """Sites, uploads and results of a study."""

    plan_digest: str = ""
    files: dict[str, str] = field(default_factory=dict)  # of kit and labels
    keys: dict[str, str] = field(default_factory=dict)  # of admitted sites
    uploads: dict[str, AcceptedUpload] = field(default_factory=dict)  # by site
    retired: set[str] = field(default_factory=set)  # keys that were in use
    withdrawn: dict[str, str] = field(default_factory=dict)  # site by digest
    results: list[FinishedResult] = field(default_factory=list)
    last: str = FIRST  # digest of the last entry

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> State:
        """Replay a ledger."""
        state = cls()
        for entry in entries:
            state.take(entry)
        if not state.plan_digest:
            raise StudyError("the ledger is empty: the study was never begun")
        return state

    def take(self, entry: Entry) -> None:
        """One more entry."""
        data: Mapping[str, Any] = entry.data
        match entry.step:
            case "init":
                self.plan_digest, self.files = data["plan"], dict(data["files"])
            case "admit":
                self._retire(data["site"])
                self.keys[data["site"]] = data["key"]
            case "add":
                self.uploads[data["site"]] = AcceptedUpload(**data, at=entry.at)
            case "withdraw":
                del self.uploads[data["site"]]
                self._retire(data["site"])
                self.withdrawn[data["digest"]] = data["site"]
            case "finish":
                result = dict(data) | {"left_out": tuple(data["left_out"])}
                self.results.append(FinishedResult(**result, at=entry.at, ledger=entry.previous))
            case unknown:
                raise StudyError(f"the ledger has a step {unknown!r} that this version lacks")
        self.last = entry.digest

    def _retire(self, site: str) -> None:
        if site in self.keys:
            self.retired.add(self.keys.pop(site))

    @property
    def in_order(self) -> list[AcceptedUpload]:
        """Accepted uploads in the order of their digests, in which they are folded."""
        return sorted(self.uploads.values(), key=lambda upload: upload.digest)

    @property
    def next_number(self) -> int:
        """Of the result that comes next."""
        return self.results[-1].number + 1 if self.results else 1

    @property
    def current(self) -> FinishedResult | None:
        """The last result, if it is of the uploads that count now."""
        last = self.results[-1] if self.results else None
        now = {upload.site: upload.digest for upload in self.uploads.values()}
        return last if last is not None and dict(last.uploads) == now else None
