"""Does a federation of five kinds of models work? In Python, by files, and over Flower.

`examples/mixed-federation` has five sites with 50 tumours each: one boosts trees, one grows a
forest, one samples a network, one has a Gaussian process and one a linear model. The federation is
run in three ways, and beside it the same federation with one kind of model at all five sites, in
Python. The model that comes back is scored on 199 rows that nobody has seen; figures are means over
seeds, which draw who has which rows.

    python   `pb.run` with `pb.InProcess(learners=...)`
    files    a study with `learner.name = "any"`, by commands alone
    flower   `predbayes_flower.client_app(learner=...)` in Flower's simulation: the bits of `python`
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import predbayes as pb
from benchmarks.by_commands import as_module, known_secrets, run_quietly
from benchmarks.flower import simulated
from predbayes.seeding import generator

EXAMPLE = Path(__file__).parents[1] / "examples" / "mixed-federation"
_MEASURES = ("nll", "accuracy", "ece")


def run(seeds: int = 3) -> dict[str, Any]:
    """Run every federation for each seed, and print one table."""
    torch.set_num_threads(1)
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))  # where its scripts find its package
    found = [run_seed(seed) for seed in range(seeds)]
    means = {
        name: {m: float(np.mean([one[name][m] for one in found])) for m in _MEASURES}
        for name in found[0]
    }
    print(f"{'':<32}{'NLL':>8}{'accuracy':>10}{'ECE':>8}")
    for name, scores in means.items():
        print(f"{name:<32}{scores['nll']:8.3f}{scores['accuracy']:10.3f}{scores['ece']:8.3f}")
    return {
        "scores": means,
        "same_bits": all(one["mixed, over Flower"] == one["mixed, in Python"] for one in found),
    }


def run_seed(seed: int) -> dict[str, dict[str, float]]:
    """Scores of every federation."""
    script = as_module("in_python", EXAMPLE / "in_python.py")
    inputs, targets = script.task.rows_to_come(seed)

    def scores(predictive: Any) -> dict[str, float]:
        return {
            "nll": pb.metrics.nll(predictive, targets),
            "accuracy": pb.metrics.accuracy(predictive, targets),
            "ece": pb.metrics.ece(predictive, targets, rng=generator(0, "ece")).value,
        }

    with tempfile.TemporaryDirectory() as folder:
        found = {
            "mixed, in Python": scores(script.run(seed).predict(inputs)),
            "mixed, by files": scores(_by_files(Path(folder), seed)),
            "mixed, over Flower": scores(_over_flower(Path(folder), seed).predict(inputs)),
        }
    for name in script.task.LEARNERS:
        same = (name,) * len(script.task.LEARNERS)
        found[f"all {name}"] = scores(script.run(seed, same).predict(inputs))
    told = ", ".join(f"{name} {scored['nll']:.3f}" for name, scored in found.items())
    print(f"seed {seed}: {told}", flush=True)
    return found


def _by_files(folder: Path, seed: int) -> pb.Categorical:
    with known_secrets(seed):
        as_module("by_files", EXAMPLE / "by_files.py").main(folder / "study", seed, run_quietly)
    predicted = pd.read_csv(folder / "study" / "coordinator" / "predicted.csv")
    chances = predicted[["probability_malignant", "probability_benign"]].to_numpy()
    return pb.Categorical.from_natural(torch.tensor(chances).clamp_min(1e-6).log().float())


def _over_flower(folder: Path, seed: int) -> pb.Result[Any]:
    with simulated(folder) as simulation:
        simulation.run(EXAMPLE, {"seed": seed, "out": folder / "result"}, num_sites=5)
    return pb.load(folder / "result")
