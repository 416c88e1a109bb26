"""A round in which nodes write uploads to a real S3 server and send no more than digests."""

from __future__ import annotations

import gzip
import hashlib
import json
import secrets
import urllib.request
from dataclasses import replace
from pathlib import Path

import fsspec
import pandas as pd
import pytest

from predbayes.errors import StudyError
from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.storage import Storage
from predbayes.files import file_digest
from predbayes.flower import HELLO, UPLOAD, transit
from predbayes.flower.node import Node
from predbayes.flower.server import Round
from predbayes.flower.simulation import lay_out, study_folder
from predbayes.flower.study_client import app
from predbayes.flower.transit import Transit
from predbayes.flower.wire import read_words
from predbayes.study.coordinator.intake import Intake
from predbayes.study.coordinator.study import Study
from tests.flower.double import DoubleGrid
from tests.flower.nodes import LEARNER, QUICK, SHORT, make_node, write_rows
from tests.flower.simulated import simulated
from tests.storage.server import BUCKET, s3_server
from tests.study.world import SITES, make_world

PLACE = f"s3://{BUCKET}/round"
THREE = SITES[:3]
ENDED = 550  # seconds in which a run has ended on the busiest machine


@pytest.fixture(scope="module")
def server():
    with s3_server() as started:
        yield started


@pytest.fixture
def s3(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.files()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), learner=LEARNER)


@pytest.fixture(scope="module")
def nodes(world, server, tmp_path_factory):
    """Three nodes that have trained, whose policy names the storage."""
    root, found = tmp_path_factory.mktemp("nodes"), {}
    for number, site in enumerate(THREE, start=11):
        found[number] = make_node(world, root, site, learner="logistic-regression")
        allow(Path(found[number]["site"]), server)
        node = Node.of_config(found[number])
        node.answer(node.training.kit.digest)
    return found


def begin(world, sites=THREE):
    """A study beside the others of this world."""
    return world.begin(secrets.token_hex(4), sites)


def allow(site_file, server):
    named = f'[policy]\nstorage = ["{server.address}/{BUCKET}/round"]\n'
    site_file.write_text(site_file.read_text() + named)


class Spied:
    """The ClientApp, and what it was asked and answered, by node and kind."""

    def __init__(self):
        self.asked, self.answered = {}, {}

    def __call__(self, message, context):
        reply = app(message, context)
        key = context.node_id, message.metadata.message_type
        self.asked[key], self.answered[key] = read_words(message.content), reply.content
        return reply

    def address(self, node, kind=HELLO):
        return self.asked[node, kind]["address"]


def write(address, content, **more):
    """What a node could do that is not ours."""
    told = {"Content-Type": "application/octet-stream", **more}
    urllib.request.urlopen(urllib.request.Request(address, content, told, method="PUT")).close()


def made(study):
    return {upload.site: upload.file_digest for upload in study.state().in_order}


def test_uploads_go_to_the_storage_and_digests_over_flower(world, nodes, s3):
    study, spied = begin(world), Spied()
    assert Round(DoubleGrid(spied, nodes), study, QUICK, PLACE).run() == dict.fromkeys(THREE, "in")
    for node in nodes:
        answer = spied.answered[node, HELLO]
        assert set(answer) == {"words"}
        assert read_words(answer)["stored"] in made(study).values()
    inline = begin(world)
    Round(DoubleGrid(app, nodes), inline, QUICK).run()
    assert made(study) == made(inline)
    assert not s3.exists(f"{BUCKET}/round")  # removed with the round
    assert study.verify() == []


def test_one_that_has_to_train_first_writes_when_it_is_asked(world, server, s3, tmp_path):
    config = make_node(world, tmp_path / "nodes", "Alpha", learner="logistic-regression")
    allow(Path(config["site"]), server)
    study, spied = begin(world, ("Alpha",)), Spied()
    assert Round(DoubleGrid(spied, {11: config}), study, QUICK, PLACE).run() == {"Alpha": "in"}
    assert set(spied.answered[11, UPLOAD]) == {"words"}
    log = (Path(config["site"]).parent / "audit.jsonl").read_text()
    (sent,) = [line for line in map(json.loads, log.splitlines()) if line["act"] == "send"]
    assert sent["what"]["to"].startswith(f"{server.address}/{BUCKET}/round/")
    assert "X-Amz" not in log


def test_a_sealed_upload(tmp_path, server, s3):
    world = make_world(tmp_path / "sealed", learner=LEARNER, coordinator=CoordinatorKey.generate())
    study = world.begin(sites=("Alpha",))
    (tmp_path / "kit").symlink_to(study.folder / "kit")
    config = make_node(world, tmp_path / "nodes", "Alpha", learner="logistic-regression")
    config["kit"] = str(study.folder / "kit")
    allow(Path(config["site"]), server)
    assert Round(DoubleGrid(app, {11: config}), study, QUICK, PLACE).run() == {"Alpha": "in"}


