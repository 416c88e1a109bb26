"""What comes with a hello: an upload that is ready and small; and what is refused of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from predbayes.exchange.header import Header
from predbayes.exchange.upload import Upload
from predbayes.files import file_digest
from predbayes_flower import ACK, HELLO, UPLOAD, outbox
from predbayes_flower.node import Node
from predbayes_flower.outbox import Outbox, greeting
from predbayes_flower.pump import SMALL_BYTES
from predbayes_flower.server import Round, unpack_upload
from predbayes_flower.study_client import app
from predbayes_flower.wire import read_words, upload_record
from predbayes_study.site.release import Approvals
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.flower.double import DoubleGrid
from tests.flower.malformed import MALFORMED
from tests.flower.nodes import LEARNER, QUICK, SHORT, make_node
from tests.study.world import SITES, make_world


@pytest.fixture
def nodes(nodes):
    """Three nodes that have trained."""
    for config in nodes.values():
        train(config)
    return nodes


def train(config):
    node = Node.of_config(config)
    node.answer(node.training.kit.digest)
    return node.training.run(node.rows())


def ready(config, plan_digest):
    """What a node brings with its hello."""
    content = greeting(Outbox(config), plan_digest, may_bring=True)
    brings = read_words(content).get("status") == "upload"
    return unpack_upload(content, SMALL_BYTES) if brings else None


def asked(grid, kind):
    return sorted(node for node, pushed in grid.asked if pushed == kind)


def adds(study):
    return [entry.data["site"] for entry in study.ledger.entries() if entry.step == "add"]


class TestRound:
    def test_an_upload_that_is_ready_comes_with_the_hello_and_nobody_is_asked(self, world, nodes):
        study = world.begin(sites=SITES[:3])
        grid = DoubleGrid(app, nodes)
        assert Round(grid, study, QUICK).run() == dict.fromkeys(SITES[:3], "in")
        assert asked(grid, HELLO) == [11, 12, 13]
        assert asked(grid, UPLOAD) == []
        assert asked(grid, ACK) == [11, 12, 13]
        made = {
            site: train(config).upload
            for site, config in zip(SITES[:3], nodes.values(), strict=True)
        }
        found = {site: accepted.digest for site, accepted in study.state().uploads.items()}
        assert found == {site: upload.digest() for site, upload in made.items()}

    @pytest.mark.parametrize("answers", [True, False])
    def test_a_node_that_says_it_is_another_site_does_not_keep_it_out(
        self, world, nodes, tmp_path, answers
    ):
        impostor = make_node(world, tmp_path / "impostor", "Alpha")
        path = Path(impostor["site"]).parent / "Alpha.key"
        path.unlink()
        SigningKey.generate().save(path)
        grid = DoubleGrid(app, {1: impostor, **nodes})
        if answers:
            train(impostor)
        else:
            grid.faults[1, UPLOAD] = [None]
        found = Round(grid, world.begin(sites=("Alpha",)), QUICK).run()
        assert found["Alpha"] == "in"


class TestNode:
    @pytest.fixture
    def config(self, world, tmp_path):
        return make_node(world, tmp_path / "nodes", "Alpha")

    def test_what_is_ready_is_what_an_answer_would_be(self, world, config):
        train(config)
        upload, signature = ready(config, world.kit.digest)
        again = Node.of_config(config).answer(world.kit.digest)
        assert upload.digest() == Upload.load(again).digest()
        assert signature == Header.read(again).signature

    @pytest.mark.parametrize("name", ["site", "data", "key", "plan", "sent"])
    def test_nothing_is_ready_once_a_file_has_changed(self, world, config, name):
        sent = train(config).path
        folder = Path(config["site"]).parent
        paths = {
            "site": folder / "site.toml",
            "data": Path(config["data"]),
            "key": folder / "Alpha.key",
            "plan": folder / "kit" / "plan.toml",
            "sent": sent,
        }
        assert ready(config, world.kit.digest) is not None
        paths[name].write_bytes(paths[name].read_bytes() + b"\n")
        assert ready(config, world.kit.digest) is None

    @pytest.mark.parametrize("choice", [{"learner": "network"}, {"device": "cuda"}])
    def test_nothing_is_ready_of_another_choice(self, world, config, choice):
        train(config)
        assert ready({**config, **choice}, world.kit.digest) is None

    @pytest.mark.parametrize("noted", [b"", b"[]", b"{}", b"\xff", b'{"files": 1}'])
    def test_a_damaged_note_is_as_none(self, world, config, noted):
        train(config)
        (Path(config["out"]) / "home" / "ready.json").write_bytes(noted)
        assert ready(config, world.kit.digest) is None

    def test_nothing_is_ready_until_it_is_released(self, tmp_path):
        world = make_world(tmp_path / "manual", learner=LEARNER, upload="release = 'manual'\n")
        config = make_node(world, tmp_path / "nodes", "Alpha")
        held_back = train(config).upload
        assert ready(config, world.kit.digest) is None
        Approvals(Path(config["site"]).parent).record("upload", held_back.digest(), "officer")
        train(config)
        assert ready(config, world.kit.digest)[0].digest() == held_back.digest()

    def test_a_site_that_reads_in_its_own_way_is_asked(self, world, config):
        node = Node.of_config(config, lambda plan, own, path: read_site_table(plan, own, path))
        node.answer(world.kit.digest)
        assert ready(config, world.kit.digest) is None


@pytest.mark.parametrize(
    "kind", [HELLO, pytest.param(UPLOAD, marks=pytest.mark.slow("trains twenty sites"))]
)
def test_whatever_is_sent_for_an_upload_is_refused_and_stops_nobody(
    world, nodes, tmp_path, monkeypatch, caplog, kind
):
    sites = dict(enumerate(MALFORMED, start=100))
    wrong = {n: make_node(world, tmp_path / "wrong", site) for n, site in sites.items()}
    for config in wrong.values():
        train(config)
    if kind == UPLOAD:
        monkeypatch.setattr(outbox, "SMALL_BYTES", 0)
    study = world.begin(sites=(*SITES[:3], *MALFORMED))
    grid = DoubleGrid(app, {**nodes, **wrong})
    grid.altered = {(number, kind): MALFORMED[site] for number, site in sites.items()}
    found = Round(grid, study, dataclasses.replace(SHORT, deadline_seconds=6)).run()
    assert found == {**dict.fromkeys(SITES[:3], "in"), **dict.fromkeys(MALFORMED, "refused")}
    assert sorted(adds(study)) == sorted(SITES[:3])
    assert len(asked(grid, UPLOAD)) == (0 if kind == HELLO else len(grid.configs))
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("refused: ")]
    assert len(lines) == len(wrong)
    assert all(len(line.splitlines()) == 1 for line in lines)


def test_every_file_that_leaves_is_a_line_of_the_sites_audit_log(world, nodes):
    Round(DoubleGrid(app, {11: nodes[11]}), world.begin(sites=("Alpha",)), QUICK).run()
    log = Path(nodes[11]["site"]).parent / "audit.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    sent = [line["what"].get("file") for line in lines if line["act"] == "send"]
    assert sent == [file_digest(train(nodes[11]).path)] * 2  # asked for once, then with a hello
    assert ("train", "begun") in {(line["act"], line["outcome"]) for line in lines}


@pytest.mark.parametrize("what", ["plan", "upload"])
def test_what_was_revoked_is_not_sent_again(world, nodes, what):
    config = {**nodes[11]}
    digest = world.kit.digest if what == "plan" else train(config).upload.digest()
    assert ready(config, world.kit.digest) is not None
    Approvals(Path(config["site"]).parent).record(what, digest, "officer", act="revoke")
    assert ready(config, world.kit.digest) is None
    answer = Node.of_config(config).answer(world.kit.digest)
    assert answer == ("not approved" if what == "plan" else "awaiting release")


def test_over_flower_an_upload_is_sealed_too(tmp_path):
    world = make_world(tmp_path / "world", learner=LEARNER, coordinator=CoordinatorKey.generate())
    study = world.begin(sites=("Alpha",))
    world = dataclasses.replace(world, kit=study.kit)
    config = make_node(world, tmp_path / "nodes", "Alpha")
    assert Round(DoubleGrid(app, {11: config}), study, QUICK).run() == {"Alpha": "in"}
    sent = upload_record(Node.of_config(config).answer(world.kit.digest))
    assert list(sent["arrays"]) == ["sealed"]
    assert "metadata" not in sent
    assert study.verify() == []
