"""The sums that a site sends: moments of agreed features, over the rows trained on.

A sum tells of a person if few rows are in it. Two things are refused before anything is fitted:

    rows per feature    fewer than the plan's `moments.rows_per_feature`: by their leverage it could
                        be told who is in the sum (`predbayes.learning.leverage`)
    small groups        an input, class or target that is the same in all rows but a few, fewer than
                        `min_cell`: from the sums of its products those of the few follow, and of
                        one row they are that row
    few kinds of rows   columns of so few values that all kinds of rows can be listed: sums of W
                        features are W (W + 1) / 2 equations for how many rows there are of each
                        kind, and what their targets are. Then no kind may have 1 to `min_cell` - 1

Groups and kinds are looked for among numbers as they are summed: what lies far out is the same
there. Where it is known whose each row is, people are counted and not rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.learning.moments import MOST_TARGET, Moments, inputs_on_grid, targets_on_grid
from predbayes_study.plan.models import summed_classes, summed_features
from predbayes_study.plan.schema import Plan
from predbayes_study.tasks import task_of

MOST_LISTED = 10**6
"""Kinds of rows up to which somebody could list them all, and solve for how many rows each has."""


def require_many(
    plan: Plan, inputs: Tensor, targets: Tensor, least: int, people: Tensor | None = None
) -> None:
    """Refuse rows whose sums would tell of single rows, or cannot be made.

    Args:
        plan: One that asks for sums.
        inputs: That are trained on.
        targets: Theirs.
        least: Rows, or people, that a group has at least.
        people: Numbers of whose each row is, where that is known, (N,).
    """
    assert plan.moments is not None
    asked, width = plan.moments.rows_per_feature, plan.num_summed
    whose = torch.arange(len(inputs)) if people is None else people
    counted = "rows" if people is None else "people"
    if _num(whose) < asked * width:
        raise DataError(
            f"{counted} to train on are fewer than {asked * width:,}, which are "
            f"moments.rows_per_feature = {asked} for each of {width:,} features: their sums could "
            "tell who is in them. Ask the coordinator for fewer features"
        )
    if task_of(plan).is_scaled and not bool(targets.abs().max() <= MOST_TARGET):
        raise DataError(
            f"{plan.target.name} has values beyond {MOST_TARGET:g} scales of the plan, which "
            "cannot be summed. Ask the coordinator for another scale, or leave the rows out"
        )
    if small := list(_small_groups(plan, inputs, targets, least, whose)):
        more = f" and {len(small) - 3} more" if len(small) > 3 else ""
        raise DataError(
            f"a group of fewer than {least} {counted} is told apart by "
            f"{', '.join(small[:3])}{more}: its sums would be of these rows alone. Join "
            "categories, or leave the rows out"
        )
    if _are_listed(plan, inputs, least, whose):
        raise DataError(
            f"its columns have so few values that all kinds of rows can be listed, and some are "
            f"of fewer than {least} {counted}: of each kind the sums would tell how many there are "
            "and their targets. Ask the coordinator for fewer features, or for predictions"
        )


def _small_groups(
    plan: Plan, inputs: Tensor, targets: Tensor, least: int, whose: Tensor
) -> Iterator[str]:
    """Name the columns by which a few rows differ from all others."""
    numbers = inputs_on_grid(inputs)
    for name, block in plan.blocks.items():
        if any(_are_few(values, least, whose) for values in numbers[:, block].T):
            yield name
    if not task_of(plan).by_class:
        if _are_few(targets_on_grid(targets), least, whose):
            yield plan.target.name
        return
    for number, name in enumerate(plan.target.classes or ()):
        if 0 < _num(whose[targets == number]) < least:
            yield f"{plan.target.name} = {name}"


def _are_few(values: Tensor, least: int, whose: Tensor) -> bool:
    """Whether all rows but those of a few have one value."""
    found, counts = torch.unique(values, return_counts=True)
    return 0 < _num(whose[values != found[counts.argmax()]]) < least


def _num(whose: Tensor) -> int:
    return len(torch.unique(whose))


def _are_listed(plan: Plan, inputs: Tensor, least: int, whose: Tensor) -> bool:
    """Whether kinds of rows can be listed, sums are enough to tell of each, and one has few."""
    if plan.vectors:
        return False  # nobody can list all vectors
    numbers, kinds = inputs_on_grid(inputs), 1
    for block in plan.blocks.values():
        kinds *= len(torch.unique(numbers[:, block], dim=0))
        if kinds > MOST_LISTED:
            return False
    _, kind = torch.unique(numbers, dim=0, return_inverse=True)
    present = int(kind.max()) + 1
    if present > plan.num_summed * (plan.num_summed + 1) // 2:
        return False
    of_people = torch.unique(torch.stack([kind, whose]), dim=1)[0]
    return int(torch.bincount(of_people).min()) < least


def upload_of_sums(plan: Plan, inputs: Tensor, targets: Tensor) -> Upload:
    """Return the sums over rows as an upload."""
    moments = Moments.of(summed_features(plan), inputs, targets, summed_classes(plan))
    counts = moments.class_rows
    told = None if counts is None else tuple(map(float, counts))
    info = UploadInfo(kind="moments", num_rows=len(inputs), class_rows=told)
    return Upload(info, moments.arrays())
