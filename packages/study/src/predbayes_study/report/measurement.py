"""What a site measures of an upload before it leaves; extras say how.

An extra adds a measurement by an entry of `Extra.measurements`: a function of the folder of what
stays at the site, and of the digest of everything that determines the measurement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from predbayes_study.extra import added


class Measurement(Protocol):
    """What was measured of one plan, table and learner."""

    @property
    def auc(self) -> float:
        """AUC of guessing, by what leaves, who was trained on."""

    @property
    def sound(self) -> bool:
        """Whether nothing was found where there is nothing."""

    def section(self) -> str:
        """Return the section of the egress page, in HTML."""


def measured(home: Path, identity: str) -> Measurement | None:
    """Return what was measured, if it is there."""
    for _, extra, reference in added("measurements"):
        found: Measurement | None = extra.load(reference)(home, identity)
        if found is not None:
            return found
    return None
