"""What happens in a round, and what follows from it: the words of `flower.round`.

Events come from replies, from time, and from the study. Actions are carried out by `flower.driver`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SiteState = Literal["asked", "in", "refused", "failed", "not approved", "awaiting release", "lost"]
Outcome = Literal["upload", "refused", "failed", "not approved", "awaiting release", "lost"]


@dataclass(frozen=True, slots=True)
class Time:
    """It is so late now."""

    now: float


@dataclass(frozen=True, slots=True)
class Nodes:
    """These nodes are there now."""

    there: frozenset[int]


@dataclass(frozen=True, slots=True)
class Introduced:
    """A node answered a hello; without a site if it did not say which."""

    node: int
    site: str = ""
    approved: bool = False  # this plan
    brings: bool = False  # its upload with it


@dataclass(frozen=True, slots=True)
class Answered:
    """A node was asked for its upload, and this is what came."""

    node: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Decided:
    """The study accepted an upload that was taken, or refused it."""

    node: int
    site: str
    accepted: bool


@dataclass(frozen=True, slots=True)
class InStudy:
    """These sites have an upload in the study, however it came."""

    sites: frozenset[str]


@dataclass(frozen=True, slots=True)
class Closed:
    """A message that asks for nothing has its answer, or a message could not be sent."""

    node: int
    kind: str


Closing = Literal["closing"]  # all that was taken is decided; nodes may leave
Event = Time | Nodes | Introduced | Answered | Decided | InStudy | Closed | Closing


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message of this kind to a node, for its site unless it is a hello."""

    node: int
    kind: str
    site: str = ""


@dataclass(frozen=True, slots=True)
class Take:
    """Take the upload that came with this reply into the study, as the site's."""

    node: int
    site: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Write a line for whoever watches."""

    text: str


Action = Send | Take | Warn | Literal["look", "report"]
"""To look is to see which nodes are there; to report is to say how the round stands."""
