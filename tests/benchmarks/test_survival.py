"""The benchmark `survival` on an invented table; its figures come from the command."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from benchmarks import survival
from predbayes.predictive.families import Survival


def patients(num_rows=400):
    """Times to an event that comes sooner with age, censored at random."""
    rng = np.random.default_rng(0)
    age = rng.normal(60, 10, num_rows)
    sex = rng.choice(["f", "m"], num_rows)
    times = rng.exponential(20 * np.exp(-(age - 60) / 10))
    censored = rng.exponential(60, num_rows)
    return pd.DataFrame(
        {
            "age": age,
            "sex": sex,
            "time": np.maximum(np.minimum(times, censored), 0.01),
            "event": (times <= censored).astype(int),
        }
    )


def test_one_seed_scores_everybody_on_the_test_rows(monkeypatch):
    """Beside a curve that is the same for everybody, in the place of the Cox model."""
    sizes = []

    def same_curve(labels, rows):
        sizes.append((len(labels.evaluate_targets), sum(len(own.targets) for own in rows)))
        num_bins = int(torch.cat([own.targets for own in rows]).abs().max().ceil()) + 1
        return Survival.from_moments(torch.full((sizes[0][0], num_bins), 1 / num_bins).double())

    monkeypatch.setattr(survival, "cox", same_curve)
    found = survival.one_seed(patients(), "sorted", seed=2)
    assert sizes == [(100, 200)]
    assert found["cox"]["c_index"] == 0.5
    for name in ("student", "pool", *survival.UNTUNED):
        assert found[name]["c_index"] > 0.65
        assert found[name]["ibs"] < found["cox"]["ibs"]
    assert found["best site"]["c_index"] >= found["mean site"]["c_index"]
