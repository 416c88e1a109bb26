"""Algorithm 1 on Fashion-MNIST (and MNIST for preset `tuned`): pools, student and control, 3 seeds.

Five clients, 25 epochs, 12,000 reference rows, all or 200 of them labelled, 10,000 test rows.
Finished cells are kept in `.benchmarks/fashion.jsonl`; delete it after a change of the code.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.algorithm import compare, deal, over_seeds
from predbayes.data.partition import label_skew
from predbayes.data.registry import load
from predbayes.learning.distill import PAPER_DISTILLATION
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import PRESETS
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical
from predbayes.seeding import generator

SEEDS = (0, 1, 2)
NUM_CLIENTS, NUM_REFERENCE = 5, 12_000
CELLS = [
    ("fashion-mnist", "paper", 0.9, NUM_REFERENCE),
    ("fashion-mnist", "paper", 0.9, 200),
    ("fashion-mnist", "paper", 0.0, NUM_REFERENCE),
    ("fashion-mnist", "tuned", 0.9, NUM_REFERENCE),
    ("fashion-mnist", "tuned", 0.0, NUM_REFERENCE),
    ("mnist", "tuned", 0.0, NUM_REFERENCE),
]


def run() -> dict[str, Any]:
    """Run every cell that has no record yet; return the means over seeds."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"seeds": list(SEEDS)}
    for dataset, preset, h, labels in CELLS:
        cell = {"dataset": dataset, "preset": preset, "h": h, "labels": labels}
        name = f"{dataset} {preset} h={h}" + (f" {labels} labels" if labels < 1000 else "")
        figures[name] = over_seeds("fashion", cell, SEEDS, _cell)
    return figures


def _cell(dataset: str, preset: str, h: float, labels: int, seed: int) -> dict[str, Any]:
    images = load(dataset, rng=generator(seed, "split"))
    num_classes = images.num_classes
    assert num_classes is not None  # a set of images
    inputs, targets = images.train_inputs, images.train_targets

    def split(rest: torch.Tensor) -> list[torch.Tensor]:
        return label_skew(targets[rest], NUM_CLIENTS, h, rng=generator(seed, "partition"))

    def score(predictive: Categorical) -> dict[str, float]:
        rng = generator(seed, "ece")
        calibration = metrics.ece(predictive, images.test_targets, rng=rng, num_draws=50)
        return {
            "nll": metrics.nll(predictive, images.test_targets),
            "ece": calibration.value,
            "ece_null": calibration.null,
            "accuracy": metrics.accuracy(predictive, images.test_targets),
        }

    rows = (inputs, targets)
    federation = deal(rows, NUM_REFERENCE, labels, split, images.test_inputs, seed)
    network = Network(lambda: mlp(784, num_classes), Softmax(num_classes))
    learner = SGHMCLearner(network, PRESETS[preset])
    return compare(learner, network, PAPER_DISTILLATION, federation, score, seed)
