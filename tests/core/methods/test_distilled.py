"""The student of any method: its temperature, its start, and what it loses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from predbayes.api.run import run
from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.federation import InProcess
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Network, OptimizerSettings, SGDLearner
from predbayes.learning.nets import mlp
from predbayes.methods.distilled import Distilled
from predbayes.methods.pooled import Pooled
from predbayes.pools.auto import AutoPool
from predbayes.pools.terms import beta, mixture
from predbayes.predictive.metrics import nll
from predbayes.seeding import generator

NETWORK = Network(lambda: mlp(2, 3, hidden=(8,)), Softmax(3))
NUMBERS = Network(lambda: mlp(2, 2, hidden=(8,)), LearnedNoise(per_input=True))
FIT = OptimizerSettings("adam", lr=0.01, num_epochs=20, batch_size=20)
STILL = OptimizerSettings("sgd", lr=0.0, num_epochs=1)


@pytest.fixture(params=["classes", "numbers"])
def world(request, rng):
    """Two sites, 60 labelled and 90 unlabelled reference rows, and a network for all."""
    x = torch.randn(350, 2, generator=rng)
    y = x[:, 0] + 0.5 * torch.randn(350, generator=rng)
    network = NUMBERS if request.param == "numbers" else NETWORK
    y = y if network is NUMBERS else (y > -0.5).long() + (y > 0.5).long()
    sites = {str(k): (x[k:200:2], y[k:200:2]) for k in range(2)}
    return network, sites, ReferenceRows.of((x[200:260], y[200:260]), unlabelled=x[260:])


def distilled(world, settings=FIT, **options):
    network, sites, reference = world
    method = Distilled(Pooled(SGDLearner(network, FIT), mixture()), network, settings, **options)
    return run(method, InProcess(sites), reference, seed=0).state


def with_reference(world, **changes):
    network, sites, reference = world
    return network, sites, replace(reference, **changes)


def parameters(student):
    return torch.cat([value.flatten() for value in student.samples.parameters.values()])


def test_a_temperature_lowers_the_labelled_nll_or_leaves_it(world):
    """And it is all that differs from the paper's student: the weights are the same."""
    reference = world[2]
    x, y = reference.inputs[reference.labelled], reference.targets
    ours, papers = distilled(world), distilled(world, recalibrate=False)
    assert ours.temperature != 1
    assert papers.temperature == 1
    assert torch.equal(parameters(ours.student), parameters(papers.student))
    assert nll(ours.student.predict(x), y) <= nll(papers.student.predict(x), y)


def test_the_gaps_are_what_they_are_called(world):
    reference = world[2]
    state = distilled(world)
    predicted, taught = state.student.predict(reference.inputs), state.teacher.predictive
    assert state.gap == pytest.approx(float(taught.kl(predicted).mean()))
    of_student, of_teacher = (
        nll(predictive[reference.labelled], reference.targets) for predictive in (predicted, taught)
    )
    assert state.nll_gap == pytest.approx(of_student - of_teacher)
    assert state.nll_gap != 0


def test_without_labels_there_is_neither_temperature_nor_nll_gap(world):
    network, sites, reference = with_reference(world, targets=world[2].targets[:0])
    flat = Pooled(SGDLearner(network, FIT), beta(0.5, prior="flat"))
    state = run(Distilled(flat, network, FIT), InProcess(sites), reference, seed=0).state
    assert state.temperature == 1
    assert math.isnan(state.nll_gap)
    assert math.isfinite(state.gap)


def test_evaluation_rows_have_no_part_in_the_student(world):
    """While labels decide its temperature, and unlabelled rows its weights."""
    reference = world[2]
    first = distilled(with_reference(world, num_evaluate=40))
    others = torch.cat([reference.inputs[:-40], reference.inputs[-40:] + 3])
    moved = distilled(with_reference(world, inputs=others, num_evaluate=40))
    assert moved.temperature == first.temperature
    assert torch.equal(parameters(moved.student), parameters(first.student))

    turned = distilled(with_reference(world, targets=reference.targets.flip(0), num_evaluate=40))
    assert turned.temperature > first.temperature  # labels that fit no input: less is certain
    unlabelled = distilled(with_reference(world, inputs=others))
    assert not torch.equal(parameters(unlabelled.student), parameters(first.student))


def test_a_start_of_another_network_is_refused_before_any_site_trains(world):
    network, _, reference = world
    other = distilled(world).student.samples
    wider = Network(lambda: mlp(2, network.likelihood.num_outputs), network.likelihood)
    method = Distilled(Pooled(SGDLearner(network, FIT), mixture()), wider, start=other)
    with pytest.raises(UploadError, match="not of this network"):
        method.init(reference, rng=generator(0))


def test_a_teacher_who_is_not_calibrated_is_no_reason_to_distil_for_longer(world, caplog):
    """The temperature leads away from such a teacher; the warning is about the way before it."""
    targets = world[2].targets
    wrong = 9 * targets if world[0] is NUMBERS else (targets + 1) % 3
    state = distilled(with_reference(world, targets=wrong), replace(FIT, num_epochs=100))
    assert state.gap > 0.1
    assert "distil for more steps" not in caplog.text
    distilled(world, STILL)
    assert "distil for more steps" in caplog.text


def test_a_pool_or_a_class_is_no_method():
    with pytest.raises(TrainingError, match=r"^AutoPool is a pool; wrap it: pb"):
        Distilled(AutoPool(), NETWORK)
    with pytest.raises(TrainingError, match=r"^Pooled is a class; give an instance of it$"):
        Distilled(Pooled, NETWORK)
