"""One poisoned site of five: does screening find it, and what does it cost where none is?

Handwritten digits (MNIST, 14 x 14), five sites of 400 rows with all classes alike (h = 0) or nearly
only classes of their own (h = 0.9), 200 or 1,000 labels; grades of wines, five sites sorted by a
feature, 256 labels. One site in five is poisoned, in each of these ways:

    permuted          trained on labels that were exchanged class by class; of numbers the negative
    shuffled          trained on labels of other rows
    wrong and sure    a wrong class with certainty
    permuted, sure    as permuted, far too confident
    constant          uniform, or always one class; of numbers the mean
    copy              another site's predictions, or these with noise

Pools are `auto` with the coordinator's own model, screened by the rule ``leave-out``. Figures are
the NLL on test rows of the pool with the poisoned site, screened or not, over that of the study
without the site; for honest sites, and for the four hospitals in 20 splits (`hospitals`), that of
the screened pool over that of everybody's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import hospitals
from predbayes import partition
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.local import Learner
from predbayes.optional import require
from predbayes.pools.prior import prior_predictive
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.predictive.pooling import Contribution
from predbayes.predictive.selection import candidates, select
from predbayes.seeding import generator
from predbayes_lab.config import Settings
from predbayes_lab.data import registry
from predbayes_lab.world import World, make_world
from predbayes_study.result.influence import PoolLosses
from predbayes_study.result.screening import Screening, screen

SEEDS = range(3)
NUM_LABELS = (200, 1000)
HETEROGENEITY = (0.0, 0.9)
NUM_SITES, SITE_ROWS, NUM_TEST = 5, 400, 2000
FLOOR = -12.0  # as in a plan
TARGET = {"poisoned": 1.05, "honest": 1.01}

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Study:
    """Honest sites on labelled, then test rows, and what one of them may be instead."""

    name: str
    sites: tuple[Contribution, ...]
    targets: Tensor  # labels first
    num_labels: int
    own: Predictive
    prior: Predictive | None
    bad: int  # which site is poisoned
    poisons: Mapping[str, Predictive]
    seed: int

    def poisoned(self, poison: str) -> tuple[Contribution, ...]:
        """The sites with one of them poisoned; it says the same about its rows as before."""
        sites = list(self.sites)
        sites[self.bad] = replace(sites[self.bad], predictive=self.poisons[poison])
        return tuple(sites)


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one study with one poison, or none."""

    study: str
    poison: str
    base: float  # NLL without the poisoned site; of everybody, if all are honest
    open: float  # NLL with everybody
    screened: float
    named: tuple[str, ...]  # what was found about the poisoned site
    accused: int  # honest sites about which something was found, but that one was copied
    left_out: bool  # the poisoned site, or one that is its copy


def run() -> dict[str, Any]:
    """Every study with every poison; worst ratios, of means over seeds, against the targets."""
    torch.set_num_threads(1)
    cells: dict[tuple[str, str], list[Line]] = {}
    for study in chain(digit_studies(), regression_studies(), hospital_studies()):
        for line in score(study):
            cells.setdefault((line.study, line.poison), []).append(line)
        print(f"scored {study.name}, seed {study.seed}", flush=True)
    table = [_cell(study, poison, lines) for (study, poison), lines in cells.items()]
    for cell in table:
        print(_readable(cell))
    poisoned = [cell for cell in table if cell["poison"] != "none"]
    honest = [cell for cell in table if cell["poison"] == "none"]
    worst = {
        "poisoned": max(cell["screened"] for cell in poisoned),
        "honest": max(cell["screened"] for cell in honest),
    }
    return {
        "worst": worst,
        "worst_open": max(cell["open"] for cell in poisoned),
        "worst_single": max(cell["worst"] for cell in poisoned),
        "named": min(cell["named"] for cell in poisoned),
        "reached": {name: worst[name] <= TARGET[name] for name in TARGET},
        "all_named": all(cell["named"] == 1 for cell in poisoned),
        "target": TARGET,
        "cells": table,
    }


def score(study: Study) -> Iterator[Line]:
    """The pool without the poisoned site, with it, and screened."""
    losses = _remembered(study)
    everybody = pool_nll(study, study.sites)
    found = _screened(study, study.sites, losses)
    kept = _kept(study.sites, found)
    yield Line(
        study.name,
        "none",
        everybody,
        everybody,
        pool_nll(study, kept),
        (),
        sum(bool(screening.findings) for screening in found.values()),
        len(kept) < len(study.sites),
    )
    if not study.poisons:
        return
    bad = study.sites[study.bad].site
    without = pool_nll(study, [c for c in study.sites if c.site != bad])
    for poison in study.poisons:
        sites = study.poisoned(poison)
        found = _screened(study, sites, losses)
        kept = _kept(sites, found)
        copied = {study.sites[(study.bad + 1) % len(sites)].site} if "copy" in poison else set()
        yield Line(
            study.name,
            poison,
            without,
            pool_nll(study, sites),
            pool_nll(study, kept),
            tuple(finding.kind for finding in found[bad].findings),
            sum(bool(s.findings) for name, s in found.items() if name not in {bad, *copied}),
            any(found[name].leave_out for name in {bad, *copied}),
        )


