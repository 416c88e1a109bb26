"""Predictions that are less sure: what a site's policy bounds before they leave.

classes   a row whose greatest probability p is above s is mixed with the uniform distribution
over the C classes, with weight (p - s) / (p - 1 / C): then it is s, and the order of
the classes stays
numbers   the noise's variance grows until that of the prediction is at least f^2, where f is
the policy's share of the standard deviation of the site's own targets

The unit of f is thus the site's own: whatever scale a plan gives the target, f has the same share
of it. f is rounded up to two digits, so that rows at the floor do not tell the deviation itself.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes.exchange.upload import Upload


def least_std(share: float, targets: Tensor) -> float:
    """Return the least standard deviation of a prediction, in the units of the targets.

    Args:
        share: Of the targets' standard deviation.
        targets: The site's own that were trained on, (N,).

    Examples:
        >>> least_std(0.5, torch.tensor([0.0, 1.0, 2.0, 4.0]))  # half of 1.708
        0.86
    """
    if share == 0:
        return 0.0
    floor = share * float(targets.double().std())
    if not (math.isfinite(floor) and floor > 0):
        raise DataError(
            "the site's policy forbids it: the targets are all the same, so min_std has no unit"
        )
    unit = 10.0 ** (math.floor(math.log10(floor)) - 1)
    return math.ceil(floor / unit) * unit


def less_sure(upload: Upload, sureness: float, floor: float) -> Upload:
    """Return predictions none of which is surer than allowed; the others to the bit.

    Args:
        upload: Of predictions.
        sureness: The greatest probability of a class.
        floor: The least standard deviation of a number.
    """
    arrays = dict(upload.arrays)
    if "log_probs" in arrays and sureness < 1:
        arrays["log_probs"] = clipped(arrays["log_probs"], sureness)
    elif "noise_var" in arrays and floor > 0:
        epistemic, noise = arrays["epistemic_var"], arrays["noise_var"]
        arrays["noise_var"] = torch.maximum(noise, floor**2 - epistemic)
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
