"""The round as a machine: any order of events, without a thread, a clock or a grid."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes_flower import ACK, HELLO, UPLOAD
from predbayes_flower.events import (
    Answered,
    Closed,
    Decided,
    InStudy,
    Introduced,
    Nodes,
    Send,
    Take,
    Time,
    Warn,
)
from predbayes_flower.round import RoundSettings, RoundState

SITES = frozenset({"Alpha", "Beta"})
SETTINGS = RoundSettings(
    deadline_seconds=100, poll_seconds=1, retry_seconds=10, report_seconds=5, ack_seconds=3
)


def begun(sites=SITES, quorum=0, **changes):
    return RoundState(frozenset(sites), replace(SETTINGS, **changes), 0.0, quorum=quorum)


def met(state, *introduced):
    """Let nodes appear and say who they are; what follows from the last one."""
    state.on(Nodes(frozenset(event.node for event in introduced)))
    return [state.on(event) for event in introduced][-1]


def asked(state, *introduced):
    """Let nodes appear, say who they are, and be asked."""
    met(state, *introduced)
    return state.on(Nodes(frozenset(event.node for event in introduced)))


ALPHA, BETA = Introduced(1, "Alpha", approved=True), Introduced(2, "Beta", approved=True)


class TestHello:
    def test_a_node_that_appears_is_greeted_once(self):
        state = begun()
        assert state.on(Nodes(frozenset({1, 2}))) == [Send(1, HELLO), Send(2, HELLO)]
        assert state.on(Nodes(frozenset({1, 2, 3}))) == [Send(3, HELLO)]

    def test_few_are_greeted_until_one_has_answered(self):
        state = begun(num_at_once=8)
        there = frozenset(range(20))
        assert [send.node for send in state.on(Nodes(there))] == [0, 1]
        assert state.on(Time(0.5))[:-1] == []
        state.on(Introduced(0))
        assert [send.node for send in state.on(Time(0.6))] == [2, 3, 4, 5, 6, 7, 8]

    @pytest.mark.parametrize("told", [Introduced(1), Introduced(1, "Nobody", approved=True)])
    def test_one_that_is_nobody_is_asked_again_after_a_while_and_for_no_upload(self, told):
        state = begun()
        assert asked(state, told) == []
        state.on(Time(9))
        assert state.on(Nodes(frozenset({1}))) == []
        state.on(Time(10))
        assert state.on(Nodes(frozenset({1}))) == [Send(1, HELLO)]

    def test_one_that_comes_back_is_greeted_again(self):
        state = begun()
        asked(state, ALPHA)
        assert state.on(Nodes(frozenset())) == []
        assert state.sites == {"Alpha": "lost"}
        assert state.on(Nodes(frozenset({1}))) == [Send(1, HELLO)]

    def test_two_nodes_that_say_they_are_one_site_are_told_once(self):
        state = begun(retry_seconds=1)
        twin = replace(ALPHA, node=3, approved=False)
        line = "nodes 1 and 3 both say that they are Alpha; the first good upload counts"
        assert met(state, ALPHA, twin)[0] == Warn(line)
        state.on(Time(2))
        assert state.on(Nodes(frozenset({1, 3}))) == [Send(1, UPLOAD, "Alpha"), Send(3, HELLO)]
        assert state.on(twin) == []


class TestUploads:
    def test_a_site_that_approved_is_asked_and_taken(self):
        state = begun()
        assert asked(state, ALPHA) == [Send(1, UPLOAD, "Alpha")]
        assert state.on(Nodes(frozenset({1}))) == []
        assert state.on(Answered(1, "upload")) == [Take(1, "Alpha")]
        assert state.on(Nodes(frozenset({1}))) == []
        state.on(Decided(1, "Alpha", accepted=True))
        assert state.standing() == {"Alpha": "in", "Beta": "not there"}

    def test_a_site_that_did_not_approve_is_told_of_and_not_asked(self):
        state = begun()
        told = Introduced(1, "Alpha", approved=False, brings=True)
        assert met(state, told) == [Warn("Alpha has not approved this plan")]
        assert state.on(Nodes(frozenset({1}))) == []
        state.on(Time(10))
        assert state.on(Nodes(frozenset({1}))) == [Send(1, HELLO)]

    @pytest.mark.parametrize("outcome", ["not approved", "awaiting release"])
    def test_one_that_waits_for_its_officer_is_asked_again_after_a_while(self, outcome):
        state = begun()
        asked(state, ALPHA)
        state.on(Answered(1, outcome))
        assert state.sites == {"Alpha": outcome}
        assert state.on(Nodes(frozenset({1}))) == []
        state.on(Time(10))
        assert state.on(Nodes(frozenset({1}))) == [Send(1, UPLOAD, "Alpha")]

    def test_of_two_nodes_of_a_site_the_second_waits_for_the_first(self):
        state = begun()
        other = replace(ALPHA, node=2)
        assert asked(state, ALPHA, other) == [Send(1, UPLOAD, "Alpha"), Send(2, UPLOAD, "Alpha")]
        assert state.on(Answered(1, "upload")) == [Take(1, "Alpha")]
        assert state.on(Answered(2, "upload")) == []
        state.on(Decided(1, "Alpha", accepted=False))
        assert state.sites == {"Alpha": "refused"}
        assert state.on(Nodes(frozenset({1, 2}))) == [Send(2, UPLOAD, "Alpha")]


class TestEnd:
    def test_it_ends_at_its_deadline(self):
        state = begun()
        state.on(Time(99.9))
        assert not state.ended
        assert state.on(Time(100)) == [Warn("the deadline has passed")]
        assert state.ended
        assert state.on(Nodes(frozenset({1}))) == []

    def test_a_site_that_was_refused_may_still_come_by_a_node_that_is_not_met(self):
        state = begun({"Alpha"})
        asked(state, ALPHA)
        state.on(Answered(1, "refused"))
        state.on(Nodes(frozenset({1, 2})))
        assert not state.ended
        state.on(Time(1))
        assert not state.ended
        state.on(Introduced(2))
        assert state.on(Time(2)) == []
        assert state.ended

    def test_nodes_are_told_what_became_of_their_upload(self):
        state = begun()
        asked(state, ALPHA, BETA, Introduced(3))
        state.on(Answered(1, "upload"))
        state.on(Answered(2, "failed"))
        state.on(Decided(1, "Alpha", accepted=True))
        assert state.on(Time(1)) == []
        assert state.on("closing") == [Send(1, ACK, "Alpha")]
        assert state.untold == {1}
        state.on(Closed(1, ACK))
        assert not state.untold


class TestGrace:
    """With the quorum in, the others are waited for a while, and no longer."""

    def quorate(self):
        state = begun(quorum=1, grace_seconds=20)
        asked(state, ALPHA, BETA)
        state.on(Time(5))
        state.on(InStudy(frozenset({"Alpha"})))
        state.on(Time(6))
        return state

    def test_a_round_ends_when_the_quorum_has_been_in_for_that_long(self):
        state = self.quorate()
        state.on(Nodes(frozenset({1})))  # Beta is lost
        state.on(Time(25.9))
        assert not state.ended
        told = "the quorum is in, and the grace period has passed"
        assert state.on(Time(26)) == [Warn(told)]
        assert state.ended

    def test_who_comes_in_time_counts_and_ends_it(self):
        state = self.quorate()
        assert state.on(Answered(2, "upload")) == [Take(2, "Beta")]
        state.on(Decided(2, "Beta", accepted=True))
        assert state.on(Time(7)) == []
        assert state.ended

    def test_it_is_counted_anew_where_the_quorum_is_lost(self):
        state = self.quorate()
        state.sites["Alpha"] = "refused"
        state.on(Time(20))
        state.on(InStudy(frozenset({"Alpha"})))
        state.on(Time(26))
        assert not state.ended


class TestOpen:
    """Every node that says which site it is may take part."""

    def begun(self, quorum=2, **options):
        return RoundState(frozenset(), SETTINGS, 0.0, quorum=quorum, open=True, **options)

    def test_sites_are_admitted_as_they_come(self):
        state = self.begun()
        assert asked(state, ALPHA, BETA) == [Send(1, UPLOAD, "Alpha"), Send(2, UPLOAD, "Beta")]
        assert state.standing() == {"Alpha": "asked", "Beta": "asked"}

    def test_it_ends_when_all_who_are_there_have_answered_and_are_as_many_as_the_quorum(self):
        state = self.begun()
        asked(state, ALPHA)
        state.on(InStudy(frozenset({"Alpha"})))
        state.on(Time(1))
        assert not state.ended  # a second site may still come
        asked(state, ALPHA, BETA)
        state.on(InStudy(SITES))
        state.on(Time(2))
        assert state.ended


NODES, NAMES = st.integers(1, 4), st.sampled_from(["Alpha", "Beta", "Nobody", ""])
OUTCOMES = ["upload", "refused", "failed", "not approved", "awaiting release", "lost"]
EVENTS = st.one_of(
    st.builds(Time, st.floats(0, 150)),
    st.builds(Nodes, st.frozensets(NODES)),
    st.builds(Introduced, NODES, NAMES, st.booleans(), st.booleans()),
    st.builds(Answered, NODES, st.sampled_from(OUTCOMES)),
    st.builds(Decided, NODES, NAMES, st.booleans()),
    st.builds(InStudy, st.frozensets(st.sampled_from(sorted(SITES)))),
    st.builds(Closed, NODES, st.sampled_from([HELLO, UPLOAD, ACK])),
)


@settings(max_examples=500, deadline=None)
@given(events=st.lists(EVENTS, max_size=60))
def test_whatever_happens_in_whatever_order(events):
    """Also answers to questions that nobody asked, and times that run backwards."""
    state = begun()
    open_questions, taking = set(), {}
    for event in events:
        was_in, had_ended = {s for s, told in state.sites.items() if told == "in"}, state.ended
        actions = state.on(event)
        match event:  # which question is answered by it
            case Introduced(node):
                open_questions.discard((node, HELLO))
            case Answered(node):
                open_questions.discard((node, UPLOAD))
            case Closed(node, kind):
                open_questions.discard((node, kind))
            case Decided(node, site, accepted) if taking.get(site) == node:
                del taking[site]
                assert state.sites[site] == "in" or not accepted
        for action in actions:
            assert not had_ended or isinstance(action, Warn)
            if isinstance(action, Send):
                assert (action.node, action.kind) not in open_questions
                open_questions.add((action.node, action.kind))
                assert action.site not in was_in | taking.keys()
            if isinstance(action, Take):
                assert action.site in SITES - was_in - taking.keys()
                taking[action.site] = action.node
        assert was_in <= {s for s, told in state.sites.items() if told == "in"}
        assert state.ended or not isinstance(event, Time) or event.now < 100


@dataclass
class World:
    """Nodes that answer when they like, and a study that knows who can sign."""

    state: RoundState
    honest: dict[int, str]
    liars: frozenset[int]
    dice: random.Random
    waiting: list[Send] = field(default_factory=list)
    taking: list[Take] = field(default_factory=list)
    accepted: Counter[str] = field(default_factory=Counter)
    now: float = 0.0

    def handle(self, event):
        for action in self.state.on(event):
            match action:
                case Send(node, kind):
                    assert (node, kind) not in {(sent.node, sent.kind) for sent in self.waiting}
                    self.waiting.append(action)
                case Take():
                    self.taking.append(action)
                case "look":
                    self.handle(Nodes(self.liars | self.honest.keys()))

    def step(self):
        """Let time pass; one who was asked may answer, and the study may decide."""
        self.now += 0.5
        self.handle(Time(self.now))
        if self.waiting and self.dice.random() < 0.5:
            self.answer(self.waiting.pop(self.dice.randrange(len(self.waiting))))
        if self.taking and self.dice.random() < 0.5:
            take = self.taking.pop(self.dice.randrange(len(self.taking)))
            accepted = self.honest.get(take.node) == take.site
            self.accepted[take.site] += accepted
            self.handle(Decided(take.node, take.site, accepted))

    def answer(self, sent):
        lies, dice = sent.node in self.liars, self.dice
        if sent.kind == UPLOAD:
            self.handle(Answered(sent.node, dice.choice(OUTCOMES) if lies else "upload"))
        elif lies:
            name = dice.choice(["Alpha", "Beta", "Nobody", ""])
            self.handle(Introduced(sent.node, name, dice.random() < 0.7, dice.random() < 0.5))
        else:
            self.handle(Introduced(sent.node, self.honest[sent.node], approved=True))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nodes_that_lie_keep_nobody_out(seed):
    honest = {5: "Alpha", 6: "Beta"}
    state = begun(deadline_seconds=2000)
    world = World(state, honest, frozenset({1, 2, 9}), random.Random(seed))
    while not state.ended:
        world.step()
    assert state.sites == dict.fromkeys(SITES, "in")
    assert world.accepted == dict.fromkeys(SITES, 1)
    assert world.now < 500  # in time
