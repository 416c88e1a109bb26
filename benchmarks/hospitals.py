"""Four real hospitals: does a federation beat what each of them, or the coordinator, has alone?

Heart disease in four hospitals, 20 random splits within each hospital: 34 % of the patients test, a
fifth of the others are the coordinator's labelled rows, the rest stay where they are. Everybody
fits the same bootstrap ensemble of logistic regressions, with scikit-learn's own settings.

    NAME               a hospital's own model
    NAME plus labels   that hospital's rows and the labelled ones in one model
    labels alone       the coordinator without a federation
    log pool           sum_k n_k log p_k / sum_k n_k, the coordinator as a fifth site; nothing tuned
    all rows           what nobody may do: every training row in one place

Splits of the same patients overlap, so their differences d_j are not independent, and an interval
from their spread alone would be several times too narrow. Two that are not:

    splits     mean +- t sqrt((1 / J + tested / trained) var(d)), over J splits (Nadeau and Bengio,
               2003): other patients to train on and to test on
    patients   mean +- t sqrt(var / P), over P patients, each with its differences in all splits
               that test it: other patients to test on, for these models
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.hospital_commands import run_commands
from predbayes.api.run import run as run_method
from predbayes.learning.estimators import SklearnClassifier
from predbayes.methods.pooled import Pooled
from predbayes.optional import require
from predbayes.pools.auto import AutoPool
from predbayes.pools.pool import PoolState
from predbayes.pools.terms import beta, mixture, product
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import LOG_POOL, PredictiveSum
from predbayes.seeding import generator
from predbayes.summand import fold
from predbayes_lab.baselines.server_only import ServerOnly
from predbayes_lab.config import Settings
from predbayes_lab.data.dataset import Dataset
from predbayes_lab.data.heart import HOSPITALS
from predbayes_lab.shared import Shared
from predbayes_lab.statistics import summarise
from predbayes_lab.world import World, make_world

NUM_SPLITS = 20
SETTINGS = Settings.decode({"data": {"name": "heart"}, "partition": {"kind": "groups"}})
AUTO, LABELS, ALL_ROWS = "auto", "labels alone", "all rows"
TARGET = {"accuracy": 0.785, "nll": 0.455}  # of `auto`, at least and at most

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """What every line made of one split's test rows."""

    losses: dict[str, dict[str, Floats]]  # "nll" and "accuracy" by line, row by row
    patients: Integers  # who they are, the same number in every split
    hospitals: Integers  # where they are
    chosen: str  # the pool that `auto` took
    tested_per_trained: float


def run(commands: bool = False) -> dict[str, Any]:
    """Every line on every split; means, and differences to `auto` and to the labels alone.

    With ``commands`` the study is run by the commands of predbayes, with a model of its own choice
    at every hospital, and what each hospital takes home is scored (`benchmarks.hospital_commands`).
    """
    if commands:
        return run_commands(NUM_SPLITS)
    torch.set_num_threads(1)
    canonical = patient_table(make_world(SETTINGS, 0).dataset)
    splits = [score_split(seed, canonical) for seed in range(NUM_SPLITS)]
    names = list(splits[0].losses["nll"])
    lines = {name: _means(splits, name) for name in names}
    for name, scores in lines.items():
        print(f"{name:<24} accuracy {scores['accuracy']:.4f}  NLL {scores['nll']:.4f}")
    against = {base: _differences(splits, base) for base in (AUTO, LABELS)}
    at_home = _at_home(splits)
    chosen = dict(Counter(split.chosen for split in splits).most_common())
    print(f"auto took {chosen}", flush=True)
    auto = lines[AUTO]
    return {
        **auto,
        "reached": auto["accuracy"] >= TARGET["accuracy"] and auto["nll"] <= TARGET["nll"],
        "target": TARGET,
        "chosen": chosen,
        "lines": lines,
        "minus": against,
        "at_home": at_home,
    }


def score_split(seed: int, canonical: Tensor) -> Split:
    """Fit and score every line of one split."""
    world = make_world(SETTINGS, seed)
    learner = Shared(logistic_regressions(), world.sites.values())
    rows = world.reference.evaluate
    auto = _pooled(Pooled(learner, AutoPool(), send="predictions"), world, seed)
    assert auto.choice is not None
    predictives = {
        **_without_pooling(learner, world, seed),
        "mixture": _categorical(
            _pooled(Pooled(learner, mixture(), send="predictions"), world, seed)
        ),
        "product": _categorical(
            _pooled(Pooled(learner, product(), send="predictions"), world, seed)
        ),
        "beta": _categorical(_pooled(Pooled(learner, beta(), send="predictions"), world, seed)),
    }
    predictives["log pool"] = _log_pool(predictives, world)
    predictives[AUTO] = _categorical(auto)
    predictives[ALL_ROWS] = _fit(learner, _joined(world, world.sites), world, seed, ALL_ROWS)
    dataset = world.dataset
    assert dataset.test_groups is not None
    return Split(
        _losses({name: p[rows] for name, p in predictives.items()}, world.targets),
        nearest(patient_table(dataset)[-len(world.targets) :], canonical),
        dataset.test_groups.numpy(),
        auto.choice.spec.name,
        len(dataset.test_targets) / len(dataset.train_targets),
    )


def logistic_regressions() -> SklearnClassifier:
    """What everybody fits."""
    linear = require("sklearn.linear_model", "experiments")
    return SklearnClassifier(linear.LogisticRegression(max_iter=1000), num_classes=2)


def _pooled(method: Any, world: World, seed: int) -> PoolState:
    state: PoolState = run_method(
        method, world.sites, world.reference, seed=seed, progress=False
    ).state
    return state


