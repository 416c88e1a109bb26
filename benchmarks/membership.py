"""What an upload tells about who was trained on, with and without the gate's column.

An attacker knows a patient's row, has it among the reference rows, and has shadow sites of the same
population that were trained with and without the patient (LiRA; Carlini et al., 2022). What a site
says at that row is a number: the log odds of the patient's class, or the gate. Its likelihood ratio
under the two kinds of shadow sites is the attack's score; those of several numbers add. AUC .5 is
guessing.

Each shadow site has half of 240 patients of the four hospitals. What is sent is attacked as it is,
and after what a site can do to it: rounding, and bounds. A temperature is no defence: whoever knows
it divides by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predbayes.experiments.config import Settings
from predbayes.experiments.world import make_world
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.gate import GateBounds, log_density_ratio
from predbayes.learning.local import teller_of
from predbayes.learning.named import CLASSIFIERS
from predbayes.seeding import generator

NUM_PATIENTS = 240
Array = np.ndarray[Any, np.dtype[np.float64]]

DEFENCES: dict[str, Callable[[Array], Array]] = {
    "as it is": lambda values: values,
    "rounded to 0.1": lambda values: np.round(values, 1),
    "rounded to 0.5": lambda values: np.round(2 * values) / 2,
    "within 2": lambda values: np.clip(values, -2, 2),
    "within 2, rounded to 0.5": lambda values: np.round(2 * np.clip(values, -2, 2)) / 2,
}


def run(shadows: int = 32, forest: bool = False) -> dict[str, Any]:
    """Attack ``shadows`` uploads of a logistic regression, or of a forest; return AUCs."""
    learner = "random-forest" if forest else "logistic-regression"
    settings = Settings.decode({"data": {"name": "heart"}, "partition": {"kind": "groups"}})
    world = make_world(settings, 0)
    inputs = torch.cat([rows[0] for rows in world.sites.values()])
    targets = torch.cat([rows[1] for rows in world.sites.values()])
    chosen = torch.randperm(len(inputs), generator=generator(0, "patients"))[:NUM_PATIENTS]
    patients = (inputs[chosen], targets[chosen])
    members, log_odds, gates = _shadows(shadows, learner, patients, world.reference.inputs)
    figures: dict[str, Any] = {"shadows": shadows, "learner": learner, "auc": {}}
    for name, defence in DEFENCES.items():
        said, gated = (_scores(defence(values), members) for values in (log_odds, gates))
        found = {
            "predictions": _auc(said, members),
            "gate": _auc(gated, members),
            "both": _auc(said + gated, members),
        }
        figures["auc"][name] = found
        print(f"{name:26}", *(f"{what} {auc:.3f}" for what, auc in found.items()))
    return figures


def _shadows(
    num: int, name: str, patients: tuple[Tensor, Tensor], reference: Tensor
) -> tuple[np.ndarray[Any, Any], Array, Array]:
    """Who was trained on, and what each site says at every patient's row, (sites, patients)."""
    inputs, targets = patients
    learner = SklearnClassifier(CLASSIFIERS[name](), 2)
    asked = torch.cat([inputs, reference])  # each patient is a reference row, and a contrast row
    members = np.zeros((num, NUM_PATIENTS), dtype=bool)
    log_odds, gates = np.empty((2, num, NUM_PATIENTS))
    for index in range(num):
        rng = generator(index, "shadow")
        own = torch.randperm(NUM_PATIENTS, generator=rng)[: NUM_PATIENTS // 2]
        members[index, own.numpy()] = True
        said = learner.fit((inputs[own], targets[own]), rng=rng).predict(inputs).log_probs
        of_class = said.gather(1, targets.unsqueeze(1)).squeeze(1)
        of_other = said.gather(1, 1 - targets.unsqueeze(1)).squeeze(1)
        log_odds[index] = (of_class - of_other).double().numpy()
        gate = log_density_ratio(
            teller_of(learner), (inputs[own], targets[own]), asked, bounds=GateBounds(), rng=rng
        )
        gates[index] = gate[:NUM_PATIENTS].numpy()
    return members, log_odds, gates


def _scores(values: Array, members: np.ndarray[Any, Any]) -> Array:
    """The log likelihood ratio of "trained on" at each site, by the other sites."""
    scores = np.empty_like(values)
    for site in range(len(values)):
        others = np.arange(len(values)) != site
        inside = np.where(members[others], values[others], np.nan)
        outside = np.where(members[others], np.nan, values[others])
        spread = np.sqrt((np.nanvar(inside, 0) + np.nanvar(outside, 0)) / 2) + 1e-3
        far_in, far_out = (
            ((values[site] - np.nanmean(side, 0)) / spread) ** 2 for side in (inside, outside)
        )
        scores[site] = (far_out - far_in) / 2
    return scores


def _auc(scores: Array, members: np.ndarray[Any, Any]) -> float:
    """The chance that a member scores higher than a patient who is none; ties count half."""
    inside, outside = scores[members], np.sort(scores[~members])
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    return float(below.mean() / (2 * len(outside)))
