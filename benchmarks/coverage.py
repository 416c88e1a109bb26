"""Promised coverage from counts that sites send: does it hold, and how large are the sets?

Three public tables: four hospitals (heart disease, two classes), red wines and bike rentals
(numbers; dealt to four sites at random). In each of 50 splits a part of every site's rows trains
one head from moments of all sites, a part is held out for the counts, and the rest is new. Sites
count as `predbayes site evaluate` does; bounds come from the sum of what they send.

    min_cell 1   coverage and size of sets or intervals from counts of any size
    min_cell 5   from counts that are none of them below 5, which is what plans say by default
    rows         by the same rule from the scores themselves, which nobody may see
    credible     of sets or intervals that have this probability by the model itself

Sizes are classes, or widths in standard deviations of the target. All are means over splits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from predbayes.exchange.header import UploadInfo
from predbayes.learning.moments import Moments, RandomFeatures
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.seeding import generator
from predbayes.summand import fold
from predbayes_lab.data import registry
from predbayes_study.payloads.details import evaluation_of
from predbayes_study.plan.schema import Plan
from predbayes_study.result.evaluation import check_evaluation, evaluation_upload
from predbayes_study.result.statistics.coverage import LEVELS, ScoreBins, add_counts
from predbayes_study.tasks import task_for
from predbayes_study.tasks.classes import promised_sets

NUM_SPLITS = 50
NUM_SITES = 4
TOLERANCE = 0.02
MIN_CELLS = (1, 5)
WORLDS = {"heart": 20, "wine": 50, "bike": 50}  # random features of each scale
TRAINED, COUNTED = 0.15, 0.7  # of each site's rows; the smallest hospital needs so many to send
PLAN = """
format = 1
name = "coverage"
target = {{ name = "outcome", {target} }}
reference = {{}}
rules = {{ min_cell = {min_cell} }}
[columns]
x = {{ type = "number" }}
"""
CLASSES, NUMBER = 'task = "classification", classes = ["no", "yes"]', 'task = "regression"'

Figures = dict[str, float]
Part = tuple[Tensor, Tensor, Tensor]  # rows that train, are counted and are new


def run(splits: int = NUM_SPLITS) -> dict[str, Any]:
    """Every table and level; whether coverage by counts of any size is within two points."""
    torch.set_num_threads(1)
    found = {name: means([one_split(name, seed) for seed in range(splits)]) for name in WORLDS}
    for name, figures in found.items():
        for line, value in figures.items():
            print(f"{name:<6} {line:<28} {value:.3f}", flush=True)
    gaps = {
        f"{name} {level:g}": found[name][f"{level:g} min_cell 1 coverage"] - level
        for name in WORLDS
        for level in LEVELS
    }
    reached = all(abs(gap) <= TOLERANCE for gap in gaps.values())
    return {"reached": reached, "target": TOLERANCE, "gaps": gaps, "lines": found}


def one_split(name: str, seed: int) -> Figures:
    """Coverage and size of every line, by level, on the new rows of one split."""
    inputs, targets, sites = rows_of(name, seed)
    parts = list(dealt(sites, seed))
    predictive = fitted(inputs, targets, parts, WORLDS[name], seed)
    counted = torch.cat([rows for _, rows, _ in parts])
    scores = task_for(predictive).strangeness(predictive[counted], targets[counted])
    bins = {f"min_cell {m}": told(predictive, targets, parts, m) for m in MIN_CELLS}
    bins["rows"] = ScoreBins.count(scores, sorted(set(scores.tolist())))
    new = torch.cat([rows for _, _, rows in parts])
    predictive, targets, sites = predictive[new], targets[new], sites[new]
    figures: Figures = {}
    for level in LEVELS:
        for line, of in bins.items():
            inside, sizes = promised(predictive, targets, of.bound(level))
            figures |= _told(f"{level:g} {line}", inside, sizes)
            if line == "min_cell 1":
                for site in range(NUM_SITES):
                    here = inside[sites == site].double().mean()
                    figures[f"{level:g} {line} site {site}"] = float(here)
        figures |= _told(f"{level:g} credible", *credible(predictive, targets, level))
    return figures


def rows_of(name: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and the site of each row."""
    data = registry.load(name, rng=generator(0, "rows"))
    inputs = torch.cat([data.train_inputs, data.test_inputs])
    targets = torch.cat([data.train_targets, data.test_targets])
    if data.train_groups is not None and data.test_groups is not None:
        return inputs, targets, torch.cat([data.train_groups, data.test_groups])
    rng = generator(seed, "sites")
    return inputs, targets, torch.randint(NUM_SITES, (len(targets),), generator=rng)


