"""The example of any method over Flower, in simulation and deployed: the bits of one process."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import pytest
import torch

import predbayes as pb
from predbayes_flower.method_client import site_name
from tests.flower.deployment import BIN, ROOT, deployed, until
from tests.flower.simulated import run_config, simulated

EXAMPLE = ROOT / "examples" / "flower-any-method"
TASK = runpy.run_path(str(EXAMPLE / "digits" / "task.py"))
NUM_SITES = 3
ENDED = 300  # seconds in which a run has ended on the busiest machine


def node(number, **config):
    return {"partition-id": number, "num-partitions": NUM_SITES, **config}


def in_process(configs, method="fedavg", epochs=30, rounds=3):
    """The same run without Flower, over the sites of these nodes."""
    told = {"method": method, "num-epochs": epochs}
    contexts = [SimpleNamespace(node_config=config, run_config=told) for config in configs]
    sites = {site_name(context): TASK["rows"](context) for context in contexts}
    made, reference = TASK["method"](contexts[0]), TASK["reference"](contexts[0])
    return pb.run(made, sites, reference, num_rounds=rounds)


def assert_same(folder, result):
    """What a run saved predicts what another result does, bit by bit."""
    saved, inputs = pb.load(folder), TASK["digits"]()[0]
    assert saved.account.model_copy(update={"left_out": {}}) == result.account
    assert torch.equal(saved.predictive.natural(), result.predictive.natural())
    assert torch.equal(saved.predict(inputs).natural(), result.predict(inputs).natural())


@pytest.mark.slow("two simulations on Ray")
def test_methods_in_simulation_have_the_bits_of_one_process(tmp_path):
    nodes = [node(number) for number in range(NUM_SITES)]
    with simulated(tmp_path / "simulation") as simulation:
        for method, rounds in (("fedavg", 2), ("distilled", 1)):
            told = {"method": method, "num-rounds": rounds, "out": tmp_path / method}
            assert simulation.run_app(EXAMPLE, NUM_SITES, **told).wait(ENDED) == 0
            assert_same(tmp_path / method, in_process(nodes, method, rounds=rounds))
    gallery = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "regenerate")))
    page, loaded = gallery.shown("examples/flower-any-method"), pb.load(tmp_path / "distilled")
    assert list(gallery.differences(page, str(loaded))) == []


@pytest.mark.slow("a deployment whose nodes train for 300 epochs")
def test_deployed_a_node_that_is_killed_in_training_is_left_out_and_stops_nobody(tmp_path):
    names = ("Alpha", "Beta", "Gamma")
    nodes = {
        name: node(number, site=name, out=str(tmp_path / "out"))
        for number, name in enumerate(names)
    }
    long = {"num-epochs": 300, "num-rounds": 2, "poll-seconds": 0.5}

    def learnt(name):
        paths = (tmp_path / "out" / name).rglob("*.safetensors")
        return {path: path.stat().st_mtime_ns for path in paths}

    with deployed(tmp_path / "deployment") as deployment:

        def begin(**config):
            told = run_config({**long, **config})
            run = ("run", EXAMPLE, "study", "--stream", *told)
            return deployment.start("run", BIN / "flwr", *run)

        deployment.start_superlink()
        for name, config in nodes.items():
            deployment.register(name)
            deployment.start_node(name, config)
        short = {"quorum": 2, "grace-seconds": 1.0}
        run = begin(out=tmp_path / "two", **short)
        until(lambda: (tmp_path / "out" / "Gamma").exists(), ENDED, "Gamma learns", run)
        deployment.kill_node("Gamma")
        assert not learnt("Gamma")
        assert run.wait(ENDED) == 0
        assert list(pb.load(tmp_path / "two").account.left_out) == ["Gamma"]
        alive = [nodes[name] for name in names[:2]]
        assert_same(tmp_path / "two", in_process(alive, epochs=300, rounds=2))
