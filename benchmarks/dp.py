"""Differential privacy of people: which epsilon is affordable at which number of rows.

All sites fit `dp-logistic` (`predbayes_study.extras.privacy.private`). They are in a logarithmic
pool, weighed
by noisy counts, and nothing is tuned: the coordinator's labels have no part. Adjacency is
replace-one, delta 1e-5, a row is a person. NLL on test rows, means over splits with fresh noise.

    hospitals    heart disease in four hospitals, 24 to 165 rows each to train on
    sites        five sites of N rows each of one drawn table of twelve columns and two classes, for
                 several N; the label's log odds are linear with one product of columns

An epsilon is affordable if it costs at most `COST` of NLL against the same model without noise. The
line `constant` is what somebody has who knows how common classes are, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from predbayes.learning.guarantee import Guarantee
from predbayes.predictive.pooling import LOG_POOL, PredictiveSum
from predbayes.seeding import generator
from predbayes.summand import fold
from predbayes_lab.config import Settings
from predbayes_lab.world import make_world
from predbayes_study.extras.privacy.private import PrivateLogistic

EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
DELTA = 1e-5
COST = 0.01
ROWS = (25, 50, 100, 300, 1000, 5000)
TARGET = 0.49  # NLL of four hospitals at epsilon 4, at the most
SPLITS = range(10, 20)  # on those before, steps, rate and shrinkage were chosen
NUM_DRAWS = 4
NUM_SITES, NUM_COLUMNS, NUM_TEST = 5, 12, 4000

Rows = tuple[Tensor, Tensor]


def run() -> dict[str, Any]:
    """NLL by epsilon, of four hospitals and of drawn sites of several sizes."""
    torch.set_num_threads(1)
    tables = {"four hospitals": list(_hospitals())}
    tables |= {f"5 x {num:,} rows": list(_sites(num)) for num in ROWS}
    names = [_name(epsilon) for epsilon in EPSILONS]
    print(
        f"{'NLL at epsilon':<18}" + "".join(f"{name:>8}" for name in names) + "  constant  cheapest"
    )
    found: dict[str, Any] = {}
    for table, splits in tables.items():
        line = {
            _name(epsilon): sum(
                _score(sites, test, epsilon, seed) for seed, (sites, test) in enumerate(splits)
            )
            / len(splits)
            for epsilon in EPSILONS
        }
        constant = sum(_constant(sites, test) for sites, test in splits) / len(splits)
        good = [n for n in names[:-1] if line[n] - line["none"] <= COST and line[n] < constant]
        found[table] = {**line, "constant": constant, "affordable": good}
        figures = "".join(f"{value:8.3f}" for value in line.values())
        print(
            f"{table:<18}{figures}{constant:10.3f}  {good[0] if good else 'no epsilon'}", flush=True
        )
    reached = found["four hospitals"]["4"]
    return {"nll": reached, "target": TARGET, "reached": reached <= TARGET, "tables": found}


def _promised(epsilon: float | None) -> Guarantee | None:
    return None if epsilon is None else Guarantee(epsilon, DELTA, "replace-one", "row")


def _name(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"


def _score(sites: list[Rows], test: Rows, epsilon: float | None, seed: int) -> float:
    """NLL of the pool of all sites."""
    parts = []
    for number, rows in enumerate(sites):
        learner = PrivateLogistic(2, _promised(epsilon))
        model = learner.fit(rows, rng=generator(seed, "noise", number, _name(epsilon)))
        said = model.predict(test[0])
        parts.append(PredictiveSum.of(said, float(model.people), terms=(LOG_POOL,)))
    pooled = fold(parts).pool({LOG_POOL.name: 1.0})
    return float(-pooled.log_prob(test[1]).mean())


def _constant(sites: list[Rows], test: Rows) -> float:
    share = float(torch.cat([targets for _, targets in sites]).double().mean())
    event = float(test[1].double().mean())
    return -event * math.log(share) - (1 - event) * math.log(1 - share)


def _hospitals() -> Iterator[tuple[list[Rows], Rows]]:
    settings = Settings.decode({"data": {"name": "heart"}, "partition": {"kind": "groups"}})
    for seed in SPLITS:
        world = make_world(settings, seed)
        test = world.reference.inputs[world.reference.evaluate]
        yield list(world.sites.values()), (test, world.targets)


def _sites(num_rows: int) -> Iterator[tuple[list[Rows], Rows]]:
    for seed in range(NUM_DRAWS):
        rng = generator(seed, "table")
        slopes = torch.randn(NUM_COLUMNS, generator=rng) * 0.7
        sites = [_drawn(num_rows, slopes, rng) for _ in range(NUM_SITES)]
        yield sites, _drawn(NUM_TEST, slopes, rng)


def _drawn(num_rows: int, slopes: Tensor, rng: torch.Generator) -> Rows:
    inputs = torch.randn(num_rows, NUM_COLUMNS, generator=rng)
    odds = inputs @ slopes + inputs[:, 0] * inputs[:, 1] - 0.5
    return inputs, (torch.rand(num_rows, generator=rng) < odds.sigmoid()).long()
