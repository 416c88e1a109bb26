"""From the units of the user to those of the network, and back.

    inputs    (x - input_mean) / input_scale, column by column
    targets   (y - target_mean) / target_scale

A categorical passes back as it is; a Gaussian is shifted and stretched. A scaling is plain
numbers, so it is saved with the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from predbayes.arrays import as_inputs
from predbayes.predictive.families import Gaussian, Predictive


@dataclass(frozen=True, slots=True)
class Scaling:
    """Means and scales of inputs and targets; empty and 0, 1 leave everything as it is."""

    input_mean: tuple[float, ...] = ()
    input_scale: tuple[float, ...] = ()
    target_mean: float = 0.0
    target_scale: float = 1.0

    def scaled(self, inputs: Any) -> Tensor:
        """Return inputs, a tensor, an array or a table, as the network takes them."""
        if not self.input_mean:
            return as_inputs(inputs)
        mean, scale = torch.tensor([self.input_mean, self.input_scale], dtype=torch.float64)
        scaled: Tensor = (as_inputs(inputs, torch.float64).double() - mean) / scale
        return scaled.to(torch.get_default_dtype())

    def scaled_targets(self, targets: Tensor) -> Tensor:
        """Return targets as the network learns them."""
        scaled = (targets.double() - self.target_mean) / self.target_scale
        return scaled.to(torch.get_default_dtype())

    def restored(self, predictive: Any) -> Predictive:
        """Return the network's predictives in the units of the user."""
        if not isinstance(predictive, Gaussian) or (self.target_mean, self.target_scale) == (0, 1):
            return predictive  # type: ignore[no-any-return]
        known, stretch = predictive.epistemic_var, self.target_scale**2
        return Gaussian(
            self.target_mean + self.target_scale * predictive.mean.double(),
            stretch * predictive.var.double(),
            None if known is None else stretch * known.double(),
        )


UNSCALED = Scaling()
