from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from predbayes.posterior.samples import WeightSamples, effective_samples
from predbayes.seeding import generator


def samples_of(correlation, num_cycles, per_cycle, num_parameters=4000):
    """Samples with this correlation within a cycle, none across."""
    rng = generator(0)
    shared = torch.randn(num_cycles, 1, num_parameters, generator=rng)
    own = torch.randn(num_cycles, per_cycle, num_parameters, generator=rng)
    vectors = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
    return WeightSamples({"weight": vectors.flatten(0, 1)}, {})


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("num_cycles", "per_cycle"), [(2, 3), (5, 2), (6, 1)])
def test_it_is_the_variance_of_one_over_that_of_the_mean(correlation, num_cycles, per_cycle):
    """Var(mean) = Var(one) (1 + (m - 1) r) / (C m), by the definition of a correlation."""
    num = num_cycles * per_cycle
    grouped = np.kron(np.eye(num_cycles), np.ones((per_cycle, per_cycle)))
    covariance = correlation * grouped + (1 - correlation) * np.eye(num)
    expected = 1 / covariance.mean()
    found = effective_samples(samples_of(correlation, num_cycles, per_cycle), per_cycle)
    assert found == pytest.approx(expected, rel=0.05)


def test_one_cycle_does_not_tell():
    assert math.isnan(effective_samples(samples_of(0.5, 1, 4), 4))


def test_a_first_cycle_of_which_samples_were_dropped_is_left_out():
    samples = samples_of(0.9, 3, 2)
    assert effective_samples(samples[1:], 2) == effective_samples(samples[2:], 2)
