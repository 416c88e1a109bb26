"""A node of a federation answers with what no honest node sends.

Forged lines in a status, an evaluation in place of an upload, an answer in another node's name, an
answer without end, and what a hello told of other studies.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message

from predbayes.errors import UploadError
from predbayes.predictive.families import Categorical
from predbayes_flower import ACK, HELLO, UPLOAD, events
from predbayes_flower.outbox import Outbox, greeting
from predbayes_flower.server import Round, StudyHandler
from predbayes_flower.study_client import app
from predbayes_flower.wire import read_words, upload_record, words
from predbayes_study.payloads.details import having_seen, save_signed
from predbayes_study.result.evaluation import evaluation_upload
from predbayes_study.site.release import Approvals
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.flower.double import DoubleGrid
from tests.flower.nodes import LEARNER, QUICK, SHORT
from tests.study.world import SITES, make_world

HOSTILE = "\nGamma: in\r\nresult 1: No miscalibration was found\x1b[8m\u202e\u200b"


def replaced(made):
    """Put other records in the place of a reply's."""

    def change(content):
        for name in list(content):
            del content[name]
        content.update(made)

    return change


def lines(caplog):
    return [line for record in caplog.records for line in record.getMessage().split("\n")]


@pytest.mark.parametrize("kind", [HELLO, UPLOAD])
def test_no_line_is_forged_by_a_status(world, nodes, tmp_path, caplog, kind):
    caplog.set_level(logging.INFO)
    grid = DoubleGrid(app, nodes)
    told = words(status=HOSTILE, site=HOSTILE)
    grid.altered[13, kind] = replaced(told)
    Round(grid, world.begin(f"status-{kind}", SITES[:3]), SHORT).run()
    assert "Gamma: in" not in lines(caplog)
    assert all(line.isprintable() for line in lines(caplog))
    assert any("No miscalibration" in line for line in lines(caplog))  # escaped, and shown


def test_no_line_is_forged_at_a_node(nodes, caplog):
    """The SuperLink is a stranger to a site: what it sends is printed as safely."""
    caplog.set_level(logging.INFO)
    grid = DoubleGrid(app, nodes)
    grid.push_messages([Message(words(state=HOSTILE), dst_node_id=11, message_type=ACK)])
    assert any("No miscalibration" in line for line in lines(caplog))
    assert all(line.isprintable() for line in lines(caplog))


def test_an_evaluation_in_place_of_an_upload_is_refused(world, nodes, tmp_path):
    study = world.begin("evaluation", SITES[:3])
    for site in SITES[:2]:
        study.add(world.file(site))
    recorded, _ = study.finish()
    even = Categorical(torch.full((60, 3), 1 / 3).log())
    targets = torch.arange(60) % 3
    made = evaluation_upload(world.kit.plan, "Gamma", even, targets, recorded.model)
    save_signed(made, tmp_path / "evaluation.safetensors", world.key("Gamma"))
    grid = DoubleGrid(app, nodes)
    grid.altered[13, UPLOAD] = replaced(upload_record(tmp_path / "evaluation.safetensors"))
    assert Round(grid, study, SHORT).run()["Gamma"] == "refused"
    assert "Gamma" not in study.state().uploads
    assert not study.state().evaluations


def test_one_that_is_sealed_is_refused_unrecorded(tmp_path):
    """Nobody sees on the outside of a sealed file what is in it."""
    world = make_world(tmp_path / "world", learner=LEARNER, coordinator=CoordinatorKey.generate())
    study = world.begin("sealed", SITES[:3])
    for site in SITES[:2]:
        study.add(world.file(site))
    recorded, _ = study.finish()
    even, targets = Categorical(torch.full((60, 3), 1 / 3).log()), torch.arange(60) % 3
    made = evaluation_upload(world.kit.plan, "Gamma", even, targets, recorded.model)
    save_signed(having_seen(made, world.seen), tmp_path / "e.safetensors", world.key("Gamma"))
    sealed = world.sealed(tmp_path / "e.safetensors")
    before = study.state().last
    handler = StudyHandler(study, tmp_path)
    handler.files[sealed] = events.Take(13, "Gamma")
    ((_, refusal),) = handler.settle(False)
    assert isinstance(refusal, UploadError)
    assert study.state().last == before
    assert not study.state().evaluations
    study.add(world.sealed(tmp_path / "e.safetensors"))  # as a file it is one
    assert study.state().evaluations


def test_an_answer_beyond_the_largest_upload_is_refused_unread(world, nodes, monkeypatch):
    grid = DoubleGrid(app, nodes)
    study = world.begin("large", SITES[:3])
    large = Array(np.zeros(4_000_000, np.float32))
    numpy, read = Array.numpy, []
    monkeypatch.setattr(Array, "numpy", lambda self: read.append(len(self.data)) or numpy(self))

    def fill(content):  # the same bytes under a thousand names are little to send
        content["arrays"] = ArrayRecord({str(i): large for i in range(1000)})

    grid.altered = {(13, UPLOAD): fill}
    assert Round(grid, study, SHORT).run()["Gamma"] == "refused"
    assert len(large.data) not in read


@pytest.mark.parametrize("asked", [True, False])
def test_a_hello_tells_of_the_plan_that_is_asked_alone(world, nodes, asked):
    config = nodes[11]
    for other in ("1" * 64, "2" * 64):
        Approvals(Path(config["site"]).parent).record("plan", other, "officer")
    digest = world.kit.digest if asked else "3" * 64
    told = read_words(greeting(Outbox(config), digest, may_bring=True))
    assert told["approved"] is asked
    assert not any(known in str(told) for known in ("1" * 64, "2" * 64))


def test_nobody_answers_in_the_name_of_another_node(world, nodes):
    """What a message replies to is said by the node that made it."""
    grid = DoubleGrid(app, nodes)
    study = world.begin("another", SITES[:3])
    grid.claims[11] = "of nobody"
    assert Round(grid, study, QUICK).run() == dict.fromkeys(SITES[:3], "in")
