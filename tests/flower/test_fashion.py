"""Images over TLS with nodes of their own: whoever dies meanwhile, the bits of one process."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import predbayes as pb
from predbayes.data.registry import load
from predbayes.seeding import generator
from tests.flower.deployment import BIN, ROOT, deployed, until
from tests.flower.simulated import run_config

pytestmark = [pytest.mark.slow("a deployment that trains on images"), pytest.mark.data]

APP = ROOT / "tests" / "flower" / "fashion"
TASK = runpy.run_path(str(APP / "images" / "task.py"))
NAMES = ("Alpha", "Beta", "Gamma")
NUM_ROWS, NUM_ROUNDS = 200, 5  # of a site; of a run
LONG = 200  # epochs: time to be killed in
ENDED = 550  # seconds in which a run has ended on the busiest machine


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The rows of each site, and of the coordinator, by name."""
    folder, images = tmp_path_factory.mktemp("rows"), load("fashion-mnist", rng=generator(0))
    inputs, targets = images.train_inputs.flatten(1).numpy(), images.train_targets.numpy()
    paths = {name: folder / f"{name}.npz" for name in (*NAMES, "reference")}
    for start, path in zip(range(0, 4 * NUM_ROWS, NUM_ROWS), paths.values(), strict=True):
        part = slice(start, start + NUM_ROWS)
        np.savez(path, inputs=inputs[part], targets=targets[part])
    return paths


@pytest.fixture(scope="module")
def federation(files, tmp_path_factory):
    """A SuperLink and three nodes that stay for the tests of this module."""
    root = tmp_path_factory.mktemp("federation")
    with deployed(root / "deployment") as deployment:
        deployment.start_superlink()
        for name in NAMES:
            deployment.register(name)
            deployment.start_node(name, node(root, files, name))
        yield Federation(deployment, root, files)


def node(root, files, name):
    return {"site": name, "out": root / "out", "data": files[name]}


class Federation:
    """Nodes that stay, and runs of the app."""

    def __init__(self, deployment, root, files):
        self.deployment, self.root, self.files = deployment, root, files

    def begin(self, **config):
        """`flwr run`."""
        told = run_config({"reference": self.files["reference"], **config})
        return self.deployment.start("run", BIN / "flwr", "run", APP, "study", "--stream", *told)

    def learnt(self):
        """When each file that nodes have learnt was written, by its path."""
        paths = (self.root / "out").rglob("*.safetensors")
        return {path: path.stat().st_mtime_ns for path in paths}

    def learns(self, name, num_before):
        """Whether a site learns just now, and has learnt so many rounds of this run before."""
        made_for = [path for path in (self.root / "out" / name).glob("*") if path.is_dir()]
        kept = [len(list(path.glob("*.safetensors"))) for path in made_for]
        return kept == [num_before]

    def assert_same(self, out, seed, epochs):
        """A result has the bits of the same run in one process."""
        told = SimpleNamespace(run_config={"num-epochs": epochs})
        sites = {name: TASK["images"](self.files[name]) for name in NAMES}
        reference = pb.ReferenceRows.of(TASK["images"](self.files["reference"]))
        alone = pb.run(TASK["method"](told), sites, reference, seed=seed, num_rounds=NUM_ROUNDS)
        saved, inputs = pb.load(out), TASK["images"](self.files["Alpha"])[0]
        assert saved.account == alone.account
        assert torch.equal(saved.predictive.natural(), alone.predictive.natural())
        assert torch.equal(saved.predict(inputs).natural(), alone.predict(inputs).natural())


def test_five_rounds(federation, tmp_path):
    assert federation.begin(seed=1, out=tmp_path / "result").wait(ENDED) == 0
    federation.assert_same(tmp_path / "result", seed=1, epochs=5)


def test_a_node_that_is_killed_in_a_round_and_comes_back(federation, tmp_path):
    run = federation.begin(seed=2, out=tmp_path / "result", **{"num-epochs": LONG})
    until(lambda: federation.learns("Gamma", 1), ENDED, "Gamma learns its second round", run)
    federation.deployment.kill_node("Gamma")
    before = federation.learnt()
    config = node(federation.root, federation.files, "Gamma")
    federation.deployment.supervise("Gamma", config, run)
    assert run.wait(ENDED) == 0
    assert before.items() <= federation.learnt().items()  # no round was learnt twice
    federation.assert_same(tmp_path / "result", seed=2, epochs=LONG)


def test_a_run_that_is_stopped_and_begun_again(federation, tmp_path):
    """The ServerApp is killed, not asked; the next one knows nothing of it but seed and rows."""
    told = {"seed": 3, "out": tmp_path / "result", "num-epochs": LONG}
    first = federation.begin(**told)
    until(lambda: federation.learns("Beta", 2), ENDED, "Beta learns its third round", first)
    federation.deployment.kill_server_app()
    until(lambda: federation.deployment.last_run()["status"] == "finished:failed", 120, "it failed")
    before = federation.learnt()
    assert len(before) >= 2 * len(NAMES)
    assert not (tmp_path / "result").exists()
    assert federation.begin(**told).wait(ENDED) == 0
    after = federation.learnt()
    assert before.items() <= after.items()
    assert len(after) == NUM_ROUNDS * len(NAMES)
    federation.assert_same(tmp_path / "result", seed=3, epochs=LONG)
