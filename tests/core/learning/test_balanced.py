"""Training under a site's class shares: what it is exactly, and what a log pool gains by it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, OptimizerSettings, SGDLearner
from predbayes.predictive.families import Categorical

CENTRES = torch.tensor([[1.5, 0.0], [-0.75, 1.3], [-0.75, -1.3]])
FIT = OptimizerSettings(lr=0.1, num_epochs=60, batch_size=100)


def draw(shares, num_rows, rng):
    y = torch.multinomial(torch.tensor(shares), num_rows, replacement=True, generator=rng)
    return CENTRES[y] + torch.randn(num_rows, 2, generator=rng), y


def fit(rows, *, balanced, rng):
    network = Network(lambda: nn.Linear(2, 3), Softmax(3, balanced))
    return SGDLearner(network, FIT).fit(rows, rng=rng)


def test_of_a_skewed_site_it_is_the_law_under_equal_shares(rng):
    """Gaussian classes: the likelihoods are known, and linear in x."""
    predictor = fit(draw([0.8, 0.15, 0.05], 6000, rng), balanced=True, rng=rng)
    x = draw([1.0, 1.0, 1.0], 500, rng)[0]
    truth = Categorical((-0.5 * torch.cdist(x, CENTRES).square()).log_softmax(-1))
    assert float(truth.kl(predictor.predict(x)).mean()) < 0.02
    plain = fit(draw([0.8, 0.15, 0.05], 6000, rng), balanced=False, rng=rng)
    assert float(truth.kl(plain.predict(x)).mean()) > 0.2


def test_loaders_are_counted_like_tensors(rng):
    x, y = draw([0.8, 0.1, 0.1], 100, rng)
    network = Network(lambda: nn.Linear(2, 3), Softmax(3, balanced=True))
    outputs = torch.randn(100, 3, generator=rng)
    of_tensors = network.objective((x, y))(outputs, y)
    loader = DataLoader(TensorDataset(x, y), batch_size=30)
    torch.testing.assert_close(network.objective(loader)(outputs, y), of_tensors)
    shares = (torch.bincount(y, minlength=3) + 1) / 103
    expected = nn.functional.cross_entropy(outputs + shares.log(), y)
    torch.testing.assert_close(of_tensors, expected)


def test_a_class_that_the_site_lacks_is_not_impossible(rng):
    x, y = draw([0.5, 0.5, 0.0], 300, rng)
    predictive = fit((x, y), balanced=True, rng=rng).predict(x)
    assert bool(predictive.log_probs.isfinite().all())
    assert float(predictive.probs[:, 2].mean()) == pytest.approx(0.1, abs=0.1)
