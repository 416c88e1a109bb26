"""Stochastic-gradient Hamiltonian Monte Carlo as a torch optimiser.

With U the *mean* loss over N rows plus -log prior / N, step size h, friction a, temperature T:

    v' = (1 - a) v - h grad U(theta) + sqrt(2 a h T / N) xi,        xi ~ N(0, I)
    theta' = theta + v'

As h goes to 0 the chain has the stationary law proportional to exp(-N U(theta) / T), so T = 1 is
the Bayes posterior and T = 0 is SGD with momentum 1 - a. At finite h, for U = lam theta^2 / 2,
the chain is a linear recursion whose stationary variance solves a 2 x 2 Lyapunov equation; the
tests hold the sampler to that law, not to its limit. (Chen et al. 2014, eq. 15; Zhang et al.
2020, alg. 2.)

With m = -v this is SGD with momentum 1 - a, dampening 1 - h and learning rate 1 on a gradient with
noise of variance 2 a T / (h N), so torch's fused SGD kernel does the step in one pass over memory.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from predbayes.errors import TrainingError
from predbayes.seeding import generator_on


class EagerOptimizer(Optimizer):
    """An optimiser whose parameter groups and gradients are handled without the compiler.

    Torch wraps methods of every optimiser so that `torch.compile` leaves them alone. The first call
    of a wrapper imports the whole compiler: 844 modules and about two seconds of CPU time in each
    process that trains. Nothing here is compiled, so the unwrapped methods do the same arithmetic.
    """

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


@cache
def eager(kind: type[Optimizer]) -> Callable[..., Optimizer]:
    """Return a class that does what an optimiser of torch does, without the compiler."""
    step: Callable[..., Any] = inspect.unwrap(kind.step)
    return type(kind.__name__, (EagerOptimizer, kind), {"step": torch.no_grad()(step)})


class SGHMC(EagerOptimizer):
    """SGHMC over all parameters at once, with torch's multi-tensor kernels.

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
        # By the parameters that have a gradient; allocating anew each step costs a tenth of it.
        self._noise_buffers: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]] = {}

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one step of every group."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            # Parameters that have a gradient, in lists that one kernel can take.
            lists: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    lists.setdefault((param.device, param.dtype), []).append(param)
            for params in lists.values():
                self._step_params(params, group)
        return loss

    def _step_params(self, params: list[Tensor], group: dict[str, Any]) -> None:
        step_size, num_rows, friction = group["step_size"], group["num_rows"], group["friction"]
        grads: list[Tensor] = []
        momenta: list[Tensor] = []
        for param in params:
            grad, state = param.grad, self.state[param]
            assert grad is not None
            if grad.stride() != param.stride():  # the fused kernel takes the layout for granted
                grad = torch.empty_like(param, memory_format=torch.preserve_format).copy_(grad)
            grads.append(grad)
            if friction < 1:  # without it the kernel knows neither momentum nor dampening
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                momenta.append(state["momentum"])
        if group["temperature"] > 0 and step_size > 0:
            noise_var = 2 * friction * group["temperature"] / (step_size * num_rows)
            noisy = self._noise(params, math.sqrt(noise_var))
            torch._foreach_add_(noisy, grads)
            grads = noisy
        # The public `torch.optim.sgd.sgd` gives the same bits by this kernel, but sorts the tensors
        # by device in every step, which doubles the time of a step for a small network.
        torch._fused_sgd_(
            params,
            grads,
            momenta,
            weight_decay=group["prior_std"] ** -2 / num_rows,
            momentum=1 - friction,
            dampening=1 - step_size,
            lr=1.0 if friction < 1 else step_size,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def noise_state(self) -> Tensor | None:
        """Return the state of the noise's generator; None before a draw or on several devices."""
        rngs = list(self._noise_rngs.values())
        return rngs[0].get_state() if len(rngs) == 1 else None

    def restore_noise(self, device: torch.device, state: Tensor) -> None:
        """Continue the noise on a device from a state."""
        rng = torch.Generator(device=device)
        rng.set_state(state)
        self._noise_rngs[device] = rng

    def _noise(self, like: list[Tensor], std: float) -> list[Tensor]:
        """Independent normal tensors with the strides of ``like``, good until the next call."""
        first = like[0]
        if first.device not in self._noise_rngs:
            self._noise_rngs[first.device] = generator_on(first.device, self._rng)
        key = tuple(map(id, like))
        if key not in self._noise_buffers:
            # One buffer for a single draw, and views of it in the parameters' shapes and strides.
            sizes = [tensor.numel() for tensor in like]
            buffer = first.new_empty(sum(sizes))
            pairs = zip(torch.split(buffer, sizes), like, strict=True)
            self._noise_buffers[key] = (
                buffer,
                [
                    part.as_strided(tensor.shape, tensor.stride(), part.storage_offset())
                    for part, tensor in pairs
                ],
            )
        flat, views = self._noise_buffers[key]
        flat.normal_(std=std, generator=self._noise_rngs[first.device])
        return views
