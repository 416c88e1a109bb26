"""What happens in a round, and what follows from it: the words of `flower.round`.

Events come from replies, from time, and from the study. Actions are carried out by `flower.server`.
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
class NotSent:
    """A message could not be sent."""

    node: int
    kind: str


@dataclass(frozen=True, slots=True)
class Closing:
    """All that was taken is decided; nodes may leave."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A node has noted that it may leave."""

    node: int


Event = Time | Nodes | Introduced | Answered | Decided | InStudy | NotSent | Closing | Acknowledged


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
class Look:
    """See which nodes are there."""


@dataclass(frozen=True, slots=True)
class Report:
    """Say how the round stands."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Write a line for whoever watches."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """Take no more uploads and ask nobody."""

    in_time: bool  # nobody is left to wait for, and the deadline has not passed


Action = Send | Take | Look | Report | Warn | End
