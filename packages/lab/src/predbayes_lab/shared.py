"""A learner that fits each site once, whoever asks.

Methods compared on one split often want the same fit: mixture, product and beta the same posterior
samples, FedAvg, FedBE and OneShotFL the same networks. A site's randomness depends on its name, the
seed and the round, not on the method, so the fits are equal to the bit, and one is enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from predbayes.learning.local import Predictor
from predbayes.learning.training import Rows
from predbayes.posterior.samples import WeightSamples, effective_samples
from predbayes.predictive.families import Predictive


class Shared:
    """A learner whose fits to some sites' rows are kept.

    A fit is taken from memory when rows, generator state and start are the same; the generator is
    left where the fit would have left it. Other rows, and fits with further options, are not kept.
    """

    def __init__(self, learner: Any, sites: Iterable[Rows]) -> None:
        self._learner = learner
        self._sites = {id(rows): rows for rows in sites}  # holds them, so that ids stay theirs
        self._fits: dict[tuple[int, str], tuple[Predictor, Tensor]] = {}

    def __getattr__(self, name: str) -> Any:
        # `network` and `device`, where the learner has them.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._learner, name)

    def fit(self, rows: Rows, *, rng: torch.Generator, **options: Any) -> Any:
        """Learn from a site's rows, or remember having done so."""
        special = {name for name, value in options.items() if value is not None} - {"start"}
        if special or id(rows) not in self._sites:
            return self._learner.fit(rows, rng=rng, **options)
        key = (id(rows), _digest(rng, options.get("start")))
        if key not in self._fits:
            fitted = _Remembering(self._learner.fit(rows, rng=rng, **options))
            self._fits[key] = (fitted, rng.get_state())
        predictor, state = self._fits[key]
        rng.set_state(state)
        return predictor


class Watched:
    """A learner that remembers how many samples each of its fits is worth."""

    def __init__(self, learner: Any, per_cycle: int) -> None:
        self._learner = learner
        self._per_cycle = per_cycle
        self.effective: list[float] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._learner, name)

    def fit(self, rows: Rows, *, rng: torch.Generator, **options: Any) -> Any:
        """Learn from a site's rows, and count the samples."""
        fitted = self._learner.fit(rows, rng=rng, **options)
        self.effective.append(effective_samples(fitted.samples, self._per_cycle))
        return fitted


class _Remembering:
    """A predictor that keeps its predictives on the inputs last seen."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._last: tuple[Tensor, Predictive] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._predictor, name)

    def predict(self, inputs: Tensor) -> Predictive:
        """The wrapped predictor's predictives."""
        if self._last is None or self._last[0] is not inputs:
            self._last = (inputs, self._predictor.predict(inputs))
        return self._last[1]


def _digest(rng: torch.Generator, start: WeightSamples | None) -> str:
    content = hashlib.sha256(rng.get_state().numpy().tobytes())
    for vector in start.vectors() if start is not None else ():
        content.update(vector.numpy().tobytes())
    return content.hexdigest()
