"""How much a plan asks of a site's computer, and how much it may ask.

    parameters   of the network that sites train
    steps        of its sampler: each is one batch of rows
    memory       weights, gradients, momentum and samples of the network, and what is sent; of a
                 Gaussian process three matrices of rows by rows

These are estimates from below, made to refuse a plan that no computer can carry out, or that would
keep a site's computer busy for weeks. A site's policy may state another memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from predbayes.learning.named import AUTO
from predbayes.posterior.cyclical import enough_epochs
from predbayes_study.payload import upload_bytes
from predbayes_study.plan.models import sampler_settings
from predbayes_study.plan.schema import FrozenNetwork, Plan
from predbayes_study.tasks import task_of
from predbayes_study.tasks.choice import MOST_ROWS

MOST_STEPS = 10_000_000
MOST_THREADS = 64
_GIGABYTE = 10**9
_NUMBER_BYTES = 4
_PER_PARAMETER = 3  # numbers in memory beside samples: weight, gradient, momentum
_MATRICES = 3  # of a Gaussian process, in float64


def num_parameters(plan: Plan, network: FrozenNetwork | None = None) -> int:
    """Count the parameters of the network that sites train, with the noise of a regression.

    Those of a network of the consortium's own are known once it is frozen; before, they are 0.
    """
    if plan.model.module:
        network = network if plan.frozen is None else plan.frozen.network
        return 0 if network is None else network.parameters
    widths = [plan.num_inputs, *plan.model.hidden, plan.num_outputs]
    weights = sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(widths))
    return weights + task_of(plan).num_noise


def num_steps(plan: Plan, num_rows: int = 1) -> int:
    """Count the steps of the network's sampler at a site with so many rows to train on."""
    settings = sampler_settings(plan)
    num_batches = math.ceil(num_rows / settings.batch_size)
    steps = num_batches * enough_epochs(settings.num_epochs, settings.min_steps, num_batches)
    return steps if plan.gate is None else 2 * steps  # a gate costs about one more fit


def steps_of(plan: Plan, learner: str, num_rows: int) -> int:
    """Count the steps of a learner's sampler, if it has one; `auto` also tries it on five parts."""
    if learner in ("network", "small-network"):
        return num_steps(plan, num_rows)
    if learner == AUTO:
        return 5 * num_steps(plan, min(num_rows, MOST_ROWS)) + num_steps(plan, num_rows)
    return 0


def training_gigabytes(
    plan: Plan, learner: str, num_rows: int, network: FrozenNetwork | None = None
) -> float:
    """Return the least memory in GB that a site needs to train.

    Args:
        plan: A draft, or a frozen plan.
        learner: What is trained.
        num_rows: Rows to train on.
        network: What freezing found of a network of the consortium's own.
    """
    needed = upload_bytes(plan)
    if learner == "gaussian-process":
        needed += 8 * _MATRICES * num_rows**2
    elif learner == "network":
        numbers = (_PER_PARAMETER + plan.learner.max_samples) * num_parameters(plan, network)
        needed += _NUMBER_BYTES * numbers
    return needed / _GIGABYTE


def step_problems(plan: Plan, learner: str = "network", num_rows: int = 1) -> Iterator[str]:
    """Say what of a plan would keep a site's computer busy for weeks, one line each."""
    steps = steps_of(plan, learner, num_rows)
    if steps > MOST_STEPS:
        yield (
            f"learner.min_steps = {plan.learner.min_steps:,} and num_epochs = "
            f"{sampler_settings(plan).num_epochs:,} of the plan make {steps:,} steps, more than "
            f"{MOST_STEPS:,}"
        )
    if plan.learner.threads > MOST_THREADS:
        yield (
            f"learner.threads = {plan.learner.threads:,} of the plan are more than {MOST_THREADS}"
        )
