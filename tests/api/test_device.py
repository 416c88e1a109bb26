"""One device for learners, pools, students and studies."""

from __future__ import annotations

import pytest
import torch

import predbayes as pb
from predbayes.learning.training import resolve_device
from predbayes.seeding import generator, isolated
from tests.contracts.test_methods import SHORT, STUDENTS, world


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
    with pytest.raises(pb.TrainingError, match="device 'nonsense' cannot be used") as error:
        resolve_device("nonsense")
    assert "\n" not in str(error.value)


def test_auto_reaches_learner_pool_student_and_result(no_gpu):
    sites, reference = world(pb.Categorical)
    network = STUDENTS[pb.Categorical]

    def predicted(device):
        learner = pb.SGDLearner(network, SHORT, device)
        method = pb.Distilled(pb.Pooled(learner, pb.mixture()), network, SHORT, device)
        return pb.run(method, sites, reference).predict(reference.inputs).log_probs

    assert torch.equal(predicted("auto"), predicted("cpu"))
    with pytest.raises(pb.TrainingError, match="nonsense"):
        predicted("nonsense")


def test_proximal_training_finds_its_device(no_gpu):
    sites, reference = world(pb.Categorical)
    method = pb.FedProx(pb.SGDLearner(STUDENTS[pb.Categorical], SHORT, "auto"))
    assert len(pb.run(method, sites, reference).predictive) == len(reference.inputs)


def test_work_on_the_cpu_leaves_gpus_alone(monkeypatch):
    def refuse(*_):
        raise AssertionError("a GPU was touched")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    monkeypatch.setattr(torch.cuda, "device_count", refuse)
    before = torch.get_rng_state()
    with isolated(generator(0)):
        first = torch.rand(3)
    with isolated(generator(0), torch.device("cpu")):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)
