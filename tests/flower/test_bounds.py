"""Flower's own grid pulls no more of a reply than an upload can have."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from predbayes.errors import UploadError
from predbayes_flower import ACK, HELLO, UPLOAD
from predbayes_flower.events import Send
from predbayes_flower.pump import ROOM_BYTES, SMALL_BYTES, Bounds, MessagePump, pull
from predbayes_flower.round import RoundSettings

MEBI = 1 << 20


class SuperLink:
    """What Flower's grid asks a SuperLink for, with one reply in store."""

    def __init__(self, message):
        objects = get_all_nested_objects(message)
        self.contents = {name: found.deflate() for name, found in objects.items()}
        self.tree = get_object_tree(message)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.message = message_to_proto(remove_content_from_message(message))
        self.pulled = 0
        self.confirmed = []

    def PullMessages(self, _request):
        return PullAppMessagesResponse(
            messages_list=[self.message], message_object_trees=[self.tree]
        )

    def PullObject(self, request):
        content = self.contents[request.object_id]
        self.pulled += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)


def reply_with(*arrays, **words):
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    asked = Message(RecordDict(), dst_node_id=2, message_type=UPLOAD)
    asked.metadata.__dict__["_message_id"] = "asked"
    named = {str(number): Array(array) for number, array in enumerate(arrays)}
    content = RecordDict({"arrays": ArrayRecord(named), "words": ConfigRecord(words)})
    return Message(content, reply_to=asked)


def grid_of(link):
    grid = HttpGrid(token="none")
    grid.set_run(Run.create_empty(1))
    grid._client = link
    return grid


def noise(num_bytes):
    return np.random.default_rng(0).integers(0, 255, num_bytes, np.uint8)


def refused(link, most_bytes):
    with pytest.raises(UploadError, match="larger than any upload of this plan"):
        pull(grid_of(link), ["asked"], most_bytes)
    assert link.confirmed == [link.message.metadata.message_id]  # it may delete it
    return link.pulled


def test_a_reply_within_its_bound_is_what_was_sent():
    sent = noise(12 * MEBI)
    link = SuperLink(reply_with(sent, sent[:10]))
    (got,) = pull(grid_of(link), ["asked"], 13 * MEBI)
    assert np.array_equal(got.content["arrays"]["0"].numpy(), sent)
    assert link.confirmed == [link.message.metadata.message_id]


def test_of_a_larger_one_no_more_is_pulled_than_the_bound_and_two_pieces():
    link = SuperLink(reply_with(noise(60 * MEBI)))
    assert refused(link, 10 * MEBI) <= 10 * MEBI + 3 * 5 * MEBI


def test_one_of_too_many_objects_is_refused_before_one_is_pulled():
    link = SuperLink(reply_with(noise(10)))
    link.tree.children.extend(ObjectTree(object_id=f"{i:064x}") for i in range(20_000))
    assert refused(link, 10 * MEBI) == 0


def test_one_that_says_more_than_there_is_room_for_is_refused():
    assert refused(SuperLink(reply_with(reason="x" * 2 * ROOM_BYTES)), 10 * MEBI) < 3 * ROOM_BYTES


def test_one_piece_that_is_named_a_thousand_times_is_not_put_together():
    message = reply_with(noise(MEBI))
    link = SuperLink(message)
    (array,) = message.content["arrays"].values()
    body = {"dtype": "uint8", "shape": [MEBI], "stype": "numpy.ndarray"}
    told = json.dumps({**body, "arraychunk_ids": [0] * 1000}).encode()
    link.contents[array.object_id] = add_header_to_object_body(told, array)
    tracemalloc.start()
    refused(link, 4 * MEBI)
    assert tracemalloc.get_traced_memory()[1] < 100 * MEBI
    tracemalloc.stop()


@pytest.mark.parametrize("told", [b"", b"[]", b"{}", b'{"arraychunk_ids": [7]}', b"\xff"])
def test_an_array_that_does_not_say_what_it_is_of_is_refused(told):
    message = reply_with(noise(10))
    link = SuperLink(message)
    (array,) = message.content["arrays"].values()
    link.contents[array.object_id] = add_header_to_object_body(told, array)
    with pytest.raises(UploadError, match="no upload"):
        pull(grid_of(link), ["asked"], MEBI)


def test_a_hello_brings_little_and_an_ack_nothing():
    bounds = Bounds(upload=300 * MEBI)
    assert bounds.most_bytes(UPLOAD) == 300 * MEBI
    assert bounds.most_bytes(HELLO) == SMALL_BYTES + ROOM_BYTES
    assert Bounds(upload=1000).most_bytes(HELLO) == 1000
    assert bounds.most_bytes(ACK) == 0


class Slow(SuperLink):
    """Has two replies, of which one is on its way."""

    def __init__(self):
        slow, quick = reply_with(noise(10), name="slow"), reply_with(noise(10), name="quick")
        self.links = {"slow": SuperLink(slow), "quick": SuperLink(quick)}
        self.there = threading.Event()

    def PullMessages(self, request):
        return self.links[request.message_ids[0]].PullMessages(request)

    def PullObject(self, request):
        slow = self.links["slow"]
        if request.object_id not in slow.contents:
            return self.links["quick"].PullObject(request)
        if self.there.is_set() or request.object_id in self.links["quick"].contents:
            return slow.PullObject(request)
        return PullObjectResponse(object_found=True, object_available=False)

    def ConfirmMessageReceived(self, request):
        """It has nothing to delete."""


def test_a_reply_that_is_on_its_way_holds_up_no_other():
    link = Slow()
    settings = RoundSettings(num_threads=1, poll_seconds=0.05)
    pump = MessagePump(grid_of(link), settings, Bounds(upload=MEBI))
    for name in ("slow", "quick"):
        pump._sent[name] = Send(1, UPLOAD, name)
        pump._wanted.put(name)
    with pump.open():
        assert [sent.site for sent, _ in pump.replies(30)] == ["quick"]
        before = threading.active_count()
        link.there.set()
        assert [sent.site for sent, _ in pump.replies(30)] == ["slow"]
        end = time.monotonic() + 10
        while threading.active_count() >= before and time.monotonic() < end:
            time.sleep(0.05)
        assert threading.active_count() < before  # one of the two pullers has ended
