"""What a round does next: a machine without a clock, a thread, a log or a network.

`RoundState.on` takes one event and returns the actions that follow from it. `flower.driver` makes
events of replies and of time, and carries the actions out.

    hello    a node that appears is asked which site it is and which plans it approved; if its
             upload is ready and small, that comes with the answer
    ask      a node of an admitted site is asked for the upload, if the site approved this plan
             and is not in yet
    take     an upload is taken into the study, one at a time of each site
    again    a message that was lost is sent anew when its node is there; a site that waits for
             its officer is asked again after a while
    end      when nobody is left to wait for, or when the quorum has been in for the grace period,
             or at the deadline

A round is *closed* to all but the sites that were admitted, or *open*: then every node that says
which site it is takes part, and nobody is left to wait for when all who are there have answered and
they are as many as the quorum.

Questions are counted by node, not by site: a node that only says that it is a site cannot keep the
site itself out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from predbayes_flower import ACK, HELLO, UPLOAD, events

_FINAL: tuple[events.SiteState, ...] = ("in", "refused", "failed")  # until the next round
_FIRST_SHARE = 4  # of hellos, until one is answered: those who prepare are not to be disturbed


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """How long to wait, and how often to look.

    Args:
        deadline_seconds: When the round ends at the latest.
        grace_seconds: How long to wait for the others once the quorum is in.
        poll_seconds: Between two looks at one message.
        retry_seconds: Time after which a site that waits for an approval is asked again.
        report_seconds: Between two lines of the log.
        num_threads: That pull replies; memory is about three replies for each.
        num_per_pull: Messages that a thread asks for at once. Over a network a pull waits for the
            slowest of them; in a simulation replies lie in this process.
        num_at_once: Hellos that are under way.
        ack_seconds: How long nodes have to note that they may leave; 0: they are not told.
    """

    deadline_seconds: float = 3600.0
    grace_seconds: float = math.inf
    poll_seconds: float = 1.0
    retry_seconds: float = 30.0
    report_seconds: float = 10.0
    num_threads: int = 4
    num_per_pull: int = 1
    num_at_once: int = 1000
    ack_seconds: float = 15.0


SIMULATED = RoundSettings(num_threads=1, num_per_pull=64, num_at_once=80, ack_seconds=0.0)
"""For a simulation, whose nodes, messages and round share one process. Flower looks through all
messages for every node, again and again, so few are under way; replies are pulled by the dozen; and
nobody can leave."""


@dataclass(slots=True)
class _Node:
    """What is known of a node, and what it was asked and has not answered."""

    site: str | None = None  # None: it is not there, or has not said; "": of no admitted site
    approved: bool = False
    greeted: bool = False  # a hello is on its way
    asked: str = ""  # the site whose upload it is asked for
    next_hello: float = 0.0
    next_ask: float = 0.0
    spent: bool = False  # what it sent was refused, or it failed: it is not asked again


@dataclass(slots=True)
class RoundState:
    """Everything that a round knows; only `on` changes it.

    Args:
        admitted: The study's sites; in an open round those that have come.
        settings: How long to wait, and how often to look.
        now: When the round begins.
        quorum: Sites with which the round is worth ending.
        open: Whether every site may take part.
        known: The sites of nodes that need not be asked who they are.
    """

    admitted: frozenset[str]
    settings: RoundSettings
    now: float
    quorum: int = 0
    open: bool = False
    known: Mapping[int, str] = field(default_factory=dict)
    sites: dict[str, events.SiteState] = field(default_factory=dict)
    untold: set[int] = field(default_factory=set)  # nodes that have not noted that they may leave
    ended: bool = False
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _fresh: list[int] = field(default_factory=list)  # nodes to greet, the next one last
    _taking: dict[str, int] = field(default_factory=dict)  # node whose upload is being taken
    _quorum_since: float = math.inf  # when the quorum was in
    _deadline: float = field(init=False)
    _next_look: float = field(init=False)
    _next_report: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = self.now + self.settings.deadline_seconds
        self._next_look, self._next_report = self.now, self.now + self.settings.report_seconds

    @property
    def left(self) -> float:
        """Seconds to the deadline."""
        return max(0.0, self._deadline - self.now)

    @property
    def num_in(self) -> int:
        """Sites that are in."""
        return sum(state == "in" for state in self.sites.values())

    def members(self) -> dict[int, str]:
        """Return the sites that are in, by the nodes that speak for them."""
        sites = {number: node.site for number, node in self._nodes.items() if node.site}
        return {number: site for number, site in sites.items() if self.sites.get(site) == "in"}

    def standing(self) -> dict[str, str]:
        """Return the state of every admitted site."""
        return {site: self.sites.get(site, "not there") for site in sorted(self.admitted)}

    def on(self, event: events.Event) -> list[events.Action]:
        """Take note of an event, and return what is to be done."""
        match event:
            case events.Time(now):
                return self._pass(now)
            case events.Nodes(there):
                return self._look(there)
            case events.Introduced():
                return self._meet(event)
            case events.Answered():
                return self._answer(event)
            case "closing":
                return self._tell()
            case events.Decided(node, site, accepted) if self._taking.get(site) == node:
                del self._taking[site]
                self._mark(self._nodes[node], site, "in" if accepted else "refused")
            case events.InStudy(sites):
                self.sites.update(dict.fromkeys(sites, "in"))
            case events.Closed(node, kind) if node in self._nodes:
                self._close(node, kind)
        return []

    def _pass(self, now: float) -> list[events.Action]:
        self.now = max(self.now, now)
        if self.ended:
            return []
        if self._all_done():
            self.ended = True
            return []
        if (late := self._late()) is not None:
            self.ended = True
            return [events.Warn(late)]
        actions: list[events.Action] = list(self._greet())
        if self.now >= self._next_look:
            self._next_look = self.now + self.settings.poll_seconds
            actions.append("look")
        if self.now >= self._next_report:
            self._next_report = self.now + self.settings.report_seconds
            actions.append("report")
        return actions

    def _late(self) -> str | None:
        """Return why nobody is waited for any longer; None if somebody still is."""
        if not self.left:
            return "the deadline has passed"
        if not self.quorum or self.num_in < self.quorum:
            self._quorum_since = math.inf
            return None
        self._quorum_since = min(self._quorum_since, self.now)
        over = self.now - self._quorum_since >= self.settings.grace_seconds
        return "the quorum is in, and the grace period has passed" if over else None

    def _all_done(self) -> bool:
        """Return whether nobody is left to wait for in this round."""
        if not self.admitted or not all(self.sites.get(s) in _FINAL for s in self.admitted):
            return False
        awaited = {site for site in self.admitted if self.sites[site] != "in"}
        unmet = bool(self._fresh) or any(node.greeted for node in self._nodes.values())
        if self.open and (unmet or len(self.admitted) < self.quorum):
            return False
        # Somebody else may have answered in the name of a site that is refused.
        return not (awaited and unmet) and not any(
            node.site in awaited and not node.spent for node in self._nodes.values()
        )

    def _look(self, there: frozenset[int]) -> list[events.Action]:
        """See which nodes are new, and forget those that went."""
        for number, node in self._nodes.items():
            if node.site is not None and number not in there:
                if self.sites.get(node.site) == "asked":
                    self.sites[node.site] = "lost"
                node.site, node.next_hello = None, 0.0
        for number in sorted(there & self.known.keys() - self._nodes.keys()):
            self._nodes[number] = _Node(self.known[number], approved=True)
            self._admit(self.known[number])
        self._fresh = sorted((node for node in there if self._may_greet(node)), reverse=True)
        return [] if self.ended else [*self._ask(), *self._greet()]

    def _may_greet(self, number: int) -> bool:
        node = self._nodes.get(number, _Node())
        # An officer may say yes, or a site mend its configuration, while the round waits.
        met = node.site is not None and node.approved
        return not met and not node.greeted and self.now >= node.next_hello

    def _greet(self) -> list[events.Send]:
        """Say hello to nodes that are new, not to all of them at once."""
        under_way = sum(node.greeted for node in self._nodes.values())
        first = all(node.site is None for node in self._nodes.values())
        most = max(1, self.settings.num_at_once // (_FIRST_SHARE if first else 1))
        room = min(max(0, most - under_way), len(self._fresh))
        numbers = [self._fresh.pop() for _ in range(room)]
        for number in numbers:
            self._nodes.setdefault(number, _Node()).greeted = True
        return [events.Send(number, HELLO) for number in numbers]

    def _ask(self) -> list[events.Send]:
        """Ask the nodes that may be asked now."""
        asks = []
        for number, node in sorted(self._nodes.items()):
            if node.site and self._may_ask(node, node.site):
                node.asked = node.site
                self.sites[node.site] = "asked"
                asks.append(events.Send(number, UPLOAD, node.site))
        return asks

    def _may_ask(self, node: _Node, site: str) -> bool:
        if node.asked or node.spent or not node.approved or self.now < node.next_ask:
            return False
        return self._is_wanted(site)

    def _is_wanted(self, site: str) -> bool:
        return not self.ended and self.sites.get(site) != "in" and site not in self._taking

    def _meet(self, event: events.Introduced) -> list[events.Action]:
        """Note which site a node is, and take what it has brought."""
        node, site = self._nodes.get(event.node), event.site
        if node is None or not node.greeted:
            return []
        node.greeted, node.next_hello = False, self.now + self.settings.retry_seconds
        self._admit(site)
        warnings = self._twins(event.node, site)
        node.site = site if site in self.admitted else ""
        node.approved = event.approved and bool(node.site)
        if not node.site or self.sites.get(site) not in (None, "lost"):
            return warnings
        if not node.approved:
            self.sites[site] = "not approved"
            return [*warnings, events.Warn(f"{site} has not approved this plan")]
        return [*warnings, *(self._take(event.node, site) if event.brings else [])]

    def _twins(self, number: int, site: str) -> list[events.Action]:
        """Warn if a node that is new says that it is the site of another one that is there."""
        others = [
            n for n, node in self._nodes.items() if site and node.site == site and n != number
        ]
        if not others or self._nodes[number].site is not None:
            return []
        told = f"nodes {others[0]} and {number} both say that they are {site}"
        return [events.Warn(f"{told}; the first good upload counts")]

    def _admit(self, site: str) -> None:
        """Let a site that has come take part, if every site may."""
        if self.open and site:
            self.admitted |= {site}

    def _answer(self, event: events.Answered) -> list[events.Action]:
        """Note what a node said when it was asked for its upload."""
        node = self._nodes.get(event.node)
        if node is None or not node.asked:
            return []
        site = node.asked
        self._close(event.node, UPLOAD)
        if event.outcome == "upload":
            return self._take(event.node, site)
        if event.outcome == "not approved" or event.outcome == "awaiting release":
            node.next_ask = self.now + self.settings.retry_seconds
        self._mark(node, site, event.outcome)
        return []

    def _take(self, number: int, site: str) -> list[events.Action]:
        """Take an upload, unless its site needs none; else the node is asked again later."""
        if not self._is_wanted(site):
            return []
        self._taking[site] = number
        return [events.Take(number, site)]

    def _mark(self, node: _Node, site: str, state: events.SiteState) -> None:
        """Note what became of a message; what another node of the site brought in stays in."""
        node.spent |= state in ("refused", "failed")
        if self.sites.get(site) != "in":
            self.sites[site] = state

    def _close(self, number: int, kind: str) -> None:
        """Forget a question that has its answer, or that nobody has heard."""
        node = self._nodes[number]
        if kind == HELLO:
            node.greeted = False
        elif kind == UPLOAD:
            node.asked = ""
        else:
            self.untold.discard(number)

    def _tell(self) -> list[events.Action]:
        """Tell nodes what became of their upload."""
        if not self.settings.ack_seconds:
            return []
        told = [
            events.Send(number, ACK, node.site)
            for number, node in sorted(self._nodes.items())
            if node.site and self.sites.get(node.site) in ("in", "refused")
        ]
        self.untold.update(send.node for send in told)
        return list(told)