def _categorical(state: PoolState) -> Categorical:
    assert isinstance(state.predictive, Categorical)
    return state.predictive


def _without_pooling(learner: Shared, world: World, seed: int) -> dict[str, Categorical]:
    found = {}
    for name, rows in world.sites.items():
        # The fit that the pools take: a site's randomness has the same address in all of them.
        rng = generator(seed, "site", name, "round", 0)
        found[name] = learner.fit(rows, rng=rng).predict(world.reference.inputs)
    for name in world.sites:
        found[f"{name} plus labels"] = _fit(learner, _joined(world, [name]), world, seed, name)
    found[LABELS] = _categorical(_pooled(ServerOnly(learner), world, seed))
    return found


def _fit(
    learner: Shared, rows: tuple[Tensor, Tensor], world: World, seed: int, name: str
) -> Categorical:
    fitted = learner.fit(rows, rng=generator(seed, "joined", name))
    predictive: Categorical = fitted.predict(world.reference.inputs)
    return predictive


def _joined(world: World, names: Iterable[str]) -> tuple[Tensor, Tensor]:
    """The rows of some sites and the labelled ones."""
    reference = world.reference
    parts = [world.sites[name] for name in names]
    inputs = torch.cat([reference.inputs[reference.labelled], *(x for x, _ in parts)])
    return inputs, torch.cat([reference.targets, *(y for _, y in parts)])


def _log_pool(predictives: Mapping[str, Categorical], world: World) -> Categorical:
    num_rows = {name: len(rows[1]) for name, rows in world.sites.items()}
    num_rows[LABELS] = len(world.reference.targets)
    total = fold(
        PredictiveSum.of(predictives[name], num, terms=(LOG_POOL,))
        for name, num in num_rows.items()
    )
    return total.pool({LOG_POOL.name: 1.0})


def _losses(
    predictives: Mapping[str, Categorical], targets: Tensor
) -> dict[str, dict[str, Floats]]:
    right = {name: p.log_probs.argmax(-1) == targets for name, p in predictives.items()}
    return {
        "nll": {name: -p.log_prob(targets).double().numpy() for name, p in predictives.items()},
        "accuracy": {name: hits.double().numpy() for name, hits in right.items()},
    }


def patient_table(dataset: Dataset) -> Tensor:
    """All patients, training rows first, in units that do not depend on the split."""
    rows = torch.cat([dataset.train_inputs, dataset.test_inputs]).double()
    table = (rows - rows.mean(0)) / rows.std(0)
    assert dataset.train_groups is not None
    assert dataset.test_groups is not None
    groups = torch.cat([dataset.train_groups, dataset.test_groups]).double()
    return torch.cat([table, groups.unsqueeze(1)], dim=1)


def nearest(table: Tensor, canonical: Tensor) -> Integers:
    """For each row of a table the number of the same row in another."""
    found: Integers = torch.cdist(table, canonical).argmin(1).numpy()
    return found


def _means(splits: Sequence[Split], name: str) -> dict[str, float]:
    return {
        metric: float(np.mean([split.losses[metric][name].mean() for split in splits]))
        for metric in ("accuracy", "nll")
    }


def _differences(splits: Sequence[Split], base: str) -> dict[str, Any]:
    """Every line minus one, by metric, with both intervals."""
    print(f"minus {base}:")
    found: dict[str, Any] = {}
    for name in splits[0].losses["nll"]:
        if name == base:
            continue
        found[name] = {m: _difference(splits, m, name, base) for m in ("accuracy", "nll")}
        figures = (
            f"{m} {d['mean']:+.4f} ({d['splits'][0]:+.4f}, {d['splits'][1]:+.4f})"
            for m, d in found[name].items()
        )
        print(f"  {name:<22} " + "  ".join(figures))
    return found


def _difference(splits: Sequence[Split], metric: str, name: str, base: str) -> dict[str, Any]:
    rows = [split.losses[metric][name] - split.losses[metric][base] for split in splits]
    means = np.array([own.mean() for own in rows])
    patients = np.concatenate([split.patients for split in splits])
    return {
        "mean": float(means.mean()),
        "splits": summarise(means, splits[0].tested_per_trained).interval,
        "patients": summarise(by_patient(np.concatenate(rows), patients)).interval,
    }


def by_patient(values: Floats, patients: Integers) -> Floats:
    """One value for each patient, with the mean that the values of all tests have."""
    _, which = np.unique(patients, return_inverse=True)
    num_patients = int(which.max()) + 1
    scaled: Floats = np.bincount(which, values) * num_patients / len(values)
    return scaled


def _at_home(splits: Sequence[Split]) -> dict[str, Any]:
    """Each hospital's own model on its own test rows, beside what it would get instead."""
    found: dict[str, Any] = {}
    for number, hospital in enumerate(HOSPITALS):
        here = [_only(split, split.hospitals == number) for split in splits]
        found[hospital] = {name: _means(here, name) for name in (hospital, LABELS, AUTO, ALL_ROWS)}
        figures = (f"{n} {f['accuracy']:.3f} / {f['nll']:.3f}" for n, f in found[hospital].items())
        print(f"patients of {hospital}: " + ", ".join(figures))
    return found


def _only(split: Split, rows: NDArray[np.bool_]) -> Split:
    losses = {
        metric: {name: values[rows] for name, values in by_line.items()}
        for metric, by_line in split.losses.items()
    }
    return replace(
        split, losses=losses, patients=split.patients[rows], hospitals=split.hospitals[rows]
    )
