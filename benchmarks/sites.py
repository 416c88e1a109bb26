"""Sealed sums of very many small sites: who stands out by one number, and what noise costs.

Fashion-MNIST, images of 14 x 14, dealt to sites with all classes alike (h = 0) or nearly only
classes of their own (h = 0.9). A site's model is a logistic regression.

    --scores    100 sites, 300 labelled rows; six sites are bad, in one of four ways: trained on
                labels turned round (9 - y) or of other rows, at random, or sure of what is least
                likely. Each is masked, and one number of it is opened with the key holder
                (`predbayes.predictive.agreement`): how many of the six stand out, and how many
                of the others
    --privacy   1,000, 300 and 100 sites of all classes, 58 rows each, 2,000 reference rows, 300 of
                them labelled; each site clips, adds its share of noise and rounds
                (`predbayes.predictive.sitenoise`), at delta 1e-5, with four fifths of the sites
                honest: zero-out with clip 0.5, and replace-one. The pool is the mixture with the
                coordinator's own model, a logistic regression; `nll` is that of the student on
                5,000 test rows, `own` that of the own model alone, `kept` the share of the gain
                over it that is left with noise
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from predbayes.data import partition, registry
from predbayes.exchange.masking import sum_of_masks
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, NetworkPredictor
from predbayes.learning.nets import mlp
from predbayes.methods.distilled import taught_by
from predbayes.optional import require
from predbayes.pools.auto import AutoPool
from predbayes.predictive.agreement import Weighing, standing_out
from predbayes.predictive.families import Categorical, Predictive
from predbayes.predictive.fixed import FixedPoint
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.sitenoise import Adjacency
from predbayes.predictive.words import from_words, to_noisy_words, to_words
from predbayes.seeding import generator
from predbayes.study.plan.schema import Sites

HETEROGENEITY = (0.0, 0.9)
NUM_CLASSES, FLOOR = 10, -12.0
SCORED_SITES, SITE_ROWS, NUM_LABELS, EVERY = 100, 300, 300, 17  # every 17th of 100 sites is bad
NUM_REFERENCE, PRIVATE_LABELS, NUM_TEST = 2000, 300, 5000
PRIVATE_SITES = (1000, 300, 100)
PROMISES: tuple[tuple[Adjacency, float, float], ...] = (
    ("replace-one", 1.0, math.inf),  # no noise to speak of
    *(("zero-out", 0.5, epsilon) for epsilon in (4.0, 8.0, 1.0)),
    *(("replace-one", 1.0, epsilon) for epsilon in (8.0, 4.0)),
)
_STEPS = 100

Rows = tuple[Tensor, Tensor]


def run(scores: bool = False, privacy: bool = False) -> dict[str, Any]:
    """Run the parts that are asked for; without any, both."""
    torch.set_num_threads(1)
    both, figures = not (scores or privacy), dict[str, Any]()
    if privacy or both:
        cells = list(private())
        figures["privacy"] = {"cells": cells}
        asked = {"sites": 1000, "adjacency": "zero-out", "epsilon": 4.0}
        figures["privacy"]["kept"] = next(
            cell["kept"] for cell in cells if asked.items() <= cell.items()
        )
    if scores or both:
        cells = list(scored())
        figures["scores"] = {
            "found": min(cell["found"] for cell in cells),
            "false_alarms": max(cell["false_alarms"] for cell in cells),
            "cells": cells,
        }
    return figures


def scored() -> Iterator[dict[str, Any]]:
    """Sites of each kind, and who of them stands out."""
    inputs, targets = _images()
    order = torch.randperm(len(inputs), generator=generator(0, "order"))
    labelled, dealt = order[:NUM_LABELS], order[NUM_REFERENCE:]
    form = FixedPoint(NUM_LABELS, NUM_CLASSES, FLOOR, SITE_ROWS, SCORED_SITES, NUM_LABELS)
    weighing = Weighing.of(torch.arange(NUM_LABELS), targets[labelled], NUM_CLASSES)
    for h in HETEROGENEITY:
        rows = _dealt(targets, dealt, SCORED_SITES, h)[:, :SITE_ROWS]
        x, y, at = inputs[rows], targets[rows], inputs[labelled]
        honest, bad = fitted(x, y, at), torch.arange(0, SCORED_SITES, EVERY)
        for kind, said in _bad(x[bad], y[bad], at, honest[bad]).items():
            sites = honest.clone()
            sites[bad] = said
            found = standing_out(
                {f"{k}": _agreement(form, weighing, one, k) for k, one in enumerate(sites)}
            )
            named = {int(site) for site in found}
            cell = {
                "h": h,
                "kind": kind,
                "bad": len(bad),
                "found": len(named & set(bad.tolist())),
                "false_alarms": len(named - set(bad.tolist())),
            }
            print(cell, flush=True)
            yield cell


def _agreement(form: FixedPoint, weighing: Weighing, log_probs: Tensor, number: int) -> float:
    """Found as in a study: of the masked words, less the same of the mask."""
    counts = torch.full((NUM_CLASSES,), SITE_ROWS / NUM_CLASSES)
    words = to_words(form, Categorical(log_probs), SITE_ROWS, counts)
    mask = sum_of_masks([number.to_bytes(32, "big")], form.size)
    hidden = weighing.total(form, words + mask) - weighing.total(form, mask)
    return weighing.agreement(form, hidden)


def _bad(x: Tensor, y: Tensor, at: Tensor, honest: Tensor) -> dict[str, Tensor]:
    rng = generator(0, "bad")
    other = torch.stack([one[torch.randperm(len(one), generator=rng)] for one in y])
    least = functional.one_hot(honest.argmin(-1), NUM_CLASSES)
    noise = torch.randn(honest.shape, generator=rng)
    return {
        "labels turned round": fitted(x, NUM_CLASSES - 1 - y, at),
        "labels of other rows": fitted(x, other, at),
        "at random": (2 * noise).log_softmax(-1),
        "sure and wrong": (12.0 * least).log_softmax(-1),
    }


def private() -> Iterator[dict[str, Any]]:
    """What noise for the privacy of sites costs, by number of sites and epsilon."""
    inputs, targets = _images()
    order = torch.randperm(len(inputs), generator=generator(0, "order"))
    rows, dealt, test = order[:NUM_REFERENCE], order[NUM_REFERENCE:-NUM_TEST], order[-NUM_TEST:]
    reference = ReferenceRows(inputs[rows], targets[rows][:PRIVATE_LABELS], 0)
    linear = require("sklearn.linear_model", "experiments")
    learner = SklearnClassifier(linear.LogisticRegression(C=0.1, max_iter=500), NUM_CLASSES, size=1)
    labelled = reference.inputs[:PRIVATE_LABELS], reference.targets
    alone = learner.fit(labelled, rng=generator(0, "own")).predict(inputs[test])
    own = cross_fitted(learner, reference.inputs, reference.targets, rng=generator(0, "own"))
    base = nll(alone, targets[test])
    sites = _dealt(targets, dealt, max(PRIVATE_SITES), 0.0)
    said = torch.cat(
        [fitted(inputs[some], targets[some], inputs[rows]) for some in torch.split(sites, 100)]
    )
    for num in PRIVATE_SITES:
        some, without = [Categorical(one) for one in said[:num]], None
        for adjacency, clip, epsilon in PROMISES:
            total = _noisy(some, adjacency, clip, epsilon)
            student = _student(total, reference, own)
            found = nll(student.predict(inputs[test]), targets[test])
            without = found if without is None else without
            cell = {
                "sites": num,
                "adjacency": adjacency,
                "clip": clip,
                "epsilon": epsilon if epsilon < math.inf else None,
                "nll": found,
                "own": base,
                "kept": (base - found) / (base - without),
            }
            print(cell, flush=True)
            yield cell


def _noisy(
    sites: list[Categorical], adjacency: Adjacency, clip: float, epsilon: float
) -> PredictiveSum[Any]:
    """The sum of all sites as the coordinator opens it; masks cancel, and are left out."""
    num, noise = len(sites), 1e-5
    if epsilon < math.inf:
        stated = Sites(
            epsilon=epsilon,
            delta=1e-5,
            adjacency=adjacency,
            unit="site",
            honest=4 * num // 5,
            clip=clip,
        )
        noise = stated.share(NUM_REFERENCE, NUM_CLASSES, num)
    form = FixedPoint(NUM_REFERENCE, NUM_CLASSES, FLOOR, SITE_ROWS, num, noise=noise, clip=clip)
    total = torch.zeros(form.size, dtype=torch.int64)
    for site in sites:
        total += to_noisy_words(form, site)
    return from_words(form, total, num)


def _student(
    total: PredictiveSum[Any], reference: ReferenceRows, own: Predictive
) -> NetworkPredictor:
    """Pooled with the coordinator's own model, and distilled, as in a study."""
    pool, rng = AutoPool(own, floor=FLOOR, mixture_alone=True), generator(0, "pool")
    state = pool.finish(pool.init(reference), total, reference, rng=rng)
    build = partial(mlp, reference.inputs.shape[1], NUM_CLASSES, (100,))
    return taught_by(state, reference, Network(build, Softmax(NUM_CLASSES)), rng=rng).student