def attacked(world, nodes, alter, settings=SHORT):
    """A round in which the first node's answer is altered before it is sent."""
    study, spied = begin(world), Spied()
    grid = DoubleGrid(spied, nodes)
    grid.altered[11, HELLO] = lambda content: alter(content["words"], spied)
    states = Round(grid, study, settings, PLACE).run()
    assert {site: states[site] for site in THREE[1:]} == dict.fromkeys(THREE[1:], "in")
    return study, states.get("Alpha", "not there")


class TestAttacks:
    def test_a_digest_of_something_else(self, world, nodes, s3, caplog):
        def alter(words, _spied):
            words["stored"] = hashlib.sha256(b"else").hexdigest()

        study, state = attacked(world, nodes, alter)
        assert state == "refused"
        assert "what is on the storage is not what its answer says" in caplog.text
        assert "Alpha" not in study.state().uploads

    @pytest.mark.parametrize("content", [b"", b"something else", bytes(100_000)])
    def test_another_object_before_it_is_fetched(self, world, nodes, s3, content):
        def alter(_words, spied):
            write(spied.address(11), content)

        assert attacked(world, nodes, alter)[1] == "refused"

    def test_an_object_that_says_it_is_compressed_is_not_unpacked(self, world, nodes, s3):
        packed = gzip.compress(bytes(50_000_000))

        def alter(words, spied):
            write(spied.address(11), packed, **{"Content-Encoding": "gzip"})
            words["stored"], words["bytes"] = hashlib.sha256(packed).hexdigest(), len(packed)

        assert attacked(world, nodes, alter)[1] == "refused"

    def test_a_longer_object_with_the_same_beginning_is_the_upload(self, world, nodes, s3):
        """No more is read than was told, and that has the digest and the signature."""

        def alter(_words, spied):
            (key,) = [key for key in s3.find(f"{BUCKET}/round") if key in spied.address(11)]
            write(spied.address(11), s3.cat_file(key) + bytes(100_000))

        assert attacked(world, nodes, alter)[1] == "in"

    def test_another_object_after_it_is_in_changes_nothing(self, world, nodes, s3):
        study, spied = begin(world), Spied()
        Round(DoubleGrid(spied, nodes), study, QUICK, PLACE).run()
        before = made(study)
        write(spied.address(11), b"something else")
        assert made(study) == before
        assert study.verify() == []

    def test_nothing_was_written(self, world, nodes, s3, caplog):
        def alter(_words, spied):
            (key,) = [key for key in s3.find(f"{BUCKET}/round") if key in spied.address(11)]
            s3.rm_file(key)

        assert attacked(world, nodes, alter)[1] == "refused"
        assert "it cannot be read: there is nothing" in caplog.text

    @pytest.mark.parametrize("size", ["most", -1, 0, 1.5, "10", True])
    def test_a_size_that_no_upload_has_is_refused_unread(self, world, nodes, s3, size):
        def alter(words, _spied):
            words["bytes"] = Intake.of(world.kit.plan).max_bytes + 1 if size == "most" else size

        assert attacked(world, nodes, alter)[1] == "refused"

    @pytest.mark.parametrize("digest", ["", "../../x", "0" * 63, 7])
    def test_what_is_no_digest(self, world, nodes, s3, digest):
        def alter(words, _spied):
            words["stored"] = digest

        assert attacked(world, nodes, alter)[1] == "refused"

    def test_a_node_that_says_it_is_another_site(self, world, nodes, s3):
        """It is handed an address of its own, and what it writes there is not Beta's."""

        def alter(words, _spied):
            words["site"] = "Beta"

        study, state = attacked(world, nodes, alter)
        assert state == "not there"
        own = Node.of_config(nodes[12]).answer(world.kit.digest)
        assert made(study)["Beta"] == file_digest(own)

    def test_a_node_cannot_name_what_is_fetched(self, world, nodes, s3):
        """Whatever it says of others' objects, its own is read."""

        def alter(words, spied):
            words["address"] = words["path"] = words["name"] = f"{BUCKET}/round/other"

        assert attacked(world, nodes, alter)[1] == "in"

    def test_addresses_cannot_be_guessed_from_one_another(self, s3):
        one = Transit.at(PLACE, 60)
        addresses = [one.address(node).partition("?")[0] for node in (11, 12, 11)]
        assert addresses[0] == addresses[2] != addresses[1]
        last = [address.rpartition("/")[2] for address in addresses]
        assert all(len(name) == 32 for name in last)

    def test_an_upload_of_another_site_on_the_storage(self, world, nodes, s3):
        """Beta's own file, copied, in the name of Alpha."""
        beta = Node.of_config(nodes[12]).answer(world.kit.digest).read_bytes()

        def alter(words, spied):
            write(spied.address(11), beta)
            words["stored"], words["bytes"] = hashlib.sha256(beta).hexdigest(), len(beta)

        assert attacked(world, nodes, alter)[1] == "refused"


