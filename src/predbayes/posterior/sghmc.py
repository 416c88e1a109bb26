"""Stochastic-gradient Hamiltonian Monte Carlo as a torch optimiser.

With U the *mean* loss over N rows plus -log prior / N, step size h, friction a, temperature T:

    v' = (1 - a) v - h grad U(theta) + sqrt(2 a h T / N) xi,        xi ~ N(0, I)
    theta' = theta + v'

As h goes to 0 the chain has the stationary law proportional to exp(-N U(theta) / T), so T = 1 is
the Bayes posterior and T = 0 is SGD with momentum 1 - a. At finite h, for U = lam theta^2 / 2,
the chain is a linear recursion whose stationary variance solves a 2 x 2 Lyapunov equation; the
tests hold the sampler to that law, not to its limit. (Chen et al. 2014, eq. 15; Zhang et al.
2020, alg. 2.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn

from predbayes.errors import TrainingError
from predbayes.seeding import generator_on


class SGHMC(torch.optim.Optimizer):
    """SGHMC over all parameters at once with torch's foreach kernels.

    ``step_size`` and ``temperature`` may be changed in ``param_groups`` between steps, as a
    schedule does; everything random comes from ``rng``.

    Args:
        params: Parameters, or dicts of parameter groups.
        step_size: h, what an optimiser would call the learning rate.
        num_rows: N, the rows that the mean loss is an average over.
        friction: a in (0, 1]; 1 - a is the momentum.
        temperature: T; 1 samples the Bayes posterior, 0 optimises.
        prior_std: Standard deviation of an isotropic normal prior on the parameters.
        rng: Source of the noise.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        step_size: float,
        num_rows: int,
        friction: float = 0.1,
        temperature: float = 1.0,
        prior_std: float = math.inf,
        rng: torch.Generator,
    ) -> None:
        if not 0 < friction <= 1:
            raise TrainingError(f"friction must be in (0, 1], not {friction}")
        if step_size < 0 or temperature < 0 or num_rows < 1 or prior_std <= 0:
            raise TrainingError(
                "step size and temperature must not be negative, and the number of rows and the "
                "prior's standard deviation must be positive"
            )
        defaults = {
            "step_size": step_size,
            "num_rows": num_rows,
            "friction": friction,
            "temperature": temperature,
            "prior_std": prior_std,
        }
        super().__init__(params, defaults)
        self._rng = rng
        self._noise_rngs: dict[torch.device, torch.Generator] = {}

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of every group."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        params: list[Tensor] = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        grads = [p.grad for p in params if p.grad is not None]
        velocities = [self._velocity(p) for p in params]
        step_size, num_rows, friction = group["step_size"], group["num_rows"], group["friction"]
        torch._foreach_mul_(velocities, 1 - friction)
        torch._foreach_add_(velocities, grads, alpha=-step_size)
        prior_prec = group["prior_std"] ** -2 / num_rows
        if prior_prec > 0:
            torch._foreach_add_(velocities, params, alpha=-step_size * prior_prec)
        noise_var = 2 * friction * step_size * group["temperature"] / num_rows
        if noise_var > 0:
            torch._foreach_add_(velocities, self._noise(velocities), alpha=math.sqrt(noise_var))
        torch._foreach_add_(params, velocities)

    def _velocity(self, param: Tensor) -> Tensor:
        state = self.state[param]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        velocity: Tensor = state["velocity"]
        return velocity

    def _noise(self, like: list[Tensor]) -> list[Tensor]:
        """Standard normal tensors, cut from one draw."""
        device, dtype = like[0].device, like[0].dtype
        if device not in self._noise_rngs:
            self._noise_rngs[device] = generator_on(device, self._rng)
        sizes = [tensor.numel() for tensor in like]
        flat = torch.empty(sum(sizes), device=device, dtype=dtype)
        flat.normal_(generator=self._noise_rngs[device])
        parts = torch.split(flat, sizes)
        return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]