def _images() -> Rows:
    found = registry.load("fashion-mnist", rng=generator(0, "images"))
    return functional.avg_pool2d(found.train_inputs, 2).flatten(1), found.train_targets


def _dealt(targets: Tensor, dealt: Tensor, num_sites: int, h: float) -> Tensor:
    """Rows of each site, (K, n), in an order at random."""
    rng = generator(0, "deal")
    parts = partition.label_skew(targets[dealt], num_sites, h, rng=rng)
    least = min(map(len, parts))
    mixed = [part[torch.randperm(len(part), generator=rng)][:least] for part in parts]
    return dealt[torch.stack(mixed)]


def fitted(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """What logistic regressions of sites, fitted at once, predict: log p, (K, R, C).

    Args:
        x: (K, n, D)
        y: (K, n)
        at: (R, D)
    """
    num_sites, num_rows, num_inputs = x.shape
    weights = torch.zeros(num_sites, num_inputs, NUM_CLASSES, requires_grad=True)
    bias = torch.zeros(num_sites, 1, NUM_CLASSES, requires_grad=True)
    optimizer = torch.optim.Adam([weights, bias], lr=0.05)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        log_probs = (x @ weights + bias).log_softmax(-1)
        loss = -log_probs.gather(2, y.unsqueeze(2)).sum() + 0.5 * weights.square().sum()
        (loss / num_rows).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return (at @ weights + bias).log_softmax(-1)
