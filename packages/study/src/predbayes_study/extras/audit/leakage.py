"""What an audit at the site found: how well it could be told who was trained on.

It stays at the site, in `home/membership.json`. The egress page shows its figures, without the
lines of single rows. `predbayes_study.extras.audit.membership` has what the figures are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from predbayes.exchange.strict import Strict
from predbayes_study.extras.audit.membership import Leak
from predbayes_study.report.pages import render_page

FILE = "membership.json"
NULL_ERROR = 0.02
"""How far from .5 the AUC of shuffled membership may be, if an audit is to count."""


class AttackResult(Strict):
    """What an audit found, and of what."""

    format: Literal[1] = 1
    identity: str  # digest of all that determines it
    learner: str
    shortened: str  # how the learner was made cheaper; empty: not at all
    people: int
    runs: int
    target: Leak
    reference: Leak
    lines: tuple[int, ...]  # of the most exposed rows in the site's table; its header is line 1

    @property
    def sound(self) -> bool:
        """Whether nothing was found where there is nothing."""
        nulls = (self.target.null, self.reference.null)
        return all(abs(null - 0.5) <= NULL_ERROR for null in nulls)

    @property
    def auc(self) -> float:
        """AUC of the attack on what leaves."""
        return self.reference.auc

    def section(self) -> str:
        """Return the section of the egress page; it has no lines of single rows."""
        return render_page("audited.html.j2", {}, audited=self)

    @classmethod
    def load(cls, path: Path, identity: str) -> AttackResult | None:
        """Read the audit of some rows with some plan and learner, if it is there whole."""
        try:
            found = cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        return found if found.identity == identity else None


def audited(home: Path, identity: str) -> AttackResult | None:
    """Return what the audit of some rows with some plan and learner found, if there is one."""
    return AttackResult.load(home / FILE, identity)
