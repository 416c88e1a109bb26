"""Differential privacy of people: which epsilon is affordable at which number of rows.

All sites fit `dp-logistic` (`predbayes.learning.private`). They are in a logarithmic pool, weighed
by noisy counts, and nothing is tuned: the coordinator's labels have no part. Adjacency is
replace-one, delta 1e-5, a row is a person. NLL on test rows, means over splits with fresh noise.

    hospitals    heart disease in four hospitals, 24 to 165 rows each to train on
    sites        five sites of N rows each of one drawn table of twelve columns and two classes, for
                 several N; the label's log odds are linear with one product of columns

With `--network` one site of N rows of Fashion-MNIST, in `NUM_PARTS` principal components of other
rows, each in its standard deviation; ten classes. NLL on test rows, means over draws of rows and
noise, of four learners:

    logistic     `dp-logistic` as plans have it
    linear       the same model by the descent of the next: what more steps are worth
    network      `dp-network` with q = 0.05, 300 steps and clipping norm 2
    usual        a network of that size as plans without a promise sample it, by SGHMC

An epsilon is affordable if it costs at most `COST` of NLL against the same model without noise. The
line `constant` is what somebody has who knows how common classes are, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predbayes.data.registry import load
from predbayes.experiments.config import Settings
from predbayes.experiments.world import make_world
from predbayes.learning.accounting import Guarantee
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, Predictor, SGHMCLearner
from predbayes.learning.private import (
    PrivateLogistic,
    PrivateModel,
    logistic,
    people_and_noise,
)
from predbayes.learning.private_network import PrivateNetwork
from predbayes.posterior.cyclical import PRESETS
from predbayes.predictive.pooling import LOG_POOL, PredictiveSum
from predbayes.seeding import generator
from predbayes.summand import fold

EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
DELTA = 1e-5
COST = 0.01
ROWS = (25, 50, 100, 300, 1000, 5000)
TARGET = 0.49  # NLL of four hospitals at epsilon 4, at the most
SPLITS = range(10, 20)  # on those before, steps, rate and shrinkage were chosen
NUM_DRAWS = 4
NUM_SITES, NUM_COLUMNS, NUM_TEST = 5, 12, 4000

NETWORK_EPSILONS = (1.0, 4.0, 8.0, None)
NETWORK_ROWS = (1000, 5000, 20_000)
NETWORK_DRAWS = 2
NUM_PARTS, NUM_OTHERS = 30, 10_000

Rows = tuple[Tensor, Tensor]
Fit = Callable[[Rows, Guarantee | None, torch.Generator], Predictor]


def run(network: bool = False) -> dict[str, Any]:
    """NLL by epsilon, of four hospitals and of drawn sites of several sizes; or of a network."""
    torch.set_num_threads(1)
    return _networks() if network else _pools()


def _pools() -> dict[str, Any]:
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


def _networks() -> dict[str, Any]:
    """NLL of four learners at one site, by its size and by epsilon."""
    rows, test = _images()
    names = [_name(epsilon) for epsilon in NETWORK_EPSILONS]
    print(f"{'NLL at epsilon':<26}" + "".join(f"{name:>8}" for name in names))
    found: dict[str, Any] = {}
    for num_rows, (kind, fit) in product(NETWORK_ROWS, _FITS.items()):
        line = {}
        for epsilon in NETWORK_EPSILONS if kind != "usual" else (None,):
            scores = [
                _alone(fit, rows, test, num_rows, epsilon, draw) for draw in range(NETWORK_DRAWS)
            ]
            line[_name(epsilon)] = sum(scores) / len(scores)
        found[f"{kind}, {num_rows} rows"] = line
        figures = "".join(f"{line[name]:8.3f}" if name in line else f"{'':8}" for name in names)
        print(f"{kind:<10}{num_rows:>10,} rows {figures}", flush=True)
    gained = {  # against the linear model that descends in the same way, which is the fair one
        num: found[f"linear, {num} rows"]["4"] - found[f"network, {num} rows"]["4"]
        for num in NETWORK_ROWS
    }
    return {"gained_at_epsilon_4": gained, "tables": found}


def _images() -> tuple[Rows, Rows]:
    """Rows to deal and rows to test on, in components of rows that are neither."""
    data = load("fashion-mnist", rng=generator(0))
    train, test = (part.flatten(1).double() for part in (data.train_inputs, data.test_inputs))
    others = train[:NUM_OTHERS]
    parts = torch.linalg.svd(others - others.mean(0), full_matrices=False).Vh[:NUM_PARTS].T
    scales = ((others - others.mean(0)) @ parts).std(0)
    told = [((one - others.mean(0)) @ parts / scales).float() for one in (train, test)]
    return (told[0][NUM_OTHERS:], data.train_targets[NUM_OTHERS:]), (told[1], data.test_targets)


def _alone(
    fit: Fit, rows: Rows, test: Rows, num_rows: int, epsilon: float | None, draw: int
) -> float:
    """NLL of one site's model."""
    some = torch.randperm(len(rows[1]), generator=generator(draw, "rows"))[:num_rows]
    rng = generator(draw, "noise", num_rows, _name(epsilon))
    model = fit((rows[0][some], rows[1][some]), _promised(epsilon), rng)
    return float(-model.predict(test[0]).log_prob(test[1]).mean())


def _logistic(rows: Rows, guarantee: Guarantee | None, rng: torch.Generator) -> Predictor:
    return PrivateLogistic(10, guarantee).fit(rows, rng=rng)


def _network(rows: Rows, guarantee: Guarantee | None, rng: torch.Generator) -> Predictor:
    return PrivateNetwork(10, guarantee).fit(rows, rng=rng)


def _linear(rows: Rows, guarantee: Guarantee | None, rng: torch.Generator) -> Predictor:
    """The logistic model, by all that the network descends by."""
    like = PrivateNetwork(10, guarantee)
    people, noise = people_and_noise(rows, 10, guarantee, secret=b"", groups=None, rng=rng)
    weights, counted = like.descent.descend(people, np.zeros(10 * people.width), logistic, noise)
    return PrivateModel(torch.from_numpy(weights.reshape(people.width, 10)), round(counted))


def _usual(rows: Rows, guarantee: Guarantee | None, rng: torch.Generator) -> Predictor:
    assert guarantee is None
    net = Network.mlp(NUM_PARTS, Softmax(10), (PrivateNetwork(10, None).hidden,))
    return SGHMCLearner(net, PRESETS["tuned"]).fit(rows, rng=rng)


_FITS: dict[str, Fit] = {
    "logistic": _logistic,
    "linear": _linear,
    "network": _network,
    "usual": _usual,
}


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
