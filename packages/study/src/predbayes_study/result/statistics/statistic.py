"""One part of an evaluation: a statistic of held-out rows that adds up over sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from predbayes.arrays import once_per_row
from predbayes.predictive.families import Predictive
from predbayes.predictive.risk import Risks
from predbayes_study.payloads.details import Evaluation
from predbayes_study.plan.schema import Plan
from predbayes_study.result.groups import Counted, counted_groups
from predbayes_study.result.statistics.disclosure import (
    FEWEST_COUNTED,
    Cells,
    fewest_rows,
    num_alike,
)
from predbayes_study.tasks import task_of
from predbayes_study.tasks.blocks import Alike

S = TypeVar("S")


@dataclass(frozen=True)  # without slots, where what is made once is kept
class HeldOutRows:
    """Rows of a site that its model was not trained on, and what the common model says of them."""

    plan: Plan
    unclipped: Predictive
    targets: Tensor
    inputs: Tensor | None = None  # to the network; without them there are no groups

    @cached_property
    def groups(self) -> Counted:
        """The groups of the plan that rows are counted in, and which rows no group may part."""
        inputs = self.inputs if len(self.targets) >= FEWEST_COUNTED else None
        return counted_groups(self.plan, inputs, len(self.targets), fewest_rows(self.plan))

    @cached_property
    def said(self) -> Alike[Any]:
        """What is said of each row's block: all that may be told of predictions."""
        task, least = task_of(self.plan), num_alike(self.plan)
        found: Alike[Any] = task.alike(self.unclipped, self.targets, least, self.groups.apart)
        return found

    @cached_property
    def values(self) -> Mapping[str, Tensor]:
        """The values by row, (N,), of each measure of the plan's task."""
        return task_of(self.plan).values(self.plan, self.said, self.targets)

    @cached_property
    def echo(self) -> tuple[float, ...]:
        """How sure the model should be, as far as these rows can say."""
        return task_of(self.plan).echo(self.plan, self.said, self.unclipped, self.targets)

    def risks(self, index: int) -> Risks:
        """The risks of one class, against all others."""
        log_probs = self.said.predictive.log_probs[:, index].double()
        log_odds = once_per_row(lambda said: said - torch.log1p(-said.exp()), log_probs)
        return Risks(log_odds, self.targets == index)


class Statistic(Protocol[S]):
    """How a statistic is made, checked and pooled; `S` is its part of an `Evaluation`."""

    name: str
    """Its field in `Evaluation`, and in `Evaluated` for one site and for all together."""

    by_site: bool
    """Whether results show it for each site, too."""

    def make(self, rows: HeldOutRows, beside: Evaluation, told: Sequence[Cells]) -> S | None:
        """Make what a site may send; None where its rows are too few.

        Args:
            rows: The site's rows.
            beside: The statistics that come before this one.
            told: The tables of rows that these tell.
        """

    def cells(self, rows: HeldOutRows, sent: S) -> list[Cells]:
        """Return the tables of rows that it tells, for `disclosure.Edges`."""

    def check(self, plan: Plan, sent: S, beside: Evaluation, num_rows: int) -> None:
        """Refuse with an `UploadError` what no honest site can have found, or may have sent."""

    def pool(self, plan: Plan, several: Sequence[S], num_rows: int) -> Any:
        """Return what several sites say together, as a result keeps it.

        Args:
            plan: The study's plan.
            several: What the sites sent that have this statistic.
            num_rows: Rows of all sites.
        """
