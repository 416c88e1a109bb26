"""How the authors' released code tunes and scores, for comparison with the paper's tables only.

Released: three things that differ from the paper. In a regression, predictions of shape (B, 1) meet
targets of shape (B,), so that *every* prediction of a batch is scored against *every* target of it:

    slipped    mean_i mean_j [ -log N(y_j; m_i, v_i) ]
    meant      mean_i        [ -log N(y_i; m_i, v_i) ]

The reported figure is a sum over test batches of 100 of batch means, without 0.5 log(2 pi). And
beta is ten epochs of Adam at rate 0.01 from 0.5 on the slipped loss. Table 2 of the paper holds
slipped scores for EP-MCMC, mixture, product and beta, and correct ones for the other methods.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from predbayes.predictive.families import Gaussian, Predictive
from predbayes.predictive.pooling import PredictiveSum

_BATCH_SIZE = 100
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def released_nll(predictive: Predictive, targets: Tensor, *, slipped: bool) -> float:
    """Return the figure that the released code prints as NLL.

    Args:
        predictive: On the test rows, in their order.
        targets: Their targets.
        slipped: Whether with the slip of shapes; classification never had it.
    """
    total = 0.0
    for rows in torch.split(torch.arange(len(targets)), _BATCH_SIZE):
        batch, y = predictive[rows], targets[rows]
        if not isinstance(batch, Gaussian):
            total -= float(batch.log_prob(y).mean())
        elif slipped:
            total += float(_slipped(batch.mean, batch.var, y))
        else:
            total -= float(batch.log_prob(y).mean() + _HALF_LOG_2PI)
    return total


def released_beta(
    total: PredictiveSum[Any], targets: Tensor, *, num_epochs: int = 10, lr: float = 1e-2
) -> float:
    """Fit beta by Adam, in the order of the rows, on the loss with the slip."""
    beta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([beta], lr=lr)
    mixture, product = total.component("mixture"), total.component("product")
    for _ in range(num_epochs):
        for rows in torch.split(torch.arange(len(targets)), _BATCH_SIZE):
            natural = (1 - beta) * mixture[rows] + beta * product[rows]
            pooled = total.family.from_natural(natural)
            if isinstance(pooled, Gaussian):
                loss = _slipped(pooled.mean, pooled.var, targets[rows])
            else:
                loss = -pooled.log_prob(targets[rows]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return float(beta.detach())


def _slipped(mean: Tensor, var: Tensor, targets: Tensor) -> Tensor:
    squares = (mean.unsqueeze(-1) - targets.to(mean.dtype)).square()  # (B, B)
    return 0.5 * (var.log() + squares.mean(-1) / var).mean()
