"""The sampler's mechanics, one term at a time; its law is in tests/core/statistical."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from predbayes.errors import TrainingError
from predbayes.posterior.sghmc import SGHMC
from predbayes.seeding import generator


def parameter(value: float = 1.0, size: int = 3) -> nn.Parameter:
    return nn.Parameter(torch.full((size,), value, dtype=torch.float64))


def sampler(*params: nn.Parameter, seed: int = 0, **options) -> SGHMC:
    settings = {"step_size": 0.1, "num_rows": 10, "friction": 0.3} | options
    return SGHMC(params, rng=generator(seed), **settings)


def test_without_temperature_it_is_sgd_with_momentum():
    """v' = (1 - a) v - h g is torch's SGD with momentum 1 - a and learning rate h."""
    ours, theirs = parameter(), parameter()
    a = sampler(ours, temperature=0.0)
    b = torch.optim.SGD([theirs], lr=0.1, momentum=0.7)
    for _ in range(20):
        for theta, optimizer in ((ours, a), (theirs, b)):
            optimizer.zero_grad()
            (theta**4).sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_the_prior_pulls_towards_zero_as_weight_decay():
    """-log prior / N has gradient theta / (N std^2): weight decay 1 / (N std^2)."""
    ours, theirs = parameter(), parameter()
    a = sampler(ours, temperature=0.0, prior_std=0.5)
    b = torch.optim.SGD([theirs], lr=0.1, momentum=0.7, weight_decay=1 / (10 * 0.25))
    for _ in range(20):
        for theta, optimizer in ((ours, a), (theirs, b)):
            theta.grad = torch.ones_like(theta)
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_noise_of_one_step_has_its_variance():
    """From rest without gradient, one step is N(0, 2 a h T / N)."""
    theta = parameter(0.0, size=200_000)
    optimizer = sampler(theta, temperature=0.5)
    theta.grad = torch.zeros_like(theta)
    optimizer.step()
    assert float(theta.detach().var()) == pytest.approx(2 * 0.3 * 0.1 * 0.5 / 10, rel=0.02)


def test_memory_layouts_do_not_matter():
    """Parameters in channels-last order, and gradients laid out in yet another way."""
    start = torch.randn(4, 3, 2, 2, generator=generator(0), dtype=torch.float64)
    grad = torch.randn(4, 3, 2, 2, generator=generator(1), dtype=torch.float64)
    plain = nn.Parameter(start.clone())
    strided = nn.Parameter(start.clone().to(memory_format=torch.channels_last))
    for theta, layout in ((plain, grad), (strided, grad), (strided, grad.mT.contiguous().mT)):
        with torch.no_grad():
            theta.copy_(start)
        optimizer = sampler(theta, temperature=0.0)
        for _ in range(3):
            theta.grad = layout
            optimizer.step()
        torch.testing.assert_close(theta.detach().contiguous(), plain.detach())


def test_precisions_may_be_mixed():
    single = nn.Parameter(torch.ones(3))
    double = parameter()
    optimizer = sampler(single, double)
    for theta in (single, double):
        theta.grad = torch.ones_like(theta)
    optimizer.step()
    assert len({*single.tolist(), *double.tolist()}) == 6


def test_parameters_without_gradient_stay():
    moved, frozen = parameter(), parameter()
    optimizer = sampler(moved, frozen)
    optimizer.step()
    assert moved.tolist() == frozen.tolist() == [1.0] * 3
    moved.grad = torch.ones_like(moved)
    optimizer.step()
    assert moved.tolist() != [1.0] * 3
    assert frozen.tolist() == [1.0] * 3


def test_groups_have_settings_of_their_own():
    still, moving = parameter(), parameter()
    groups = [{"params": [still], "step_size": 0.0}, {"params": [moving]}]
    optimizer = SGHMC(groups, step_size=0.1, num_rows=10, rng=generator(0))
    for theta in (still, moving):
        theta.grad = torch.ones_like(theta)
    optimizer.step()
    assert still.tolist() == [1.0] * 3
    assert moving.tolist() != [1.0] * 3


def test_closures_are_evaluated():
    theta = parameter()
    optimizer = sampler(theta)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (theta**2).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 3.0
    assert optimizer.step(closure) < 3.0


@pytest.mark.parametrize(
    "bad",
    [
        {"friction": 0.0},
        {"friction": 1.5},
        {"step_size": -1.0},
        {"num_rows": 0},
        {"prior_std": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(TrainingError):
        sampler(parameter(), **bad)