def dealt(sites: Tensor, seed: int) -> Iterator[Part]:
    """Deal the rows of each site."""
    for site in range(NUM_SITES):
        own = (sites == site).nonzero()[:, 0]
        own = own[torch.randperm(len(own), generator=generator(seed, "deal", site))]
        first, second = int(TRAINED * len(own)), int((TRAINED + COUNTED) * len(own))
        yield own[:first], own[first:second], own[second:]


def fitted(
    inputs: Tensor, targets: Tensor, parts: list[Part], num_features: int, seed: int
) -> Categorical | Gaussian:
    """A head from the sum of the sites' moments; what it says of all rows."""
    num_classes = None if targets.is_floating_point() else 2
    features = RandomFeatures(inputs.shape[1], num_features, (1.0, 2.0, 4.0), seed)
    moments = [Moments.of(features, inputs[r], targets[r], num_classes) for r, _, _ in parts]
    predictive = fold(moments).head().predict(inputs)
    assert isinstance(predictive, Categorical | Gaussian)
    return predictive


def told(predictive: Predictive, targets: Tensor, parts: list[Part], min_cell: int) -> ScoreBins:
    """What sites' evaluations add up to."""
    target = CLASSES if isinstance(predictive, Categorical) else NUMBER
    plan = Plan.loads(PLAN.format(target=target, min_cell=min_cell))
    infos: list[UploadInfo] = []
    for number, (_, rows, _) in enumerate(parts):
        of = predictive[rows], targets[rows], "0" * 64
        infos.append(evaluation_upload(plan, f"site {number}", *of).info)
        check_evaluation(plan, infos[-1])
    sums = add_counts(evaluation_of(info).scores for info in infos)
    assert sums is not None
    return ScoreBins(sums.edges, sums.counts)


def promised(
    predictive: Categorical | Gaussian, targets: Tensor, bound: float
) -> tuple[Tensor, Tensor]:
    """Whether each row is covered, and the size of its set or interval."""
    if isinstance(predictive, Categorical):
        sets = promised_sets(predictive, bound)
        return sets.gather(1, targets[:, None])[:, 0], sets.sum(1)
    covered = task_for(predictive).strangeness(predictive, targets) <= bound
    return covered, 2 * bound * predictive.var.sqrt()


def credible(
    predictive: Categorical | Gaussian, targets: Tensor, level: float
) -> tuple[Tensor, Tensor]:
    """The same by the model itself."""
    if isinstance(predictive, Categorical):
        ordered, places = predictive.moments().double().sort(dim=1, descending=True, stable=True)
        inside = ordered.cumsum(1) - ordered < level  # the fewest classes that have it
        sets = torch.zeros_like(inside).scatter(1, places, inside)
        return sets.gather(1, targets[:, None])[:, 0], sets.sum(1)
    return promised(predictive, targets, statistics.NormalDist().inv_cdf((1 + level) / 2))


def _told(line: str, inside: Tensor, sizes: Tensor) -> Figures:
    means = {"coverage": inside.double().mean(), "size": sizes.double().mean()}
    return {f"{line} {name}": float(mean) for name, mean in means.items()}


def means(splits: list[Figures]) -> Figures:
    """Means over splits; sets of a coverage that nobody can promise are infinite."""
    return {line: math.fsum(one[line] for one in splits) / len(splits) for line in splits[0]}
