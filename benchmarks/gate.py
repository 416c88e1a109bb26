"""What a gate costs a site: CPU time against the fit of its model, and bytes of the upload.

`ratio` is the time to learn the gate, on own and contrast rows and with what it says of every
reference row, over the time to fit the model; medians of three turns, each of one and then the
other, one thread. Rows are drawn. Names are those of learners in a plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from predbayes.exchange.upload import Upload
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.gate import log_density_ratio
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, SGHMCLearner
from predbayes.learning.named import CALIBRATED, CLASSIFIERS
from predbayes.posterior.cyclical import PRESETS
from predbayes.seeding import generator

NUM_CLASSES, NUM_COLUMNS, NUM_REFERENCE, TURNS = 3, 20, 1000, 3


def run() -> dict[str, Any]:
    """Fit model and gate in turns, for each learner at sites of three sizes."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"upload": _bytes()}
    print(f"bytes of predictions and gate over predictions: {figures['upload']:.2f}")
    for num in (200, 1000, 5000):
        for name, learner in _learners():
            figures[f"{name}, {num} rows"] = found = _ratio(learner, num)
            print(f"{num:>6} rows  {name:<20} {found['ratio']:5.2f} of {found['seconds']:.2f} s")
    return figures


def _learners() -> Iterator[tuple[str, Any]]:
    for name in ("logistic-regression", "gradient-boosting", "random-forest"):
        estimator = CLASSIFIERS[name]()
        yield name, SklearnClassifier(estimator, NUM_CLASSES, calibrated=name in CALIBRATED)
    network = Network.mlp(NUM_COLUMNS, Softmax(NUM_CLASSES), (100, 100))
    yield "network", SGHMCLearner(network, replace(PRESETS["tuned"], min_steps=1000))


def _rows(num: int, whose: str) -> tuple[torch.Tensor, torch.Tensor]:
    rng = generator(0, "gate", whose)
    inputs = torch.randn(num, NUM_COLUMNS, generator=rng)
    return inputs, (inputs[:, :NUM_CLASSES] + inputs[:, 3:6]).argmax(1)


def _ratio(learner: Any, num: int) -> dict[str, float]:
    own, reference = _rows(num, "own"), _rows(NUM_REFERENCE, "reference")[0] + 0.3
    gate_learner = learner.gate_learner()
    turns = [
        (
            _seconds(lambda: learner.fit(own, rng=generator(0))),
            _seconds(lambda: log_density_ratio(gate_learner, own, reference, rng=generator(0))),
        )
        for _ in range(TURNS)
    ]
    model, gate = (median(times) for times in zip(*turns, strict=True))
    return {"ratio": gate / model, "seconds": model}


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _bytes() -> float:
    """Bytes of an upload of predictions with a gate over those without it."""
    own, reference = _rows(200, "own"), _rows(NUM_REFERENCE, "reference")[0]
    learner = dict(_learners())["logistic-regression"]
    said = learner.fit(own, rng=generator(0)).predict(reference)
    gate = log_density_ratio(learner.gate_learner(), own, reference, rng=generator(0))
    plain, gated = (
        sum(a.nbytes for a in Upload.of_predictions(said, num_rows=200, gate=g).arrays.values())
        for g in (None, gate)
    )
    return gated / plain
