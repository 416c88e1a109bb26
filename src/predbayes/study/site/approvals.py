"""The yes of a site's data-protection officer, for a plan or for one upload.

Approvals are the site's own record, a hash-chained ledger beside its `site.toml`: who said yes to
what, when. They are by digest: a plan or an upload that changes needs a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from predbayes.study.store.ledger import Ledger

FILE = "approvals.jsonl"


@dataclass(frozen=True, slots=True)
class Approvals:
    """The approvals of one site."""

    folder: Path

    def record(self, what: Literal["plan", "upload"], digest: str, by: str) -> bool:
        """Record a yes; False if it was given before."""
        if self.given(what, digest):
            return False
        if self._ledger.path.exists():
            self._ledger.mend()
        self._ledger.append("approve", {"what": what, "digest": digest, "by": by})
        return True

    def given(self, what: Literal["plan", "upload"], digest: str) -> bool:
        """Whether there is a yes for this digest."""
        if not self._ledger.path.exists():
            return False
        wanted = {"what": what, "digest": digest}
        return any(wanted.items() <= dict(e.data).items() for e in self._ledger.entries())

    def plans(self) -> tuple[str, ...]:
        """Digests of all plans with a yes."""
        if not self._ledger.path.exists():
            return ()
        given = (dict(entry.data) for entry in self._ledger.entries())
        return tuple(str(data["digest"]) for data in given if data.get("what") == "plan")

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.folder / FILE)
