"""How sure is a model without a label: `predbayes demo --no-labels`, on rows that no one used.

The demonstration hides the digits of its reference rows from the coordinator. They are known, so
they score what came of it: the model as its pool made it, the model at the level that the sites'
echoes gave it, and, as an upper bound, at the temperature that these labels themselves would
choose. The rival needs no label at the coordinator, and no reference row: the sites' logistic
regressions, averaged once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from predbayes.optional import require
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_temperature
from predbayes.seeding import generator
from predbayes_study.demo import digits
from predbayes_study.kit.kit import Kit
from predbayes_study.result.model import CalibratedModel
from predbayes_study.site.rows import SiteRows

_NULLS = 200  # draws of labels by the model itself


def run(draws: int = 10) -> dict[str, float]:
    """Run the demonstration again and again: roles, order and what sites draw differ."""
    lines = []
    for draw in range(draws):
        with tempfile.TemporaryDirectory() as scratch:
            lines.append(_one(Path(scratch) / "demo", draw))
        print(" | ".join(f"{name} {value:.3f}" for name, value in lines[-1].items()), flush=True)
    means = {name: float(np.mean([line[name] for line in lines])) for name in lines[0]}
    within = [line["ece"] <= line["ece_null_95"] for line in lines]
    return {**means, "share_within_null": float(np.mean(within))}


def _one(out: Path, draw: int) -> dict[str, float]:
    folder, _ = digits.run_demo(out, lambda _: None, labels=False)
    kit, model = Kit.load(out / "kit"), CalibratedModel.load(folder / "model")
    assert model.level is not None  # as the plan has no label
    inputs, targets = _scored(kit)
    pool, found = model.before_level(inputs), model.predictive(inputs)
    assert isinstance(pool, Categorical)
    assert isinstance(found, Categorical)
    tuned = tune_temperature(PredictiveSum.of(pool), targets, component="product")
    best = pool.from_natural(tuned.profiles["inverse_temperature"].value * pool.natural())
    rng = generator(draw, "null")
    probs = found.log_probs.double().exp()
    nulls = [_ece(found, torch.multinomial(probs, 1, generator=rng)[:, 0]) for _ in range(_NULLS)]
    rival = _averaged(kit, inputs)
    return {
        "times": model.level.inverse_temperature,
        "pool_nll": metrics.nll(pool, targets),
        "pool_ece": _ece(pool, targets),
        "nll": metrics.nll(found, targets),
        "ece": _ece(found, targets),
        "ece_null_95": float(np.quantile(nulls, 0.95)),
        "best_nll": metrics.nll(best, targets),
        "averaged_nll": metrics.nll(rival, targets),
        "averaged_ece": _ece(rival, targets),
    }


def _ece(predictive: Categorical, targets: torch.Tensor) -> float:
    return metrics.ece(predictive, targets, rng=generator(0, "ece")).value


def _scored(kit: Kit) -> tuple[torch.Tensor, torch.Tensor]:
    """The demonstration's reference rows, and their digits, which it hides."""
    reference, _ = digits.deal_with_labels()
    inputs, targets = digits.rows_of(kit.plan, reference)
    return inputs, targets


def _averaged(kit: Kit, inputs: torch.Tensor) -> Categorical:
    """One round of FedAvg from logistic regressions, of the rows that sites train on."""
    build = require("sklearn.linear_model", "core[sklearn]").LogisticRegression
    _, sites = digits.deal_with_labels()
    total, num_rows = np.zeros((10, inputs.shape[1] + 1)), 0
    for site, frame in sites.items():
        rows = SiteRows(*digits.rows_of(kit.plan, frame))
        own, targets = rows[rows.split_for(kit, site)[0]]
        fitted = build(C=10, max_iter=2000).fit(own.numpy(), targets.numpy())
        weights = np.full((10, own.shape[1] + 1), np.nan)
        weights[fitted.classes_] = np.c_[fitted.coef_, fitted.intercept_]
        weights[np.isnan(weights)] = 0.0  # of a digit that the site has never seen
        total += len(targets) * weights
        num_rows += len(targets)
    mean = torch.from_numpy(total / num_rows)
    logits = inputs.double() @ mean[:, :-1].T + mean[:, -1]
    return Categorical(logits.log_softmax(1))
