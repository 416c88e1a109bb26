"""One device for learners, pools, students and studies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import predbayes as pb
from predbayes.errors import TrainingError
from predbayes.learning.checkpoint import SamplerProgress
from predbayes.learning.training import resolve_device
from predbayes.posterior.samples import SampleStack
from predbayes.posterior.sghmc import SGHMC
from predbayes.seeding import generator, isolated
from tests.core.contracts.test_methods import SHORT, STUDENTS, world


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_is_the_cpu_where_there_is_no_gpu(no_gpu):
    assert resolve_device("auto") == torch.device("cpu")


def test_auto_asks_for_cuda_then_mps(monkeypatch, no_gpu):
    monkeypatch.setattr(torch, "empty", lambda *_, **options: options["device"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto").type == "cuda"


def test_a_device_that_is_not_there_is_one_line():
    with pytest.raises(TrainingError, match="device 'nonsense' cannot be used") as error:
        resolve_device("nonsense")
    assert "\n" not in str(error.value)


def test_auto_reaches_learner_pool_student_and_result(no_gpu):
    sites, reference = world(pb.Categorical)
    network = STUDENTS[pb.Categorical]

    def predicted(device):
        learner = pb.SGDLearner(network, SHORT, device)
        method = pb.Distilled(pb.Pooled(learner, pb.pools.mixture()), network, SHORT, device)
        return pb.run(method, sites, reference).predict(reference.inputs).log_probs

    assert torch.equal(predicted("auto"), predicted("cpu"))
    with pytest.raises(TrainingError, match="nonsense"):
        predicted("nonsense")


def test_a_whole_fit_on_the_cpu_leaves_gpus_alone(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a GPU was touched")

    for name in ("manual_seed_all", "device_count", "get_rng_state", "set_rng_state", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    sites, reference = world(pb.Categorical)
    settings = replace(pb.PRESETS["tuned"], min_steps=200, num_epochs=1)
    learner = pb.SGHMCLearner(STUDENTS[pb.Categorical], settings)
    fitted = learner.fit(next(iter(sites.values())), rng=generator(0))
    assert len(fitted.predict(reference.inputs)) == len(reference.inputs)


class FakeGPU:
    """Torch's module of a device, with a generator that is one number."""

    def __init__(self):
        self.state = torch.tensor([7], dtype=torch.uint8)

    def get_rng_state(self, device):
        assert device.type == "meta"
        return self.state.clone()

    def set_rng_state(self, state, device):
        assert device.type == "meta"
        self.state = state


def test_a_checkpoint_keeps_the_generator_of_its_device(monkeypatch):
    """There is no GPU here: torch's device "meta", with a generator that is made up."""
    gpu, rng = FakeGPU(), generator(0)
    monkeypatch.setattr(torch, "get_device_module", lambda _: gpu)
    model = torch.nn.Linear(2, 1, device="meta")
    sampler = SGHMC(model.parameters(), step_size=0.1, num_rows=5, rng=rng)
    progress = SamplerProgress(model, sampler, SampleStack(1), rng)
    kept = progress.tensors()
    gpu.state = torch.tensor([9], dtype=torch.uint8)
    with isolated(generator(1)):  # what is put back goes no further than this test
        assert progress.restore(kept | {"epoch": torch.tensor(3)}) == 3
    assert gpu.state.tolist() == [7]
