"""Optimisers without torch's compiler take the same steps."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from predbayes.posterior.sghmc import eager
from predbayes.seeding import generator

KINDS = {
    torch.optim.SGD: {"lr": 0.1, "momentum": 0.9},
    torch.optim.Adam: {"lr": 0.1},
    torch.optim.AdamW: {"lr": 0.1, "weight_decay": 0.1},
}


def trained(kind, settings):
    weights = nn.Parameter(torch.randn(5, generator=generator(0, "weights")))
    optimizer = kind([weights], **settings)
    for _ in range(5):
        optimizer.zero_grad()
        (weights**4).sum().backward()
        optimizer.step()
    return weights.detach()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_steps_are_those_of_torch(kind):
    assert torch.equal(trained(eager(kind), KINDS[kind]), trained(kind, KINDS[kind]))


def test_training_does_not_import_the_compiler():
    """One call of an unwrapped method would import it."""
    code = """
import sys, torch
from torch import nn
from predbayes.learning.local import OptimizerSettings
from predbayes.posterior.sghmc import SGHMC
model = nn.Linear(3, 1)
built = [OptimizerSettings(optimizer=name).build(model) for name in ("sgd", "adam", "adamw")]
built.append(SGHMC(model.parameters(), step_size=0.1, num_rows=9, rng=torch.Generator()))
for optimizer in built:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
