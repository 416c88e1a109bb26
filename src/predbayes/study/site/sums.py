"""The sums that a site sends: moments of agreed features, over the rows trained on.

A sum tells of a person if few rows are in it. Two things are refused before anything is fitted:

    rows per feature    fewer than the plan's `moments.rows_per_feature`: by their leverage it could
                        be told who is in the sum (`predbayes.learning.leverage`)
    small groups        an input, class or target that is the same in all rows but a few, fewer than
                        `min_cell`: from the sums of its products those of the few follow, and of
                        one row they are that row

Groups are looked for among numbers as they are summed: what lies far out is the same there.

Where sums come beside predictions they are not refused but withheld, and the site takes part with
predictions alone; likewise where the site's policy forbids them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.learning.moments import Moments, inputs_on_grid, targets_on_grid
from predbayes.study.plan.models import summed_classes, summed_features
from predbayes.study.plan.schema import Plan
from predbayes.study.site.policy import SitePolicy


def require_many(plan: Plan, inputs: Tensor, targets: Tensor, least: int) -> None:
    """Refuse rows whose sums would tell of single rows.

    Args:
        plan: One that asks for sums.
        inputs: That are trained on.
        targets: Theirs.
        least: Rows that a group has at least.
    """
    assert plan.moments is not None
    asked, width = plan.moments.rows_per_feature, plan.num_summed
    if len(inputs) < asked * width:
        raise DataError(
            f"rows to train on are fewer than {asked * width:,}, which are "
            f"moments.rows_per_feature = {asked} for each of {width:,} features: their sums could "
            "tell who is in them. Ask the coordinator for fewer features"
        )
    if small := list(_small_groups(plan, inputs, targets, least)):
        more = f" and {len(small) - 3} more" if len(small) > 3 else ""
        raise DataError(
            f"a group of fewer than {least} rows is told apart by {', '.join(small[:3])}{more}: "
            "its sums would be of these rows alone. Join categories, or leave the rows out"
        )


def _small_groups(plan: Plan, inputs: Tensor, targets: Tensor, least: int) -> Iterator[str]:
    """Name the columns by which a few rows differ from all others."""
    numbers = inputs_on_grid(inputs)
    for name, block in plan.blocks.items():
        if any(_are_few(values, least) for values in numbers[:, block].T):
            yield name
    if not plan.classification and _are_few(targets_on_grid(targets), least):
        yield plan.target.name
    counts = torch.bincount(targets, minlength=plan.num_outputs) if plan.classification else ()
    for name, count in zip(plan.target.classes or (), counts, strict=False):
        if 0 < int(count) < least:
            yield f"{plan.target.name} = {name}"


def _are_few(values: Tensor, least: int) -> bool:
    """Whether all rows but a few have one value."""
    usual = int(torch.unique(values, return_counts=True)[1].max())
    return 0 < len(values) - usual < least


def withheld(plan: Plan, policy: SitePolicy, inputs: Tensor, targets: Tensor) -> str:
    """Say why sums beside predictions do not leave; nothing if they do, or none are asked for.

    Args:
        plan: The plan.
        policy: The site's.
        inputs: That are trained on.
        targets: Theirs.
    """
    if plan.moments is None or plan.sums_alone:
        return ""
    if found := policy.against_sums(plan):
        return found[0]
    try:
        require_many(plan, inputs, targets, policy.least_cell(plan))
    except DataError as error:
        return str(error)
    return ""


def with_sums(plan: Plan, upload: Upload, inputs: Tensor, targets: Tensor) -> Upload:
    """Return predictions with the sums over the rows that were trained on beside them."""
    return replace(upload, arrays={**upload.arrays, **_moments(plan, inputs, targets).arrays()})


def _moments(plan: Plan, inputs: Tensor, targets: Tensor) -> Moments:
    return Moments.of(summed_features(plan), inputs, targets, summed_classes(plan))


def upload_of_sums(plan: Plan, inputs: Tensor, targets: Tensor) -> Upload:
    """Return the sums over rows as an upload."""
    moments = _moments(plan, inputs, targets)
    counts = moments.class_rows
    told = None if counts is None else tuple(map(float, counts))
    info = UploadInfo(kind="moments", num_rows=len(inputs), class_rows=told)
    return Upload(info, moments.arrays())
