"""Predictions that are less sure: what a site's policy bounds before they leave.

classes   a row whose greatest probability p is above s is mixed with the uniform distribution
over the C classes, with weight (p - s) / (p - 1 / C): then it is s, and the order of
the classes stays
numbers   the noise's variance grows until that of the prediction is at least the policy's
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from predbayes.exchange.upload import Upload


def less_sure(upload: Upload, sureness: float, least_std: float) -> Upload:
    """Return predictions none of which is surer than allowed; the others to the bit."""
    arrays = dict(upload.arrays)
    if "log_probs" in arrays and sureness < 1:
        arrays["log_probs"] = clipped(arrays["log_probs"], sureness)
    elif "noise_var" in arrays and least_std > 0:
        epistemic, noise = arrays["epistemic_var"], arrays["noise_var"]
        arrays["noise_var"] = torch.maximum(noise, least_std**2 - epistemic)
    else:
        return upload
    return replace(upload, arrays=arrays)


def clipped(log_probs: Tensor, sureness: float) -> Tensor:
    """Return log-probabilities (N, C) of which none is above the logarithm of a probability.

    Examples:
        >>> clipped(torch.tensor([[0.999, 0.001], [0.5, 0.5]]).log(), 0.9).exp()
        tensor([[0.9000, 0.1000],
                [0.5000, 0.5000]])
    """
    probs = log_probs.double().exp()
    greatest = probs.max(1, keepdim=True).values
    even = 1 / probs.shape[1]
    weight = (greatest - sureness) / (greatest - even).clamp_min(1e-12)
    mixed = ((1 - weight) * probs + weight * even).log().to(log_probs.dtype)
    return torch.where(greatest > sureness, mixed, log_probs)
