"""The figures of a record: every measure of the family on the evaluation rows."""

from __future__ import annotations

import torch
from torch import Tensor

from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical, Predictive
from predbayes.predictive.measures import MEASURES, row_values, whole_values
from predbayes_lab.released import released_nll


def score(
    predictive: Predictive, targets: Tensor, *, released: bool, rng: torch.Generator
) -> dict[str, float]:
    """Return all figures that the family has.

    Args:
        predictive: On the evaluation rows.
        targets: Their targets.
        released: Whether to add the figures that the authors' code would print.
        rng: For the calibration error's null value.
    """
    rows = row_values(predictive, targets)
    scores = {name: MEASURES[name].value(values) for name, values in rows.items()}
    scores |= {name: one.value for name, one in whole_values(predictive, targets).items()}
    if isinstance(predictive, Categorical):
        calibration = metrics.ece(predictive, targets, rng=rng, num_draws=50)
        scores |= {"ece": calibration.value, "ece_null": calibration.null}
    if released:
        scores["released_nll"] = released_nll(predictive, targets, slipped=False)
        scores["released_nll_slipped"] = released_nll(predictive, targets, slipped=True)
    return scores


def reliability_bins(predictive: Predictive, targets: Tensor) -> dict[str, list[float]] | None:
    """Return confidence and accuracy, bin by bin, for a classification."""
    if not isinstance(predictive, Categorical):
        return None
    bins = metrics.reliability(predictive, targets)
    return {"count": [*bins.count], "confidence": bins.confidence, "accuracy": bins.accuracy}


def losses(predictive: Predictive, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of each evaluation row, for paired comparisons."""
    return -predictive.log_prob(targets).float()
