"""The squared error of a regression as a function of the input, learnt from held-out residuals.

    error(x) = v exp(a s(x)),    v = mean_i r_i^2 exp(-a s_i)

r_i is the residual of row i by a model that was fitted without it. The score s is a forest's fit of
log r_i^2 less their mean, and s_i is cross-fitted. How far the score is believed, a, maximises the
likelihood of the residuals, with a standard normal prior on a: scores that foretell nothing are
worth nothing, and few rows must tell it loudly. At a = 0 the error is one constant. v makes the
mean squared standardised residual one.

A leaf holds a twentieth of the rows, at least ten: what it says is the mean of many residuals.

scikit-learn is imported when noise is learnt, never with this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.optional import require
from predbayes.predictive.folds import folds

Array = npt.NDArray[Any]

LEAST_ROWS = 50
"""Fewer rows tell one constant."""

_LEAST_LEAF, _MOST_LEAVES = 10, 20
_NUM_TREES, _NUM_FOLDS = 30, 5
_MOST_BELIEF = 2.0


@dataclass(frozen=True, slots=True)
class ErrorVariance:
    """The expected squared error at every input; without a forest the same."""

    scale: float
    forest: Any = None
    belief: float = 0.0

    def at(self, table: Array) -> Array:
        """Return the expected squared error of each row."""
        if self.forest is None:
            return np.full(len(table), self.scale)
        errors: Array = self.scale * np.exp(self.belief * self.forest.predict(table))
        return errors


def learn_error(
    table: Array,
    residuals: Array,
    floor_var: float,
    rng: torch.Generator,
    groups: Tensor | None = None,
) -> ErrorVariance:
    """Learn it from the residuals of models that were fitted without the row, or its group."""
    # A residual of nothing is no error of nothing.
    squares = residuals**2 + floor_var
    logs = np.log(squares)
    scores = np.zeros(len(logs))
    if len(logs) >= LEAST_ROWS:
        for out, others in parts(len(logs), rng, groups):
            scores[out] = _forest(table[others], logs[others], rng).predict(table[out])
        scores -= scores.mean()
    belief = _belief(squares, scores)
    scale = float((residuals**2 * np.exp(-belief * scores)).mean())
    return ErrorVariance(scale, _forest(table, logs, rng) if belief else None, belief)


def parts(
    num_rows: int, rng: torch.Generator, groups: Tensor | None = None
) -> Iterator[tuple[Array, Array]]:
    """Deal rows at random into parts, at most five; yield each, and all other rows, ascending.

    Rows of a group are in one part.
    """
    if groups is not None:
        for out, rest in folds(num_rows, _NUM_FOLDS, rng=rng, groups=groups):
            yield out.numpy(), rest.numpy()
        return
    order = torch.randperm(num_rows, generator=rng)
    for fold in order.tensor_split(min(_NUM_FOLDS, num_rows)):
        yield fold.numpy(), np.setdiff1d(order.numpy(), fold.numpy())


def _forest(table: Array, logs: Array, rng: torch.Generator) -> Any:
    build = require("sklearn.ensemble", "core[sklearn]").RandomForestRegressor
    leaf = max(_LEAST_LEAF, len(logs) // _MOST_LEAVES)
    seed = int(torch.randint(2**32 - 1, (), generator=rng))
    return build(_NUM_TREES, min_samples_leaf=leaf, random_state=seed).fit(
        table, logs - logs.mean()
    )


def _belief(squares: Array, scores: Array) -> float:
    """The most probable a; the profile over the constant is convex, by the log of a sum."""

    def loss(belief: float) -> float:
        likelihood = 0.5 * len(squares) * np.log(np.mean(squares * np.exp(-belief * scores)))
        return float(likelihood + 0.5 * belief**2)

    if loss(1e-3) >= loss(0.0):
        return 0.0
    return float(
        scipy.optimize.minimize_scalar(loss, bounds=(0.0, _MOST_BELIEF), method="bounded").x
    )
