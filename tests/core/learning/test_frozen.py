"""A frozen backbone is sent once, however many samples of the rest there are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from predbayes.exchange.reader import Reader
from predbayes.exchange.upload import Upload
from predbayes.learning.laplace import LastLayerLaplace
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import (
    DeepEnsemble,
    Network,
    OptimizerSettings,
    SGDLearner,
    SGHMCLearner,
)
from predbayes.posterior.cyclical import SamplerSettings
from predbayes.seeding import generator, isolated

FROZEN, LEARNT = 4 * (20 * 300 + 300), 4 * (300 * 3 + 3)
POINT = OptimizerSettings(num_epochs=2)


def pretrained() -> nn.Module:
    with isolated(generator(0, "pretrained")):
        body = nn.Linear(20, 300).requires_grad_(False)
    return nn.Sequential(body, nn.ReLU(), nn.Linear(300, 3))


def plain() -> nn.Module:
    return pretrained().requires_grad_(True)


def learners(build):
    network = Network(build, Softmax(3))
    settings = SamplerSettings(num_epochs=12, batch_size=16, num_cycles=2, samples_per_cycle=3)
    return {
        "sghmc": SGHMCLearner(network, settings),
        "ensemble": DeepEnsemble(SGDLearner(network, POINT), size=6),
        "laplace": LastLayerLaplace(SGDLearner(network, POINT), num_samples=6),
    }


@pytest.fixture
def rows(rng):
    inputs = torch.randn(64, 20, generator=rng)
    return inputs, inputs[:, :3].argmax(1)


def sent(learner, rows, path):
    """Fit, write an upload and read it back: its bytes, and what both ends predict."""
    fitted = learner.fit(rows, rng=generator(0))
    assert len(fitted.samples) == 6
    Upload.of_weights(fitted.samples, num_rows=64).named("Basel").save(path)
    read = Reader.of(learner).read(Upload.load(path), rows[0])
    assert torch.equal(read.log_probs, fitted.predict(rows[0]).log_probs)
    return path.stat().st_size


@pytest.mark.parametrize("name", ["sghmc", "ensemble", "laplace"])
def test_an_upload_holds_it_once(name, rows, tmp_path):
    size = sent(learners(pretrained)[name], rows, tmp_path / "Basel.upload")
    assert FROZEN + 6 * LEARNT < size < FROZEN + 6 * LEARNT + 1000


@pytest.mark.parametrize(("name", "frozen"), [("sghmc", 6), ("ensemble", 6), ("laplace", 1)])
def test_what_is_learnt_is_sent_for_every_sample(name, frozen, rows, tmp_path):
    """Of a Laplace posterior of the last layer all others are one fit, frozen or not."""
    size = sent(learners(plain)[name], rows, tmp_path / "Basel.upload")
    assert frozen * FROZEN + 6 * LEARNT < size < frozen * FROZEN + 6 * LEARNT + 1000
