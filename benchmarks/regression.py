"""Algorithm 1 on red wine quality, sites sorted by alcohol: pools, student and control, 3 seeds.

Five clients, a fifth of the training rows as labelled reference rows, a random fifth of all rows
as test. Everybody learns the noise. `paper` has the settings of the paper's appendix for this set;
`tuned` trains longer with more momentum, chosen on the reference rows of other seeds. NLL is in
nats per row with its constant, on targets in units of the training targets' standard deviation.
Finished cells are kept in `.benchmarks/regression.jsonl`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.algorithm import compare, deal, over_seeds
from predbayes.data.partition import sorted_by
from predbayes.data.registry import load
from predbayes.learning.likelihood import LearnedNoise
from predbayes.learning.local import Network, OptimizerSettings, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import PRESETS, SamplerSettings
from predbayes.predictive import metrics
from predbayes.predictive.families import Gaussian
from predbayes.seeding import generator

SEEDS = (0, 1, 2)
NUM_CLIENTS = 5
SETTINGS = {
    "paper": SamplerSettings(
        num_epochs=20, step_size=0.2, temperature=0.05, num_cycles=4, max_samples=4
    ),
    "tuned": replace(
        PRESETS["tuned"],
        num_epochs=200,
        batch_size=50,
        step_size=0.02,
        prior_std=0.2,
        exploration=0.5,
    ),
}
DISTILLATION = OptimizerSettings("adam", lr=5e-3, num_epochs=100)


def run() -> dict[str, Any]:
    """Run every cell that has no record yet; return the means over seeds."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"seeds": list(SEEDS)}
    for preset in SETTINGS:
        figures[f"wine {preset}"] = over_seeds("regression", {"preset": preset}, SEEDS, _cell)
    return figures


def _cell(preset: str, seed: int) -> dict[str, Any]:
    table = load("wine", rng=generator(seed, "split"))
    num_features, feature = table.train_inputs.shape[1], table.sort_feature
    assert feature is not None  # a table

    def split(rest: torch.Tensor) -> list[torch.Tensor]:
        return sorted_by(feature[rest], NUM_CLIENTS)

    def score(predictive: Gaussian) -> dict[str, float]:
        return {
            "nll": metrics.nll(predictive, table.test_targets),
            "rmse": metrics.rmse(predictive, table.test_targets),
            "coverage_95": metrics.interval_coverage(predictive, table.test_targets),
        }

    rows = (table.train_inputs, table.train_targets)
    num_reference = len(table.train_targets) // 5
    federation = deal(rows, num_reference, num_reference, split, table.test_inputs, seed)
    network = Network(lambda: mlp(num_features, 1), LearnedNoise())
    student = Network(lambda: mlp(num_features, 2), LearnedNoise(per_input=True))
    learner = SGHMCLearner(network, SETTINGS[preset])
    return compare(learner, student, DISTILLATION, federation, score, seed)
