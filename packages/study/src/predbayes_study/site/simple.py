r"""The simple models that anybody at a site would try first, as rivals of the study's model.

    base-rate                    how common each class is, mean and variance of the numbers, or the
                                 hazards of a life table
    logistic-, linear-regression   one plain fit
    gradient-boosting            a small bag of trees, for up to ten classes

They are fitted to the rows that the site trained on, and tried on those held out. The best one is
that of the least cross-validated NLL on the former. A model is *beaten* by one of them if its
NLL on the held-out rows is higher by more than two standard errors of the paired difference.
Nothing of it leaves the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.learning.local import Learner, kept_together
from predbayes.learning.named import BY_TASK
from predbayes.learning.training import Rows, gather
from predbayes.predictive.families import Predictive
from predbayes.seeding import generator, split
from predbayes.threads import threads
from predbayes_study.plan.schema import Plan
from predbayes_study.site.rows import SiteRows
from predbayes_study.tasks import task_of
from predbayes_study.tasks.choice import choose, is_worse, row_losses

BASE_RATE = "base-rate"
NUM_ERRORS = 2.0
"""Standard errors beyond which one model beats another."""

_MOST_ROWS = 1000  # that cross-validation looks at


@dataclass(frozen=True, slots=True)
class BaseRate(Learner):
    """A learner that looks at no column, only at how targets are distributed."""

    plan: Plan

    def fit(self, rows: Rows, *, rng: torch.Generator) -> BaseRate.Fitted:
        """Look at the targets."""
        _, targets = gather(rows, rng=rng)
        return BaseRate.Fitted(task_of(self.plan).base_rate(self.plan, targets))

    @dataclass(frozen=True, slots=True)
    class Fitted:
        """The same predictive for every row."""

        predictive: Predictive

        def predict(self, inputs: Tensor) -> Any:
            """Return it as often as there are rows."""
            return self.predictive[torch.zeros(len(inputs), dtype=torch.long)]


@dataclass(frozen=True, slots=True)
class SimpleModels:
    """What the simple models of a site say of its held-out rows."""

    predictives: Mapping[str, Predictive]
    cross_validated: Mapping[str, float]  # mean NLL on the rows that they were fitted to

    @classmethod
    def fit(cls, plan: Plan, site: str, rows: SiteRows, held_out: Tensor) -> SimpleModels:
        """Fit each of them to the rows that are not held out."""
        seen = torch.ones(len(rows.targets), dtype=torch.bool)
        seen[held_out] = False
        trained = rows.inputs[seen], rows.targets[seen]
        rng = generator(plan.seed, "simple", site)
        learners = simple_learners(plan)
        with threads(plan.learner.threads):
            groups = rows.patients_of(seen)
            tried = choose(learners, trained, most_rows=_MOST_ROWS, groups=groups, rng=rng).losses
            predictives = {}
            for (name, learner), own in zip(
                learners.items(), split(rng, len(learners)), strict=True
            ):
                try:
                    told = kept_together(learner, rows.patients, seen)
                    fitted = learner.fit(trained, rng=own, **told)
                except TrainingError:
                    continue  # the rows are too few for it, for instance
                predictives[name] = fitted.predict(rows.inputs[held_out])
        return cls(predictives, tried)

    @property
    def best(self) -> str:
        """The name of the best one by cross-validation; the linear one if rows are too few."""
        known = {n: loss for n, loss in self.cross_validated.items() if n in self.predictives}
        linear = [name for name in self.predictives if name != BASE_RATE]
        return min(known, key=known.__getitem__) if known else (*linear, BASE_RATE)[0]

    def beating(self, predictive: Predictive, targets: Tensor) -> str:
        """Return the best of those that beat a predictive on the held-out rows; empty if none."""
        losses = {name: row_losses(said, targets) for name, said in self.predictives.items()}
        mine = row_losses(predictive, targets)
        better = {name: float(rows.mean()) for name, rows in losses.items() if beats(rows, mine)}
        return min(better, key=better.__getitem__) if better else ""


def simple_learners(plan: Plan) -> dict[str, Any]:
    """Return the learners by name, simplest first."""
    task, known = task_of(plan), BY_TASK[plan.target.task]
    learners: dict[str, Any] = {BASE_RATE: BaseRate(plan)}
    # A network is not simple.
    return learners | {n: task.simple(plan, n, known[n]) for n in plan.tried if n in known}


def beats(rows: Tensor, others: Tensor) -> bool:
    """Whether losses are below others by more than two standard errors of the difference."""
    return is_worse(others, rows, NUM_ERRORS)
