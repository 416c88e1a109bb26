"""A study in Flower's simulation: the same bits as by file and in one process."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pandas as pd
import pytest

from predbayes.errors import StudyError
from predbayes_flower import study_server
from predbayes_flower.node import Node
from predbayes_flower.simulation import lay_out, node_config, study_folder
from predbayes_study.coordinator.study import Study
from predbayes_study.payloads.details import save_signed
from predbayes_study.site.fitting import make_upload
from tests.flower.nodes import LEARNER, write_rows
from tests.flower.simulated import simulated
from tests.study.world import make_world

SITES = ("Alpha", "Beta", "Gamma")
LEARNERS = {"Beta": "logistic-regression"}
ENDED = 300  # seconds in which a run has ended on the busiest machine


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), learner=LEARNER)


@pytest.fixture
def root(world, tmp_path):
    """A study with three sites, laid out."""
    tables = {}
    for offset, site in enumerate(SITES):
        write_rows(tmp_path / f"{site}.csv", offset)
        tables[site] = pd.read_csv(tmp_path / f"{site}.csv")
    lay_out(tmp_path / "sites", world.kit.folder, world.labels_path, tables, LEARNERS)
    return tmp_path / "sites"


def configs(root):
    return [node_config({"partition-id": i}, {"simulation": str(root)}) for i in range(len(SITES))]


def finished(world, folder, uploads):
    """A study of files: sites' names, keys and paths."""
    study = Study.init(folder, world.kit.folder, world.labels_path)
    for site, key, path in uploads:
        study.admit(site, key.public)
        study.add(path)
    study.finish()
    return study


def by_file(world, root, folder):
    """Each site trained anew, with its own files and key."""
    uploads = []
    for config in configs(root):
        node = Node.of_config(config)
        training = dataclasses.replace(node.training, out=folder / node.training.site)
        uploads.append((training.site, training.key, training.run(node.rows()).path))
    return finished(world, folder / "study", uploads)


def in_process(world, root, folder):
    """Uploads made in memory, and written only for the study to take."""
    folder.mkdir()
    uploads = []
    for config in configs(root):
        node = Node.of_config(config)
        site, key, rows = node.training.site, node.training.key, node.rows()
        learner = LEARNERS.get(site, "network")
        upload = make_upload(world.kit, site, (rows.inputs, rows.targets), learner=learner)
        save_signed(upload, folder / f"{site}.safetensors", key)
        uploads.append((site, key, folder / f"{site}.safetensors"))
    return finished(world, folder / "study", uploads)


def bits(study):
    """Digests of every upload, its arrays and its signed file, and of the finished model."""
    state = study.state()
    uploads = {u.site: (u.digest, u.file_digest) for u in state.in_order}
    return uploads, state.results[-1].outcome


@pytest.mark.ci("simulations on Ray")
def test_simulation_files_and_one_process_give_the_same_bits(world, root, tmp_path):
    with simulated(tmp_path / "simulation") as simulation:
        assert simulation.run(simulation.app, len(SITES), simulation=root).wait(ENDED) == 0
    study = Study(study_folder(root))
    assert sorted(study.state().uploads) == sorted(SITES)
    assert bits(study) == bits(by_file(world, root, tmp_path / "files"))
    assert bits(study) == bits(in_process(world, root, tmp_path / "memory"))


def test_a_deployed_node_never_heeds_where_a_run_says_that_its_data_are(root):
    own = {"site": "/srv/site.toml", "data": "/srv/rows.csv", "partition-id": 0}
    run = {"simulation": str(root), "site": "/elsewhere", "data": "/elsewhere", "out": "/elsewhere"}
    assert node_config(own, run) == own
    without_number = {"data": "/srv/rows.csv"}
    assert node_config(without_number, run) == without_number


def test_a_simulated_node_finds_its_site_by_its_number(root):
    found = [Node.of_config(config) for config in configs(root)]
    assert [node.training.site for node in found] == list(SITES)
    assert [node.training.learner for node in found] == ["network", LEARNERS["Beta"], "network"]
    keys = Study(study_folder(root)).state().keys
    assert {node.training.site: node.training.key.public.hex for node in found} == keys
    assert all(node.training.approvals.given("plan", node.training.kit.digest) for node in found)
    assert len({config["kit"] for config in configs(root)}) == 1


def test_a_number_without_a_site_is_one_line(root):
    with pytest.raises(StudyError, match="there is no site 3 in"):
        node_config({"partition-id": len(SITES)}, {"simulation": str(root)})
    with pytest.raises(StudyError, match="needs the run configuration's `simulation`"):
        node_config({"partition-id": 0}, {"simulation": ""})


def test_the_result_is_made_on_the_device_of_the_run(monkeypatch, tmp_path):
    told = {}
    monkeypatch.setattr(study_server, "run_study", lambda *_, **options: told.update(options))
    context = SimpleNamespace(run_config={"study": str(tmp_path), "device": "auto"})
    study_server.make_server_app()(None, context)
    assert told == {"finish": True, "device": "auto"}


def test_a_layout_is_new_and_absolute(world, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError, match="exists; give another folder"):
        lay_out(root, world.kit.folder, world.labels_path, {})
    with pytest.raises(StudyError, match="is relative"):
        lay_out(root.relative_to(tmp_path), world.kit.folder, world.labels_path, {})
