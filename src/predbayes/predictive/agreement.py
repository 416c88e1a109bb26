"""How far one site agrees with the labels: one number that is linear in its log p.

With a_ic the log p of class c at labelled row i, y_i its label, and n_c of the n rows of class c:

    S = sum_i ( a_i,y(i) - sum_c (n_c / n) a_ic ),          S / n in nats per labelled row

S is the sum of the score test of `predbayes.study.result.screening`: the base rates of a site
add nothing to it, one that knows nothing has about 0, and one that goes against the labels less.
Times n it has whole weights, so that it is found under masks (`predbayes.exchange.masking`):

    n S = sum_ic w_ic a_ic,          w_ic = n [y_i = c] - n_c,          |n S| <= n^2 max |a|

Whoever chooses labels must not thereby choose a single row. A row of class c weighs n - n_c; if it
were the only one of its class, the sum would be little else. So classes with fewer than
`LEAST_OF_CLASS` labelled rows have no part in it, nor have their rows.

A site that stands out is told by the median site, whose agreement m no minority of sites moves far:
it is `uninformative` below WEAK m and `contradicts` below -WEAK m. Where m is not above zero nobody
is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.predictive.fixed import MIN_SCORED, FixedPoint

LEAST_OF_CLASS = 10
WEAK = 0.25
"""Of the median agreement: what is below says next to nothing, as in open studies."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """Which words of a site are added up, and with what weights: a function of the labels.

    Args:
        rows: (N,) places of the rows in the words.
        weights: (N, C) whole numbers.
    """

    rows: Tensor
    weights: Tensor

    @classmethod
    def of(cls, rows: Tensor, targets: Tensor, num_classes: int) -> Weighing:
        """The weights of all labelled rows whose class has enough of them.

        Args:
            rows: (L,) places of the labelled rows in the words.
            targets: (L,) their labels.
            num_classes: Of the plan.
        """
        counts = torch.bincount(targets, minlength=num_classes)
        counts = torch.where(counts >= LEAST_OF_CLASS, counts, 0)
        used = counts[targets] > 0
        num = int(used.sum())
        if num < MIN_SCORED or int((counts > 0).sum()) < 2:
            raise PoolError(
                f"sites cannot be scored by these labels: it takes {MIN_SCORED} labelled rows of "
                f"two classes or more, with {LEAST_OF_CLASS} rows of each"
            )
        right = torch.nn.functional.one_hot(targets[used], num_classes)
        return cls(rows[used], num * right - counts)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def total(self, form: FixedPoint, words: Tensor) -> int:
        """Return the weighted sum of words, or of masks, modulo 2^64."""
        first = form.parts[0]
        assert first.name == "natural"
        values = words[: first.size].view(first.shape)[self.rows]
        return int((self.weights * values).sum())  # which wraps as the masks do

    def agreement(self, form: FixedPoint, total: int) -> float:
        """Return S / n of a site whose words add up to this, modulo 2^64."""
        signed = (total + 2**63) % 2**64 - 2**63
        first = form.parts[0]
        found = signed * 2.0**first.exponent / len(self) ** 2
        if not abs(found) <= first.largest:
            raise PoolError("it is beyond what a site can have: the masks are not of this upload")
        return found


def standing_out(
    agreements: Mapping[str, float],
) -> dict[str, Literal["contradicts", "uninformative"]]:
    """Return what speaks against sites, by the agreement of every site.

    Examples:
        >>> standing_out({"a": 4.0, "b": 3.5, "c": 4.4, "d": 0.2, "e": -2.0})
        {'d': 'uninformative', 'e': 'contradicts'}
    """
    median = usual(agreements)
    if not median > 0:
        return {}
    return {
        site: "contradicts" if value < -WEAK * median else "uninformative"
        for site, value in agreements.items()
        if value < WEAK * median
    }


def usual(agreements: Mapping[str, float]) -> float:
    """Return the median agreement; of two the lower."""
    return float(torch.tensor(list(agreements.values()), dtype=torch.float64).median())
