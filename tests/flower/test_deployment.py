"""The same study with real SuperLinks and SuperNodes, over TLS with node keys, on this machine."""

from __future__ import annotations

import dataclasses
import json
import signal
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch

from predbayes.exchange.signing import SigningKey
from predbayes.exchange.upload import Upload
from predbayes.flower.client import Node
from predbayes.posterior.samples import WeightSamples
from predbayes.study.learners import site_network
from predbayes.study.site import HELD_BACK
from predbayes.study.study import Study
from tests.flower.deployment import deployed, until
from tests.flower.nodes import LEARNER, make_node
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.slow  # every message starts a process that imports torch

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


def restart_node(deployment, name, config, seconds=100):
    """As a supervisor does: again and again, while the SuperLink takes it for alive still."""
    end = time.monotonic() + seconds
    process = deployment.start_node(name, config)
    while time.monotonic() < end:
        time.sleep(1)
        if process.popen.poll() is not None:
            time.sleep(5)
            process = deployment.start_node(name, config)


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


def test_a_deployment_gives_the_bits_that_files_give(world, nodes, federation, tmp_path):
    study = world.begin("flower", sites=tuple(nodes))
    assert federation.start_run(study.folder).wait(ENDED) == 0
    without = by_file(world, nodes, tmp_path)
    assert digests(study) == digests(without)
    assert outcome(study) == outcome(without)


def test_three_sites_by_flower_and_two_by_file_finish_one_study(world, nodes, federation):
    study = world.begin("mixed")
    study.add(world.file("Delta"))
    run = federation.start_run(study.folder, json_logs=True)
    until(lambda: "to the deadline" in run.text, 90, "the round has begun", run)
    study.add(world.file("Epsilon"))  # while the round is under way
    assert run.wait(ENDED) == 0
    assert len(study.state().results[-1].uploads) == 5
    lines = [json.loads(line) for line in run.text.splitlines() if line.startswith("{")]
    assert any(line["message"] == "Alpha: in" for line in lines)


def test_nodes_that_are_wrong_each_in_its_way_stop_nobody(world, nodes, federation):
    root = world.root / "wrong-nodes"
    wrong = {
        "Reluctant": make_node(world, root, "Reluctant", approve=False),
        "Foreign": make_node(world, root, "Foreign"),
        "Broken": make_node(world, root, "Broken"),
        "Raising": make_node(world, root, "Raising"),
        "Stranger": make_node(world, root, "Stranger"),
    }
    study = world.begin("wrong", sites=(*nodes, *wrong))
    (root / "Foreign" / "Foreign.key").unlink()
    SigningKey.generate().save(root / "Foreign" / "Foreign.key")
    (root / "Broken" / "rows.csv").write_text("x,y,kind\n41.4142,Qanary,red\n")
    (root / "Raising" / "out").write_text("a file where a folder should be")
    for name in ("Reluctant", "Foreign", "Broken", "Raising"):
        federation.register(name)
        federation.start_node(name, wrong[name])
    federation.make_key("Stranger")
    stranger = federation.start_node("Stranger", wrong["Stranger"])

    run = federation.start_run(study.folder, deadline_seconds=180)
    run.wait(ENDED)
    assert stranger.wait(1) != 0
    assert "Exit Code: 305" in stranger.text
    assert sorted(study.state().uploads) == sorted(nodes)
    assert len(study.state().results) == 1
    last = [line for line in run.text.splitlines() if "to the deadline" in line][-1]
    assert "in: Alpha, Beta, Gamma" in last
    assert "not approved: Reluctant" in last
    assert "refused: Foreign" in last
    assert "failed: Broken, Raising" in last
    assert "not there: Stranger" in last
    assert "Qanary" not in run.text
    assert "41.4142" not in run.text
    for name in wrong:
        federation.kill_node(name)


