"""How preset `tuned` was chosen: variations of it, scored on reference rows, never on test rows.

MNIST and Fashion-MNIST, five clients at h = 0, 25 epochs, one seed that no other benchmark uses.
`mixture` is the NLL of the mixture, `site` that of one client's own model, on the 12,000 labelled
reference rows. Finished cells are kept in `.benchmarks/presets.jsonl`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.algorithm import deal, recorded
from predbayes.data.partition import label_skew
from predbayes.data.registry import load
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import PRESETS
from predbayes.predictive import metrics
from predbayes.predictive.pooling import PredictiveSum
from predbayes.seeding import generator
from predbayes.summand import fold

SEED = 100
TUNED = PRESETS["tuned"]
CANDIDATES = {
    "paper": PRESETS["paper"],
    "tuned": TUNED,
    "one cosine": replace(TUNED, num_cycles=1, samples_per_cycle=6),
    "five cycles": replace(TUNED, num_cycles=5, samples_per_cycle=2),
    "flat prior": replace(TUNED, prior_std=PRESETS["paper"].prior_std),
    "prior .5": replace(TUNED, prior_std=0.5),
    "prior .2": replace(TUNED, prior_std=0.2),
    "step .05": replace(TUNED, step_size=0.05),
    "step .2": replace(TUNED, step_size=0.2),
    "friction .2": replace(TUNED, friction=0.2),
    "exploration .5": replace(TUNED, exploration=0.5),
    "almost no noise": replace(TUNED, temperature="1/rows"),
}


def run() -> dict[str, Any]:
    """Score every candidate that has no record yet."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"seed": SEED}
    for name in CANDIDATES:
        for dataset in ("mnist", "fashion-mnist"):
            figures[f"{name}, {dataset}"] = recorded(
                "presets", {"candidate": name, "dataset": dataset}, _cell
            )
            print(f"{name}, {dataset}: {figures[f'{name}, {dataset}']}", flush=True)
    return figures


def _cell(candidate: str, dataset: str) -> dict[str, float]:
    images = load(dataset, rng=generator(SEED, "split"))
    targets = images.train_targets

    def split(rest: torch.Tensor) -> list[torch.Tensor]:
        return label_skew(targets[rest], 5, 0.0, rng=generator(SEED, "partition"))

    rows = (images.train_inputs, targets)
    sites, reference = deal(rows, 12_000, 12_000, split, images.test_inputs[:0], SEED)
    learner = SGHMCLearner(Network(lambda: mlp(784, 10), Softmax(10)), CANDIDATES[candidate])
    predictives = [
        learner.fit(rows, rng=generator(SEED, name)).predict(reference.inputs)
        for name, rows in sites.items()
    ]
    total = fold(PredictiveSum.of(predictive) for predictive in predictives)
    return {
        "mixture": metrics.nll(total.mixture(), reference.targets),
        "site": metrics.nll(predictives[0], reference.targets),
    }