def _screened(study: Study, sites: Sequence[Contribution], losses: Any) -> dict[str, Screening]:
    labelled = [replace(c, predictive=c.predictive[: study.num_labels]) for c in sites]
    targets = study.targets[: study.num_labels]
    return screen(labelled, targets, losses=losses)


def _remembered(study: Study) -> Any:
    """The losses of pools, each computed once: poisons share the pools without them."""
    targets = study.targets[: study.num_labels]
    own = study.own[: study.num_labels]
    fresh = PoolLosses(targets, seed=study.seed, own=own, prior=study.prior, floor=FLOOR)
    known: dict[tuple[Any, ...], Tensor] = {}

    def losses(sites: Sequence[Contribution]) -> Tensor:
        key = tuple((c.site, float(c.predictive.natural().double().sum())) for c in sites)
        if key not in known:
            known[key] = fresh(sites)
        return known[key]

    return losses


def _kept(sites: Sequence[Contribution], found: Mapping[str, Screening]) -> list[Contribution]:
    return [c for c in sites if not found[c.site].leave_out]


def pool_nll(study: Study, sites: Sequence[Contribution]) -> float:
    """Of the pool chosen on the labelled rows, on the test rows."""
    num, targets = study.num_labels, study.targets
    losses = PoolLosses(targets[:num], seed=0, own=study.own, prior=study.prior, floor=FLOOR)
    total = losses.tuned(sites).total
    labelled = total[:num]
    rng = generator(study.seed, "pool")
    choice = select(labelled, targets[:num], candidates(labelled), rng=rng)
    pooled = total[num:].pool(choice.tuned.weights)
    return -float(pooled.log_prob(targets[num:]).double().mean())


def _cell(study: str, poison: str, lines: Sequence[Line]) -> dict[str, Any]:
    base = sum(line.base for line in lines)
    return {
        "study": study,
        "poison": poison,
        "nll": base / len(lines),
        "open": sum(line.open for line in lines) / base,
        "screened": sum(line.screened for line in lines) / base,
        "worst": max(line.screened / line.base for line in lines),
        "named": sum(bool(line.named) for line in lines) / len(lines),
        "as": sorted({kind for line in lines for kind in line.named}),
        "accused": sum(line.accused for line in lines) / len(lines),
        "left_out": sum(line.left_out for line in lines) / len(lines),
    }


def _readable(cell: Mapping[str, Any]) -> str:
    return (
        f"{cell['study']:<18} {cell['poison']:<16} NLL {cell['nll']:.3f}  with it x "
        f"{cell['open']:.3f}  screened x {cell['screened']:.3f} (worst {cell['worst']:.3f})  "
        f"named {cell['named']:.0%} {', '.join(cell['as'])}  left out {cell['left_out']:.0%}  "
        f"others accused {cell['accused']:.1f}"
    )


def digit_studies() -> Iterator[Study]:
    """Sites, labels and test rows drawn for each seed; the same rows for any heterogeneity."""
    dataset = registry.load("mnist", rng=generator(0, "digits"))
    inputs, test_inputs = (
        functional.avg_pool2d(x, 2).flatten(1) for x in (dataset.train_inputs, dataset.test_inputs)
    )
    linear = require("sklearn.linear_model", "experiments")
    learner = SklearnClassifier(linear.LogisticRegression(max_iter=1000), 10, size=5)
    num_site_rows = NUM_SITES * SITE_ROWS
    for seed in SEEDS:
        rng = generator(seed, "digits")
        order = torch.randperm(len(inputs), generator=rng)
        test = torch.randperm(len(test_inputs), generator=rng)[:NUM_TEST]
        dealt, labelled = order[:num_site_rows], order[num_site_rows:][: max(NUM_LABELS)]
        reference = torch.cat([inputs[labelled], test_inputs[test]])
        targets = torch.cat([dataset.train_targets[labelled], dataset.test_targets[test]])
        owns = {
            num: _own(learner, _first_labels(reference, num), targets[:num], seed)
            for num in NUM_LABELS
        }
        for h in HETEROGENEITY:
            y = dataset.train_targets[dealt]
            parts = partition.label_skew(y, NUM_SITES, h, rng=generator(seed, "deal"))
            rows = [(inputs[dealt[part]], y[part]) for part in parts]
            sites, bad = _fitted(learner, rows, reference, seed), seed % NUM_SITES
            poisons = _class_poisons(learner, rows[bad], reference, sites, bad, seed)
            for num in NUM_LABELS:
                yield Study(
                    f"digits h={h:g} n={num}",
                    tuple(replace(c, predictive=_first_labels(c.predictive, num)) for c in sites),
                    _first_labels(targets, num),
                    num,
                    owns[num],
                    None,
                    bad,
                    {name: _first_labels(p, num) for name, p in poisons.items()},
                    seed,
                )


def _first_labels(rows: Any, num: int) -> Any:
    """So many of the labelled rows, and all test rows."""
    kept = torch.cat([torch.arange(num), torch.arange(max(NUM_LABELS), len(rows))])
    return rows[kept]


