"""The figures of a record: proper scores and calibration on the evaluation rows."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor

from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.predictive.released import released_nll


def score(
    predictive: Predictive, targets: Tensor, *, released: bool, rng: torch.Generator
) -> dict[str, float]:
    """Compute all figures that the family has.

    Args:
        predictive: On the evaluation rows.
        targets: Their targets.
        released: Whether to add the figures that the authors' code would print.
        rng: For the calibration error's null value.
    """
    scores = {"nll": metrics.nll(predictive, targets)}
    match predictive:
        case Categorical():
            calibration = metrics.ece(predictive, targets, rng=rng, num_draws=50)
            scores |= {
                "accuracy": metrics.accuracy(predictive, targets),
                "brier": metrics.brier(predictive, targets),
                "ece": calibration.value,
                "ece_null": calibration.null,
            }
        case Gaussian():
            scores |= {
                "rmse": metrics.rmse(predictive, targets),
                "crps": metrics.crps(predictive, targets),
                "coverage_95": metrics.interval_coverage(predictive, targets),
                "width_95": metrics.interval_width(predictive),
            }
    if released:
        scores["released_nll"] = released_nll(predictive, targets, slipped=False)
        scores["released_nll_slipped"] = released_nll(predictive, targets, slipped=True)
    return scores


def reliability(predictive: Predictive, targets: Tensor) -> dict[str, list[float]] | None:
    """Compare confidence and accuracy, bin by bin, for a classification."""
    if not isinstance(predictive, Categorical):
        return None
    return {
        name: list(values)
        for name, values in asdict(metrics.reliability(predictive, targets)).items()
    }


def losses(predictive: Predictive, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of each evaluation row, for paired comparisons."""
    return -predictive.log_prob(targets).float()