def test_behind_nginx_a_node_takes_part_and_nobody_reaches_control(world, nodes, federation):
    port = federation.start_nginx()
    federation.connect("outside", port)
    federation.register("Outside")
    outside = make_node(world, world.root / "outside", "Outside")
    federation.start_node("Outside", outside, port)
    study = world.begin("behind", sites=(*nodes, "Outside"))
    assert federation.start_run(study.folder).wait(ENDED) == 0
    assert len(study.state().results[-1].uploads) == 4

    federation.make_key("another")
    key = federation.root / "keys" / "another.pub"
    for command in (
        ("list", "outside"),
        ("supernode", "list", "outside"),
        ("supernode", "register", key, "outside"),
        ("run", federation.root / "app", "outside"),
    ):
        assert federation.flwr(*command).returncode != 0, command
    context = ssl.create_default_context(cafile=str(federation.certificates / "ca.crt"))
    assert _status(f"https://localhost:{port}/health", context) == 200
    for path in ("v1/control/list-runs", "v1/runtime/get-nodes", "docs", "openapi.json"):
        assert _status(f"https://localhost:{port}/{path}", context) == 403
    # The same doors are open to who reaches the SuperLink itself.
    assert federation.flwr("supernode", "list", "study").returncode == 0
    federation.kill_node("Outside")


def _status(url, context):
    try:
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_a_superlink_that_was_killed_costs_no_training_and_no_upload(tmp_path, deployment):
    world = make_world(tmp_path / "world", learner=LONG)
    nodes = {site: make_node(world, tmp_path / "nodes", site) for site in SITES[:3]}
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


def test_of_two_nodes_killed_in_training_the_one_that_comes_back_counts(tmp_path, deployment):
    world = make_world(tmp_path / "world", learner=LONG)
    nodes = {site: make_node(world, tmp_path / "nodes", site) for site in SITES}
    deployment.start_superlink()
    start_nodes(deployment, nodes)
    study = world.begin()
    run = deployment.start_run(study.folder, deadline_seconds=270)
    for site in ("Delta", "Epsilon"):
        until(lambda site=site: in_training(nodes[site]), ENDED, f"{site} trains", run)
        deployment.kill_node(site)
    restart_node(deployment, "Delta", nodes["Delta"])
    assert run.wait(ENDED) == 0
    assert sorted(study.state().uploads) == ["Alpha", "Beta", "Delta", "Gamma"]
    assert len(study.state().results[-1].uploads) == 4


def test_a_frozen_node_and_a_killed_client_process_are_asked_anew(tmp_path, deployment):
    world = make_world(tmp_path / "world", learner=LONG)
    nodes = {site: make_node(world, tmp_path / "nodes", site) for site in SITES[:3]}
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


def large_upload(world, site):
    """Weights as a site might send them, without the training."""
    module = site_network(world.kit.plan).create(torch.Generator().manual_seed(0))
    upload = Upload.of_weights(WeightSamples.of(module), num_rows=72)
    # No two samples alike: equal pieces would travel once.
    factors = torch.arange(1, world.kit.plan.learner.max_samples + 1) / 10
    arrays = {
        name: array * factors.view(-1, *[1] * (array.dim() - 1))
        for name, array in upload.arrays.items()
    }
    told = dataclasses.replace(upload, arrays=arrays)
    return told.from_site(site).for_plan(world.kit.digest, "network")


def keep_upload(config, upload):
    """Leave an upload in a node's folder as its training would."""
    node = Node.of_config(config)
    home = Path(config["out"]) / "home"
    home.mkdir(parents=True)
    upload.save(home.parent / HELD_BACK)
    marker = {"identity": node.training._identity(node.rows()), "upload": upload.digest()}
    (home / "trained.json").write_text(json.dumps(marker))


def test_an_upload_of_300_megabytes_passes(tmp_path, deployment):
    world = make_world(
        tmp_path / "world",
        kind="weights",
        learner="[learner]\nholdout = 0.2\n",
        model="hidden = [3550, 3550]",
    )
    config = make_node(world, tmp_path / "nodes", "Alpha")
    upload = large_upload(world, "Alpha")
    keep_upload(config, upload)
    deployment.start_superlink()
    start_nodes(deployment, {"Alpha": config})
    study = world.begin(sites=("Alpha",))
    run = deployment.start_run(study.folder, deadline_seconds=300)
    run.wait(ENDED)  # one site is less than the quorum: the round ends, and keeps what is in
    accepted = study.state().uploads["Alpha"]
    assert accepted.digest == upload.digest()
    assert accepted.num_bytes >= 300_000_000
    assert "the plan's quorum is 2" in run.text
