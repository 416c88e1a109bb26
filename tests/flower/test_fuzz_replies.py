"""Whatever a node replies, the round goes on: no traceback, no forged line, nothing taken in.

An honest reply is altered in a few places, or made up. `PREDBAYES_FUZZ=100000` says how many are
tried of each kind.
"""

from __future__ import annotations

import logging
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from predbayes.exchange.upload import Upload
from predbayes.text import printable
from predbayes_flower import HELLO, UPLOAD, events
from predbayes_flower.round import RoundSettings
from predbayes_flower.server import Round
from predbayes_flower.wire import upload_record
from predbayes_study.coordinator.study import Study
from tests.flower.test_bounds import SuperLink, grid_of, reply_with
from tests.study.world import make_world

NUM_INPUTS = int(os.environ.get("PREDBAYES_FUZZ", "100"))
SOME = settings(
    max_examples=NUM_INPUTS,
    deadline=None,
    derandomize="PREDBAYES_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
NODE, SITE = 7, "Alpha"

texts = st.text(st.characters(), max_size=40) | st.sampled_from(
    [
        SITE,
        "upload",
        "failed",
        "not approved",
        "awaiting release",
        "\x1b[8m",
        "\nAlpha: in",
        "\u202e",
    ]
)
scalars = st.one_of(
    texts, st.integers(-(2**62), 2**62), st.floats(), st.booleans(), st.binary(max_size=20)
)
values = scalars | st.lists(texts, max_size=3) | st.lists(st.integers(-5, 5), max_size=3)
shapes = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
arrays = st.one_of(
    st.builds(
        Array,
        dtype=st.sampled_from(["float32", "<f4", "object", "\ud800"]),
        shape=shapes,
        stype=st.sampled_from(["numpy.ndarray", "pickle", ""]),
        data=st.binary(max_size=200),
    ),
    st.sampled_from(
        [
            np.zeros((3, 2), "f4"),
            np.full((4,), np.nan),
            np.array("text"),
            np.zeros((), "i8"),
            np.zeros((0, 5)),
        ]
    ).map(Array),
)
records = st.one_of(
    st.dictionaries(texts, values, max_size=4).map(ConfigRecord),
    st.dictionaries(texts, st.integers(-9, 9) | st.floats(), max_size=3).map(MetricRecord),
    st.dictionaries(texts | st.just("log_probs"), arrays, max_size=3).map(ArrayRecord),
)
names = st.sampled_from(["words", "metadata", "arrays", "other"])
word_names = st.sampled_from(["site", "status", "reason", "approved", "version", "plan"])
cuts = st.tuples(st.floats(0, 1), st.text(st.characters(codec="utf-8"), max_size=5))


@st.composite
def alterations(draw):
    """One change of an honest reply."""
    kind = draw(st.sampled_from(["record", "drop", "word", "info", "array"]))
    if kind == "record":
        return kind, draw(names), draw(records)
    if kind == "drop":
        return kind, draw(names), None
    if kind == "word":
        return kind, draw(word_names), draw(values)
    if kind == "info":
        return kind, draw(st.sampled_from(["predbayes", "signature", "more"])), draw(cuts | values)
    return kind, draw(st.sampled_from(["log_probs", "more"])), draw(arrays)


def alter(content, change):
    """Carry a change out, where there is something to change."""
    kind, name, value = change
    if kind == "record":
        content[name] = value
    elif kind == "drop":
        content.pop(name, None)
    elif kind == "word" and isinstance(content.get("words"), ConfigRecord):
        content["words"][name] = value
    elif kind == "info" and isinstance(content.get("metadata"), ConfigRecord):
        old = content["metadata"].get(name)
        if isinstance(value, tuple) and isinstance(old, str):
            at = int(value[0] * len(old))
            value = old[:at] + value[1] + old[at + len(value[1]) :]
        content["metadata"][name] = "" if isinstance(value, tuple) else value
    elif kind == "array" and isinstance(content.get("arrays"), ArrayRecord):
        content["arrays"][name] = value


class OneNode:
    """A grid with one node, whose replies a test makes."""

    def __init__(self):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.make, self.messages = None, {}

    def get_node_ids(self):
        return [NODE]

    def push_messages(self, messages):
        pushed = {f"{len(self.messages) + i}": message for i, message in enumerate(messages)}
        self.messages.update(pushed)
        return list(pushed)

    def pull_messages(self, wanted):
        return [self.make(self.messages[message]) for message in wanted]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study, the upload that its site would send, and a folder for a copy."""
    world = make_world(tmp_path_factory.mktemp("fuzz"))
    begun = world.begin(sites=(SITE,))
    honest = world.file(SITE)
    scratch = world.root / "scratch"
    scratch.mkdir()
    digest = Upload.load(honest).digest()
    return SimpleNamespace(begun=begun, honest=honest, scratch=scratch, digest=digest)


def answered(study, make, caplog):
    """Let a node appear, say hello and be asked, with the replies that are made; the round."""
    caplog.clear()
    grid = OneNode()
    grid.make = make
    round_ = Round(grid, study.begun, RoundSettings(ack_seconds=1)).driver(study.scratch)
    for _ in range(3):  # hello, upload, and once more
        round_.handle(events.Nodes(frozenset({NODE})))
        wanted = [round_.pump._wanted.get() for _ in range(round_.pump._wanted.qsize())]
        for message, reply in round_.pump._pull_once(wanted, pytest.fail).items() if wanted else ():
            sent = round_.pump._sent.pop(message)
            round_.handle(round_.event(sent, reply), reply)
        round_.settle()
    round_.report()
    told = [record.getMessage() for record in caplog.records]
    assert all(line == printable(line, None) and len(line) < 1000 for line in told), told
    assert all(record.exc_info is None for record in caplog.records)
    return round_


def check(study, round_):
    """A site is in if and only if its own upload is, bit by bit."""
    state = study.begun.state().uploads
    assert (round_.state.standing()[SITE] == "in") == (SITE in state)
    if SITE in state:
        assert state[SITE].digest == study.digest
        begin_again(study)


def begin_again(study):
    """Begin the study anew, after an honest reply."""
    old = study.begun.folder
    entries = (old / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    fresh = old.with_name("again" if old.name != "again" else "study-2")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(old, fresh)
    kept = [
        line for line in entries if b'"step": "add"' not in line and b'"step":"add"' not in line
    ]
    (fresh / "ledger.jsonl").write_bytes(b"".join(kept))
    study.begun = Study(fresh)


def honest(study, kind):
    told = {"site": SITE, "approved": True, "version": "x"} if kind == HELLO else {}
    content = upload_record(study.honest, **told)
    if kind == HELLO:  # without its upload: then it is asked
        del content["arrays"], content["metadata"], content["words"]["status"]
    return content


@SOME
@given(
    hello=st.lists(alterations(), max_size=2),
    upload=st.lists(alterations(), max_size=3),
    brings=st.booleans(),
)
@example(hello=[], upload=[], brings=False)
@example(hello=[], upload=[], brings=True)
def test_an_altered_reply(study, caplog, hello, upload, brings):
    caplog.set_level(logging.INFO)

    def make(message):
        kind = message.metadata.message_type
        content = honest(study, kind)
        if kind == HELLO and brings:
            content.update(upload_record(study.honest, **content["words"]))
        for change in hello if kind == HELLO else upload:
            alter(content, change)
        return Message(content, reply_to=message)

    check(study, answered(study, make, caplog))


@SOME
@given(
    content=st.dictionaries(names, records, max_size=4),
    error=st.none() | st.builds(Error, st.integers(-(2**31), 2**31 - 1), texts),
    kind=st.sampled_from([HELLO, UPLOAD]),
)
def test_a_reply_that_is_made_up(study, caplog, content, error, kind):
    caplog.set_level(logging.INFO)

    def make(message):
        if message.metadata.message_type != kind:
            return Message(honest(study, message.metadata.message_type), reply_to=message)
        return Message(error if error is not None else RecordDict(content), reply_to=message)

    round_ = answered(study, make, caplog)
    assert not study.begun.state().uploads or kind == HELLO
    check(study, round_)


@SOME
@given(
    number=st.integers(0, 6),
    changes=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=4)), max_size=4
    ),
)
def test_objects_that_are_altered_at_the_superlink(study, number, changes):
    """Through Flower's own grid, as over a network."""
    link = SuperLink(reply_with(np.zeros(30), site=SITE))
    name = sorted(link.contents, key=link.contents.get)[number % len(link.contents)]
    content = bytearray(link.contents[name])
    for where, num_gone, new in changes:
        at = int(where * len(content))
        content[at : at + num_gone] = new
    link.contents[name] = bytes(content)
    begun = Round(grid_of(link), study.begun, RoundSettings()).driver(study.scratch)
    begun.pump._sent["asked"] = events.Send(NODE, UPLOAD, SITE)
    assert set(begun.pump._pull_once(["asked"], pytest.fail)) <= {"asked"}
