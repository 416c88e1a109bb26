"""Predicted survival curves beside observed ones, on the scored rows.

Rows are dealt into thirds by the risk that was stated for them. The mean of a third's predicted
curves should be what Kaplan and Meier find in it, at the end of every interval; at the horizon this
is calibration in groups of risk. A look at three groups finds something by chance alone more often
than one: a group *fits* unless its stated risk is outside an interval of 1 - 0.05 / 3.

Observed figures end where too few rows were seen. Nothing is concluded if that is before the
horizon, or if events are few, those that came and those that were stated.

The Brier score over time is told beside that of the curve of all rows together, which knows no
column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Survival
from predbayes.predictive.survival import (
    FEWEST_EVENTS,
    brier_by_time,
    kaplan_meier,
    num_supported,
    risk_gap_rows,
    risk_groups,
)
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import Curves, RiskGroup
from predbayes_study.result.scoring import mean_estimate

_THIRDS = ("lowest third", "middle third", "highest third")
_LEVEL = 0.95


def survival_curves(plan: Plan, predictive: Survival, targets: Tensor) -> Curves | None:
    """Compare predicted with observed curves; None where rows are too few for thirds."""
    if len(targets) < len(_THIRDS):
        return None
    num = predictive.log_odds.shape[1]
    seen = num_supported(targets, num)
    ends = torch.arange(1, num + 1, dtype=torch.float64)
    everybody = kaplan_meier(targets).at(ends)
    # As hazards, so that it is scored as any prediction is.
    shares = torch.cat([torch.ones(1), everybody]).double()
    marginal = Survival.from_moments(torch.cat([-shares.diff(), shares[-1:]])[None])
    plain = brier_by_time(marginal[torch.zeros(len(targets)).long()], targets).mean(0)
    scores = brier_by_time(predictive, targets)
    return Curves(
        times=plan.target.times,
        gap=mean_estimate(risk_gap_rows(predictive, targets)) if seen == num else None,
        brier=tuple(mean_estimate(scores[:, j]) for j in range(seen)),
        brier_of_all=tuple(plain[:seen].tolist()),
        groups=tuple(
            _group(name, predictive[rows], targets[rows], ends)
            for name, rows in zip(_THIRDS, risk_groups(predictive, len(_THIRDS)), strict=True)
        ),
        unsure=_unsure(predictive, targets) if seen == num else _not_seen(plan),
    )


def _not_seen(plan: Plan) -> str:
    horizon = f"{plan.target.times[-1]:g} {plan.target.unit}".strip()
    return f"hardly a scored row was seen to the horizon of {horizon}"


def _unsure(predictive: Survival, targets: Tensor) -> str:
    stated = float((1 - predictive.curve()[:, -1].double()).sum())
    num_events = int((targets > 0).sum())
    if max(num_events, stated) >= FEWEST_EVENTS:
        return ""
    return (
        f"{num_events} scored rows have the event, and about {stated:.0f} should by the risks; "
        f"fewer than {FEWEST_EVENTS} say little"
    )


def _group(name: str, predictive: Survival, targets: Tensor, ends: Tensor) -> RiskGroup:
    observed = kaplan_meier(targets)
    (low, high), stated = observed.interval(ends, _LEVEL), predictive.curve().double().mean(0)
    seen = num_supported(targets, len(ends))
    last = max(seen - 1, 0)
    wide = observed.interval(ends[last : last + 1], 1 - (1 - _LEVEL) / len(_THIRDS))
    return RiskGroup(
        name=name,
        num_rows=len(targets),
        stated=tuple(stated.tolist()),
        observed=tuple(
            Estimate(value, least, most)
            for value, least, most in zip(
                *(figures[:seen].tolist() for figures in (observed.at(ends), low, high)),
                strict=True,
            )
        ),
        fits=not seen or bool(wide[0] <= stated[last] <= wide[1]),
    )