def _own(learner: Learner, inputs: Tensor, targets: Tensor, seed: int) -> Predictive:
    return cross_fitted(learner, inputs, targets, rng=generator(seed, "own", len(targets)))


def _fitted(
    learner: Any, rows: Sequence[Rows], inputs: Tensor, seed: int, num_classes: int = 10
) -> tuple[Contribution, ...]:
    """Every site's predictions on the reference rows."""
    found = []
    for number, (x, y) in enumerate(rows):
        predictive = learner.fit((x, y), rng=generator(seed, "site", number)).predict(inputs)
        class_rows = None if y.is_floating_point() else torch.bincount(y, minlength=num_classes)
        found.append(Contribution(f"site {number}", predictive, len(y), class_rows))
    return tuple(found)


def _class_poisons(
    learner: Any,
    rows: Rows,
    inputs: Tensor,
    sites: Sequence[Contribution],
    bad: int,
    seed: int,
) -> dict[str, Predictive]:
    rng = generator(seed, "poison")
    num, (x, y) = len(inputs), rows
    shift = int(torch.randint(1, 10, (), generator=rng))
    permuted = learner.fit((x, (y + shift) % 10), rng=generator(seed, "permuted")).predict(inputs)
    drawn = y[torch.randperm(len(y), generator=rng)]
    honest, other = sites[bad].predictive, sites[(bad + 1) % len(sites)].predictive
    assert isinstance(honest, Categorical)
    assert isinstance(other, Categorical)
    wrong = (honest.log_probs.argmax(1) + torch.randint(1, 10, (num,), generator=rng)) % 10
    noise = 0.1 * torch.randn(other.log_probs.shape, generator=rng)
    return {
        "permuted": permuted,
        "shuffled": learner.fit((x, drawn), rng=generator(seed, "shuffled")).predict(inputs),
        "wrong and sure": _certain(wrong),
        "permuted, sure": Categorical.from_natural(10 * permuted.log_probs),
        "uniform": Categorical.from_natural(torch.zeros(num, 10)),
        "one class": _certain(torch.full((num,), seed % 10)),
        "copy": other,
        "copy with noise": Categorical.from_natural(other.log_probs + noise),
    }


def _certain(classes: Tensor) -> Categorical:
    return Categorical.from_moments(functional.one_hot(classes, 10) + 1e-6)


def regression_studies() -> Iterator[Study]:
    """Wine, sites sorted by a feature; the labels are the reference rows."""
    linear = require("sklearn.linear_model", "experiments")
    learner = SklearnRegressor(linear.BayesianRidge())
    settings = Settings.decode({"data": {"name": "wine"}, "partition": {"kind": "sorted"}})
    for seed in SEEDS:
        world = make_world(settings, seed)
        bad, rows = seed % NUM_SITES, list(world.sites.values())
        sites = _fitted(learner, rows, world.reference.inputs, seed)
        poisons = _number_poisons(learner, rows[bad], world, sites, bad, seed)
        yield _of_world("wine", learner, world, sites, seed, bad, poisons)


def _number_poisons(
    learner: Any,
    rows: Rows,
    world: World,
    sites: Sequence[Contribution],
    bad: int,
    seed: int,
) -> dict[str, Predictive]:
    rng = generator(seed, "poison")
    inputs, (x, y) = world.reference.inputs, rows
    flipped = learner.fit((x, -y), rng=generator(seed, "permuted")).predict(inputs)
    drawn = y[torch.randperm(len(y), generator=rng)]
    other = sites[(bad + 1) % len(sites)].predictive
    assert isinstance(other, Gaussian)
    noise = 0.02 * torch.randn(len(other), generator=rng)
    return {
        "permuted": flipped,
        "shuffled": learner.fit((x, drawn), rng=generator(seed, "shuffled")).predict(inputs),
        "permuted, sure": Gaussian(flipped.mean, flipped.var / 100),
        "constant": Gaussian(torch.zeros(len(inputs)), torch.ones(len(inputs))),
        "copy": other,
        "copy with noise": replace(other, mean=other.mean + noise),
    }


def hospital_studies() -> Iterator[Study]:
    """The four hospitals, all honest."""
    learner = hospitals.logistic_regressions()
    for seed in range(hospitals.NUM_SPLITS):
        world = make_world(hospitals.SETTINGS, seed)
        rows = list(world.sites.values())
        sites = _fitted(learner, rows, world.reference.inputs, seed, num_classes=2)
        yield _of_world("hospitals", learner, world, sites, seed)


def _of_world(
    name: str,
    learner: Any,
    world: World,
    sites: tuple[Contribution, ...],
    seed: int,
    bad: int = 0,
    poisons: Mapping[str, Predictive] | None = None,
) -> Study:
    """A study on a world's labelled and test rows."""
    reference = world.reference
    assert len(reference.inputs) == len(reference.targets) + len(world.targets)
    return Study(
        name,
        sites,
        torch.cat([reference.targets, world.targets]),
        len(reference.targets),
        _own(learner, reference.inputs, reference.targets, seed),
        prior_predictive("default", reference),
        bad,
        poisons or {},
        seed,
    )
