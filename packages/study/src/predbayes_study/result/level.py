"""The level that sites' evaluations give a model which was pooled without a label.

Each site counts for its held-out rows, and for no more than the plan lets a site count
(`predbayes_study.plan.weight`). Nobody can check what a site says of rows that only it has, so the
result also names the site without which the level would change most, and what it would be then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from predbayes_study.payloads.details import Evaluation
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.weight import RowCaps
from predbayes_study.result.schema import FoundLevel
from predbayes_study.tasks import task_of
from predbayes_study.tasks.echo import Heard, ModelLevel, asks_for_echo

Sent = Mapping[str, tuple[int, Evaluation]]
"""By site, the rows of its evaluation, and what it says."""


def level_of(plan: Plan, sent: Sent) -> FoundLevel | None:
    """Return how sure a model should be; None where labels say it, or sites cannot."""
    sent = {site: one for site, one in sent.items() if one[1].echo or one[1].scores}
    found = _fitted(plan, sent)
    if found is None:
        return None
    changed = {
        out: other
        for out in sent
        if (other := _fitted(plan, {site: one for site, one in sent.items() if site != out}))
    }
    by = max(sorted(changed), key=lambda site: _distance(found, changed[site]), default="")
    return FoundLevel(
        inverse_temperature=found.inverse_temperature,
        shifts=found.shifts,
        num_rows=sum(rows for rows, _ in sent.values()),
        num_sites=len(sent),
        decided_by=by,
        without=changed[by].inverse_temperature if by else None,
        shift_without=_shift(changed[by]) if by else 0.0,
    )


def _distance(one: ModelLevel, other: ModelLevel) -> float:
    times = math.log(one.inverse_temperature / other.inverse_temperature)
    return abs(times) + abs(_shift(one) - _shift(other))


def _shift(level: ModelLevel) -> float:
    return level.shifts[1] - level.shifts[0] if level.shifts else 0.0


def _fitted(plan: Plan, sent: Sent) -> ModelLevel | None:
    if not sent or not asks_for_echo(plan):
        return None
    most = RowCaps.of(plan, [rows for rows, _ in sent.values()]).most
    heard = [Heard(min(1.0, most / rows), said) for rows, said in sent.values()]
    return task_of(plan).level(plan, heard)
