r"""What the model looks at: how far its predictions move if a column's values are dealt out anew.

With q_i what the model predicts for reference row i, and q_i^c the same with the values of column c
taken from another row, drawn at random, the importance of a column is

    mean_i KL(q_i || q_i^c)          in nats per row

over at most `MOST_ROWS` reference rows and `NUM_DEALS` deals. It needs no label. It is about the
model and not about causes, nor about what would be lost without the column: columns that say the
same share their importance, and dealing one of them makes rows that do not exist.

For an event and a number, the mean risk if all rows had the column's lower, and its upper quartile,
tells the direction. Intervals of 95 % are Student's over rows, for other rows of the same kind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from predbayes.learning.local import Predictor
from predbayes.predictive.measures import mean_estimate
from predbayes_study.plan.schema import Number, Plan
from predbayes_study.result.schema import Importance

MOST_ROWS = 1000
NUM_DEALS = 3
_FEWEST_ROWS = 10


@torch.inference_mode()
def importances(
    plan: Plan, predictor: Predictor, inputs: Tensor, *, rng: torch.Generator
) -> tuple[Importance, ...]:
    """Return the importance of each column on reference rows, the greatest first."""
    if len(inputs) < _FEWEST_ROWS:
        return ()
    rows = inputs[torch.randperm(len(inputs), generator=rng)[:MOST_ROWS]]
    said = predictor.predict(rows)
    found = []
    for name, block in plan.blocks.items():
        change = torch.zeros(len(rows), dtype=torch.float64)
        for _ in range(NUM_DEALS):
            dealt = rows.clone()
            dealt[:, block] = rows[torch.randperm(len(rows), generator=rng)][:, block]
            change += said.kl(predictor.predict(dealt)).double().clamp_min(0) / NUM_DEALS
        ends = _risk_at_quartiles(plan, predictor, rows, name, block)
        found.append(Importance(column=name, change=mean_estimate(change), quartile_risks=ends))
    return tuple(sorted(found, key=lambda one: -one.change.value))


def _risk_at_quartiles(
    plan: Plan, predictor: Predictor, rows: Tensor, name: str, block: slice
) -> tuple[float, float] | None:
    """The mean risk of the event with a number at its lower and upper quartile."""
    if not isinstance(plan.columns[name], Number) or len(plan.event_indices) != 1:
        return None
    values = rows[:, block.start]
    risks = []
    for quantile in (0.25, 0.75):
        moved = rows.clone()
        moved[:, block] = 0
        moved[:, block.start] = values.quantile(quantile)
        said = predictor.predict(moved)
        risks.append(float(said.moments()[:, plan.event_indices[0]].double().mean()))
    return risks[0], risks[1]
