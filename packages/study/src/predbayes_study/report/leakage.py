"""What an audit at the site found: how well it could be told who was trained on.

It stays at the site, in `home/membership.json`. The egress page shows its figures, without the
lines of single rows. `predbayes_study.extras.audit.membership` has what the figures are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from predbayes.exchange.strict import Strict

FILE = "membership.json"
NULL_ERROR = 0.02
"""How far from .5 the AUC of shuffled membership may be, if an audit is to count."""

LOW, HIGH = 0.55, 0.65
"""Below the first an AUC is called near guessing, above the second plain."""

Share = Annotated[float, Field(ge=0, le=1)]


class Figures(Strict):
    """What one attacker found; see `predbayes_study.extras.audit.membership.Leak`."""

    auc: Share
    low: Share
    high: Share
    null: Share
    epsilon: Annotated[float, Field(ge=0)]
    guesses: Annotated[int, Field(gt=0)]
    right: Annotated[int, Field(ge=0)]

    def told(self) -> str:
        """Return AUC, interval and null as people read them.

        Examples:
            >>> Figures(
            ...     auc=0.58, low=0.561, high=0.6, null=0.501, epsilon=0.2, guesses=90, right=60
            ... ).told()
            '0.58 [0.56, 0.60], shuffled 0.50'
        """
        return f"{self.auc:.2f} [{self.low:.2f}, {self.high:.2f}], shuffled {self.null:.2f}"

    def word(self) -> str:
        """Return in a word what the AUC means."""
        return "near guessing" if self.auc < LOW else "some" if self.auc <= HIGH else "plain"


class Outcome(Strict):
    """What an audit found, and of what."""

    format: Literal[1] = 1
    identity: str  # digest of all that determines it
    learner: str
    shortened: str  # how the learner was made cheaper; empty: not at all
    people: int
    runs: int
    target: Figures
    reference: Figures
    lines: tuple[int, ...]  # of the most exposed rows in the site's table; its header is line 1

    @property
    def sound(self) -> bool:
        """Whether nothing was found where there is nothing."""
        nulls = (self.target.null, self.reference.null)
        return all(abs(null - 0.5) <= NULL_ERROR for null in nulls)

    @classmethod
    def load(cls, path: Path, identity: str) -> Outcome | None:
        """Read the audit of some rows with some plan and learner, if it is there whole."""
        try:
            found = cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        return found if found.identity == identity else None
