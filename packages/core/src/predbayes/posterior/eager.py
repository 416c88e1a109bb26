"""Optimisers of torch without its compiler.

Torch wraps methods of every optimiser so that `torch.compile` leaves them alone. The first call of
a wrapper imports the whole compiler: 844 modules and about two seconds of CPU time in each process
that trains. Nothing here is compiled, so the unwrapped methods do the same arithmetic.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.optim import Optimizer


class EagerOptimizer(Optimizer):
    """An optimiser whose parameter groups and gradients are handled without the compiler."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


@cache
def eager(kind: type[Optimizer]) -> Callable[..., Optimizer]:
    """Return a class that does what an optimiser of torch does, without the compiler."""
    step: Callable[..., Any] = inspect.unwrap(kind.step)
    return type(kind.__name__, (EagerOptimizer, kind), {"step": torch.no_grad()(step)})
