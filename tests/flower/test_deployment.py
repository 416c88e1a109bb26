"""The same study with real SuperLinks and SuperNodes, over TLS with node keys, on this machine."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from predbayes_flower.node import Node
from predbayes_study.coordinator.study import Study
from predbayes_study.site.training import HELD_BACK
from tests.flower.deployment import deployed, until
from tests.flower.nodes import LEARNER, make_node
from tests.study.world import SITES, make_world

slow = pytest.mark.slow("every message starts a process that imports torch")

LONG = LEARNER.replace("200", "5000")  # steps: time to be killed in
ENDED = 550  # seconds in which a run has ended on the busiest machine


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), learner=LEARNER)


@pytest.fixture(scope="module")
def nodes(world):
    return {site: make_node(world, world.root / "nodes", site) for site in SITES[:3]}


@pytest.fixture(scope="module")
def federation(nodes, tmp_path_factory):
    """A SuperLink and three nodes that stay for the tests of this module."""
    with deployed(tmp_path_factory.mktemp("federation") / "deployment") as made:
        made.start_superlink()
        start_nodes(made, nodes)
        yield made


@pytest.fixture
def deployment(tmp_path):
    """A SuperLink of a test's own."""
    with deployed(tmp_path / "deployment") as made:
        yield made


def start_nodes(deployment, nodes):
    for name, config in nodes.items():
        deployment.register(name)
        deployment.start_node(name, config)


def network_node(world, folder, site):
    """A node whose training takes long enough to be disturbed."""
    return make_node(world, folder / "nodes", site, learner="network")


def by_file(world, nodes, folder):
    """The same study without Flower, each site trained anew."""
    study = Study.init(folder / "study", world.kit.folder, world.labels_path)
    for site, config in nodes.items():
        study.admit(site, world.key(site).public)
        node = Node.of_config({**config, "out": str(folder / site)})
        study.add(node.training.run(node.rows()).path)
    study.finish()
    return study


def digests(study):
    return {u.site: (u.digest, u.file_digest) for u in study.state().in_order}


def outcome(study):
    """Digest of the result, of which the model's bits are a part."""
    return study.state().results[-1].outcome


def trained(config):
    """When a node finished its training, to the nanosecond; None if it did not."""
    marker = Path(config["out"]) / "home" / "trained.json"
    return marker.stat().st_mtime_ns if marker.exists() else None


def in_training(config):
    return (Path(config["out"]) / "home").exists() and trained(config) is None


@pytest.mark.ci("every message starts a process that imports torch")
def test_a_deployment_gives_the_bits_that_files_give(world, nodes, federation, tmp_path):
    study = world.begin("flower", sites=tuple(nodes))
    assert federation.start_run(study.folder).wait(ENDED) == 0
    assert federation.last_run()["status"] == "finished:completed"
    without = by_file(world, nodes, tmp_path)
    assert digests(study) == digests(without)
    assert outcome(study) == outcome(without)


@slow
def test_a_superlink_that_was_killed_costs_no_training_and_no_upload(tmp_path, deployment):
    world = make_world(tmp_path / "world", learner=LONG)
    nodes = {site: network_node(world, tmp_path, site) for site in SITES[:3]}
    superlink = deployment.start_superlink()
    start_nodes(deployment, nodes)
    study = world.begin(sites=tuple(nodes))
    first = deployment.start_run(study.folder)
    until(lambda: bool(study.state().uploads), ENDED, "an upload is in", first)
    superlink.kill()
    # Nodes go on without it; what they have then is lost with the run, but for their disks.
    until(lambda: all(map(trained, nodes.values())), ENDED, "all have trained")
    before = {site: trained(config) for site, config in nodes.items()}
    assert len(study.state().uploads) < len(nodes)
    deployment.start_superlink()
    second = deployment.start_run(study.folder)
    assert second.wait(ENDED) == 0
    assert {site: trained(config) for site, config in nodes.items()} == before
    without = by_file(world, nodes, tmp_path / "files")
    assert digests(study) == digests(without)
    assert outcome(study) == outcome(without)


@slow
def test_of_two_nodes_killed_in_training_the_one_that_comes_back_counts(tmp_path, deployment):
    world = make_world(tmp_path / "world", learner=LONG)
    nodes = {site: network_node(world, tmp_path, site) for site in SITES}
    deployment.start_superlink()
    start_nodes(deployment, nodes)
    study = world.begin()
    run = deployment.start_run(study.folder, deadline_seconds=270)
    for site in ("Delta", "Epsilon"):
        until(lambda site=site: in_training(nodes[site]), ENDED, f"{site} trains", run)
        deployment.kill_node(site)
    deployment.supervise("Delta", nodes["Delta"], run)
    assert run.wait(ENDED) == 0
    assert sorted(study.state().uploads) == ["Alpha", "Beta", "Delta", "Gamma"]
    assert len(study.state().results[-1].uploads) == 4


@slow
def test_a_frozen_node_and_a_killed_client_process_are_asked_anew(tmp_path, deployment):
    world = make_world(tmp_path / "world", learner=LONG)
    nodes = {site: network_node(world, tmp_path, site) for site in SITES[:3]}
    deployment.start_superlink()
    start_nodes(deployment, nodes)
    study = world.begin(sites=tuple(nodes))
    run = deployment.start_run(study.folder)
    until(lambda: in_training(nodes["Alpha"]), ENDED, "Alpha trains", run)
    assert deployment.signal_node("Alpha", signal.SIGKILL, "flwr-clientapp")
    until(lambda: in_training(nodes["Beta"]), ENDED, "Beta trains", run)
    deployment.signal_node("Beta", signal.SIGSTOP)
    time.sleep(75)  # longer than the SuperLink waits for a sign of life
    deployment.signal_node("Beta", signal.SIGCONT)
    assert run.wait(ENDED) == 0
    assert len(study.state().results[-1].uploads) == 3
    without = by_file(world, nodes, tmp_path / "files")
    assert digests(study) == digests(without)


def keep_upload(config, upload):
    """Leave an upload in a node's folder as its training would."""
    node = Node.of_config(config)
    home = Path(config["out"]) / "home"
    home.mkdir(parents=True)
    upload.save(home.parent / HELD_BACK)
    marker = {"identity": node.training._identity(node.rows()), "upload": upload.digest()}
    (home / "trained.json").write_text(json.dumps(marker))


@slow
def test_an_upload_above_nginxs_default_limit_passes_with_and_without_nginx(tmp_path, deployment):
    world = make_world(tmp_path / "world", learner="[learner]\nholdout = 0.2\n", unlabelled=200_000)
    deployment.start_superlink()
    deployment.start_nginx()
    for site, port in (("Alpha", None), ("Beta", deployment.start_door("Beta")[1])):
        config = make_node(world, tmp_path / "nodes", site)
        upload = world.upload(site)
        keep_upload(config, upload)
        deployment.register(site)
        deployment.start_node(site, config, port)
        study = world.begin(f"study-{site}", sites=(site,))
        run = deployment.start_run(study.folder, deadline_seconds=300)
        # One site is less than the quorum: the run fails in one line, and what came is kept.
        run.wait(ENDED)
        assert "the round ended with 1 site; the plan's quorum is 2" in run.text
        assert deployment.last_run()["status"] == "finished:failed"
        accepted = study.state().uploads[site]
        assert accepted.digest == upload.digest()
        assert accepted.num_bytes >= 2_000_000
