"""How the authors' released code tunes and scores, for comparison with the paper's tables only.

Released: three things that differ from the paper. In a regression, predictions of shape (B, 1) meet
targets of shape (B,), so that *every* prediction of a batch is scored against *every* target of it:

    slipped    mean_i mean_j [ -log N(y_j; m_i, v_i) ]
    meant      mean_i        [ -log N(y_i; m_i, v_i) ]

The reported figure is a sum over test batches of 100 of batch means, without 0.5 log(2 pi). And
beta is ten epochs of Adam at rate 0.01 from 0.5 on the slipped loss. Table 2 of the paper holds
slipped scores for EP-MCMC, mixture, product and beta, and correct ones for the other methods.

It also deals rows in another way: `label_skew_released`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes.partition import homogeneous
from predbayes.pools.prior import PriorChoice
from predbayes.pools.terms import TermPool
from predbayes.pools.terms import beta as tuned_beta
from predbayes.predictive.families import LOG_PROB_FLOOR, Gaussian, Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes.seeding import generator

_BATCH_SIZE = 100
# What torch.randperm(10) gives at seed 0, the order for every seed of the authors' runs.
_CLASS_ORDER = (4, 1, 7, 5, 3, 9, 0, 8, 6, 2)
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


def beta(
    beta: float | Literal["tuned", "released"] = "tuned",
    domain: tuple[float, float] = (0.0, 1.0),
    prior_std: float | None = None,
    *,
    prior: PriorChoice | Predictive = "default",
    floor: float = LOG_PROB_FLOOR,
) -> TermPool:
    """Return the pool of a table: `predbayes.pools.terms.beta`, which also takes ``"released"``.

    That is for comparison with the figures of the authors' code only.
    """
    known = "tuned" if beta == "released" else beta
    pool = tuned_beta(known, domain, prior_std, prior=prior, floor=floor)
    return replace(pool, weights=released_beta) if beta == "released" else pool


def label_skew_released(
    targets: Tensor,
    num_clients: int,
    heterogeneity: float,
    *,
    rng: torch.Generator,
    shard_size: int | None = None,
) -> list[Tensor]:
    """Deal by the authors' h. NOT a partition: clients share rows, and rows are left out.

    Released: for h > 0 all clients hold the *same* first (1 - h) of a shard, and before it up to
    h of a shard of rows of their own classes, which may be among the shared ones again. The order
    of classes is the same for every seed. At h = 0 the shards are disjoint.

    Args:
        targets: Class indices of the rows to deal.
        num_clients: How many clients.
        heterogeneity: The fraction h of a shard that has own classes.
        rng: Shuffles the rows.
        shard_size: Rows per client, an equal share by default. The authors' code takes it from
            the number of rows before reference rows are removed: 12,000 for five clients on MNIST.
    """
    if not 0 <= heterogeneity <= 1:
        raise DataError(f"heterogeneity must be in [0, 1], not {heterogeneity}")
    if heterogeneity == 0:
        return homogeneous(len(targets), num_clients, rng=rng)
    if not 1 <= num_clients <= len(targets):
        raise DataError(f"{len(targets)} rows cannot be dealt to {num_clients} clients")
    size = len(targets) // num_clients if shard_size is None else shard_size
    order = torch.randperm(len(targets), generator=rng)
    shared = order[: int(size * (1 - heterogeneity))]
    groups = _class_groups_released(int(targets.max()) + 1, num_clients)
    parts = []
    for client in range(num_clients):
        own = order[torch.isin(targets[order], groups[client % len(groups)])]
        parts.append(torch.cat([own[: int(size * heterogeneity)], shared]))
    return parts


def _class_groups_released(num_classes: int, num_clients: int) -> list[Tensor]:
    """Released: classes in a fixed order, in groups of nearly equal size, smaller groups first."""
    if num_classes == len(_CLASS_ORDER):
        classes = torch.tensor(_CLASS_ORDER)
    else:
        classes = torch.randperm(num_classes, generator=generator(0, "class order"))
    return list(classes.flip(0).tensor_split(min(num_classes, num_clients)))[::-1]
