"""Small uploads: bytes of an upload against NLL and ECE of the pool.

Twenty sites of Fashion-MNIST, 500 rows each, fit a linear model; labels are dealt at random (h = 0)
or nine in ten by class (h = .9). They predict 2,000 reference rows. The pool is chosen on 300 of
them, and scored on the other 1,700, for each form in which predictions travel:

    float32, float16, uint8   as a plan's `upload.precision`
    four bits                 log p in 16 steps that grow with its distance from zero; not offered

`cost` is the NLL over that of float32, less one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from predbayes.data.partition import label_skew
from predbayes.data.registry import load
from predbayes.exchange.upload import Upload
from predbayes.methods.pooled import contribution
from predbayes.pools.pool import Contribution
from predbayes.predictive.families import Categorical
from predbayes.predictive.metrics import ece
from predbayes.seeding import generator
from predbayes.study.result.influence import PoolLosses

SITES, ROWS, REFERENCE, LABELS, CLASSES = 20, 500, 2000, 300, 10
FLOOR = -12.0  # as in a plan
TARGET = 0.005  # of the NLL

Form = Callable[[Categorical], tuple[Categorical, int]]


def run(seeds: int = 3) -> dict[str, Any]:
    """Score the pool for each form of the uploads."""
    torch.set_num_threads(1)
    cells = [cell for h in (0.0, 0.9) for cell in _cells(h, seeds)]
    good = {name for name in FORMS if all(_cheap(c) for c in cells if c["form"] == name)}
    offered = [name for name in ("uint8", "float16", "float32") if name in good]
    return {"target": TARGET, "smallest": offered[0], "cells": cells}


def _cheap(cell: dict[str, Any]) -> bool:
    return bool(cell["cost"] < TARGET)


def _cells(heterogeneity: float, seeds: int) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in FORMS}
    for seed in range(seeds):
        predicted, rows, targets = _federation(heterogeneity, seed)
        for name, form in FORMS.items():
            found[name].append(_scored(form, predicted, rows, targets))
    whole = _mean([nll for nll, _, _ in found["float32"]])
    cells = []
    for name, ones in found.items():
        nll = _mean([one[0] for one in ones])
        cell = {
            "h": heterogeneity,
            "form": name,
            "bytes": ones[0][2],
            "nll": nll,
            "ece": _mean([one[1] for one in ones]),
            "cost": nll / whole - 1,
        }
        print(cell, flush=True)
        cells.append(cell)
    return cells


def _federation(heterogeneity: float, seed: int) -> tuple[list[Categorical], list[Tensor], Tensor]:
    """What each site predicts on the reference rows, its rows of each class, and the labels."""
    data = load("fashion-mnist", rng=generator(seed, "data"))
    order = torch.randperm(len(data.train_targets), generator=generator(seed, "order"))
    dealt, reference = order[: SITES * ROWS], order[SITES * ROWS :][:REFERENCE]
    inputs, targets = data.train_inputs.flatten(1), data.train_targets
    rng = generator(seed, "deal")
    parts = label_skew(targets[dealt], SITES, heterogeneity, rng=rng)
    predicted, counts = [], []
    for part in parts:
        rows = dealt[part]
        model = _fitted(inputs[rows], targets[rows])
        with torch.no_grad():
            predicted.append(Categorical.from_natural(model(inputs[reference])))
        counts.append(torch.bincount(targets[rows], minlength=CLASSES))
    return predicted, counts, targets[reference]


def _fitted(inputs: Tensor, targets: Tensor) -> nn.Module:
    model = nn.Linear(inputs.shape[1], CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        decay = 0.02 * (model.weight**2).sum()
        value: Tensor = nn.functional.cross_entropy(model(inputs), targets) + decay
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return model


def _scored(
    form: Form, predicted: list[Categorical], counts: list[Tensor], targets: Tensor
) -> tuple[float, float, int]:
    sites, size = [], 0
    for number, (predictive, rows) in enumerate(zip(predicted, counts, strict=True)):
        came, size = form(predictive)
        sites.append(Contribution(f"site {number}", came, int(rows.sum()), rows))
    losses = PoolLosses(targets[:LABELS], seed=0, floor=FLOOR)
    total = losses.tuned(sites).total
    choice = losses.choice(total[:LABELS])
    pooled = total[LABELS:].pool(choice.tuned.weights)
    scored = targets[LABELS:]
    nll = -float(pooled.log_prob(scored).double().mean())
    return nll, ece(pooled, scored, rng=generator(0, "ece"), num_draws=2).value, size


def _sent(dtype: torch.dtype) -> Form:
    def form(predictive: Categorical) -> tuple[Categorical, int]:
        upload = Upload.of_predictions(predictive, num_rows=1, dtype=dtype)
        came = contribution(upload, upload.predictive()).predictive
        assert isinstance(came, Categorical)
        return came, sum(array.nbytes for array in upload.arrays.values())

    return form


def _four_bits(predictive: Categorical) -> tuple[Categorical, int]:
    """Steps of the root of -log p, so that they are finest where p is large."""
    root = (-predictive.log_probs).clamp(0, -FLOOR).sqrt()
    step = (-FLOOR) ** 0.5 / 15
    came = Categorical.from_natural(-(((root / step).round() * step) ** 2))
    return came, predictive.log_probs.numel() // 2


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


FORMS: dict[str, Form] = {
    "float32": _sent(torch.float32),
    "float16": _sent(torch.float16),
    "uint8": _sent(torch.uint8),
    "four bits": _four_bits,
}
