"""What differential privacy promises, with all four parts: epsilon is never told without the rest.

adjacency   replace-one: as many people, one of them with other rows; add-or-remove: one person
more or less
unit        person: all rows of a person; row: one row, and a person with five rows is five
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

Adjacency = Literal["replace-one", "add-or-remove"]
Unit = Literal["person", "row"]


@dataclass(frozen=True)  # without slots, which would have no room for the configuration
class Guarantee:
    """A promise of differential privacy; plans, uploads and books of budgets state it alike."""

    __pydantic_config__ = ConfigDict(strict=False, extra="forbid")

    epsilon: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(strict=True, gt=0, lt=1)]
    adjacency: Adjacency
    unit: Unit

    @property
    def factor(self) -> str:
        """By how much odds can be multiplied, e^epsilon, in words."""
        return f"{math.exp(self.epsilon):,.3g}"

    @property
    def auc(self) -> float:
        """The greatest AUC of a guess which of two neighbouring tables it was.

        By the ROC curve through (0, delta), (x, 1 - x) and (1 - delta, 1), where
        x = (1 - delta) / (1 + e^epsilon) (Kairouz, Oh and Viswanath, 2015).

        Examples:
            >>> round(Guarantee(1.0, 1e-5, "replace-one", "row").auc, 3)
            0.731
        """
        x = (1 - self.delta) / (1 + math.exp(self.epsilon))
        rising = x * (self.delta + 1 - x) / 2
        return rising + (1 - self.delta - x) * (2 - x) / 2 + self.delta

    @property
    def text(self) -> str:
        """The promise in words."""
        return (
            f"epsilon {self.epsilon:.4g} at delta {self.delta:.2g} for each {self.unit}, "
            f"{self.adjacency}"
        )
