"""A control: the one site whose own model is best on the labelled rows, with no pooling at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from predbayes.errors import ImproperPoolError
from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.pool import KeepsSites, PoolState
from predbayes.predictive import metrics
from predbayes.predictive.pooling import Contribution
from predbayes.summand import Collected


@dataclass(frozen=True, slots=True)
class BestSiteState(PoolState):
    """Which site was taken, and what it predicts."""

    site: str = ""


@dataclass(frozen=True, slots=True)
class BestSite(KeepsSites):
    """The model of the site with the least NLL on the labelled reference rows."""

    tuned: ClassVar[str] = "the choice of a site"

    def finish(
        self,
        state: PoolState,
        total: Collected[Contribution],
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> BestSiteState:
        """Choose on the labelled rows; of equal sites the first by name."""
        rows, targets = reference.labelled, reference.targets
        scored = [(metrics.nll(c.predictive[rows], targets), c.site, c) for c in total.items]
        finite = [entry for entry in scored if math.isfinite(entry[0])]
        if not finite:
            raise ImproperPoolError(
                "no site predicts the labelled reference rows with a finite NLL"
            )
        _nll, site, best = min(finite, key=lambda entry: entry[:2])
        return BestSiteState(site=site, pooled=best.predictive)