class TestPolicy:
    """The coordinator names the address, so the site must have named it, too."""

    def test_a_site_whose_policy_names_no_storage_writes_nothing(self, world, nodes, s3, tmp_path):
        silent = make_node(world, tmp_path, "Alpha", learner="logistic-regression")
        spied = Spied()
        grid = DoubleGrid(spied, {**nodes, 11: silent})
        states = Round(grid, begin(world), replace(QUICK, deadline_seconds=20), PLACE).run()
        assert states == {"Alpha": "failed", "Beta": "in", "Gamma": "in"}
        told = read_words(spied.answered[11, UPLOAD])
        assert told == {"status": "failed", "reason": "PlanError"}
        assert "stored" not in read_words(spied.answered[11, HELLO])
        log = (tmp_path / "Alpha" / "audit.jsonl").read_text().splitlines()
        assert json.loads(log[-1])["outcome"] == "refused"

    @pytest.mark.parametrize("place", ["elsewhere", "round-2"])
    def test_an_address_elsewhere_on_the_same_server(self, world, nodes, s3, place):
        study = begin(world)
        states = Round(DoubleGrid(app, nodes), study, SHORT, f"s3://{BUCKET}/{place}").run()
        assert set(states.values()) == {"failed"}
        assert not s3.exists(f"{BUCKET}/{place}")

    def test_a_file_of_the_nodes_own_disk_is_no_address(self, world, nodes, s3, monkeypatch):
        target = Path(nodes[11]["out"]) / "written"
        monkeypatch.setattr(Transit, "address", lambda *_: f"file://{target}")
        study = begin(world)
        states = Round(DoubleGrid(app, nodes), study, SHORT, PLACE).run()
        assert set(states.values()) == {"failed"}
        assert not target.exists()


def test_a_storage_that_is_away_for_a_moment(world, nodes, s3, monkeypatch, caplog):
    fetch, failures = Storage.fetch, [1, 1]

    def failing(self, pack, folder):
        if failures and failures.pop():
            raise StudyError("s3://uploads/round cannot be read: away")
        return fetch(self, pack, folder)

    monkeypatch.setattr(transit.Storage, "fetch", failing)
    study = begin(world)
    states = Round(DoubleGrid(app, nodes), study, QUICK, PLACE).run()
    assert states == dict.fromkeys(THREE, "in")
    assert "away; it is tried again" in caplog.text


@pytest.mark.parametrize("place", ["memory://round", "nothing://a", "file:///tmp/round"])
def test_a_storage_that_cannot_sign_addresses_ends_the_run_at_once(world, nodes, place):
    grid = DoubleGrid(app, nodes)
    with pytest.raises(StudyError, match=r"only addresses s3://|no address of a storage"):
        Round(grid, begin(world), SHORT, place).run()
    assert grid.asked == []


@pytest.mark.ci("a simulation on Ray")
def test_in_flowers_simulation(server, s3, tmp_path):
    world = make_world(tmp_path / "world", learner=LEARNER)
    tables = {}
    for offset, site in enumerate(THREE):
        write_rows(tmp_path / f"{site}.csv", offset)
        tables[site] = pd.read_csv(tmp_path / f"{site}.csv")
    learners = dict.fromkeys(THREE, "logistic-regression")
    root = tmp_path / "sites"
    lay_out(root, world.kit.folder, world.labels_path, tables, learners)
    for number in range(len(THREE)):
        allow(root / "sites" / str(number) / "site.toml", server)
    with simulated(tmp_path / "flower", **server.environment) as simulation:
        run = simulation.run(
            simulation.app, len(THREE), simulation=root, storage=f"{PLACE}/simulated", finish=False
        )
        assert run.wait(ENDED) == 0, run.text[-3000:]
    state = Study(study_folder(root)).state()
    assert sorted(state.uploads) == sorted(THREE), run.text[-3000:]
    logs = [(root / "sites" / str(n) / "audit.jsonl").read_text() for n in range(len(THREE))]
    place = f"{BUCKET}/round/simulated"  # others leave files in the round's, if their storage broke
    assert all(f"{server.address}/{place}/" in log for log in logs)
    assert not fsspec.filesystem("s3", skip_instance_cache=True).exists(place)
