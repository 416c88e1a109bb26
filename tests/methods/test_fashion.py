"""Algorithm 1 on real images, small: a tenth of the rows, ten epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from predbayes.api.run import run
from predbayes.data.partition import label_skew
from predbayes.data.registry import load
from predbayes.exchange.federation import InProcess
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, OptimizerSettings, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.methods.distilled import Distilled
from predbayes.methods.pooled import Pooled
from predbayes.pools.beta import BetaPool, mixture, product
from predbayes.posterior.cyclical import PRESETS
from predbayes.predictive.metrics import ece, nll
from predbayes.seeding import generator

pytestmark = [pytest.mark.data, pytest.mark.slow("five sites of images")]


def test_beta_is_calibrated_where_its_ends_are_not():
    images = load("fashion-mnist", rng=generator(0))
    order = torch.randperm(60_000, generator=generator(0))[:7200]
    x, y = images.train_inputs[order], images.train_targets[order]
    x_test, y_test = images.test_inputs, images.test_targets
    parts = label_skew(y[1200:], 5, 0.9, rng=generator(0))
    sites = {str(k): (x[1200:][part], y[1200:][part]) for k, part in enumerate(parts)}
    reference = ReferenceRows.of((x[:1200], y[:1200]), evaluate=x_test)
    network = Network(lambda: mlp(784, 10), Softmax(10))
    learner = SGHMCLearner(network, replace(PRESETS["paper"], num_epochs=10, batch_size=20))
    beta = Pooled(learner, BetaPool(), send="predictions")
    student = OptimizerSettings("adam", lr=1e-3, num_epochs=20)
    federation = InProcess(sites)
    state = run(Distilled(beta, network, student), federation, reference, seed=0).state
    tuned = state.teacher.predictive[reference.evaluate]
    for method in (
        Pooled(learner, mixture(), send="predictions"),
        Pooled(learner, product(), send="predictions"),
    ):
        end = run(method, federation, reference, seed=0).state.predictive[reference.evaluate]
        assert nll(tuned, y_test) < 0.95 * nll(end, y_test)
    assert ece(tuned, y_test, rng=generator(0), num_draws=20).value < 0.03
    assert nll(state.student.predict(x_test), y_test) < nll(tuned, y_test) + 0.05
