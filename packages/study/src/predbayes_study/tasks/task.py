"""What a study asks of its task: one file for each, and no branch on a task anywhere else."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from predbayes.exchange.strict import Strict
from predbayes.learning.likelihood import Likelihood
from predbayes.learning.local import Learner
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.measures import (
    MEASURES,
    STANDARD,
    Measure,
    TargetUnit,
    row_values,
)
from predbayes.predictive.risk import Risks
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import AtSites, ClassRisk
from predbayes_study.rules import Finding
from predbayes_study.tables.problem import Kind
from predbayes_study.tasks.blocks import Alike
from predbayes_study.tasks.echo import Heard, ModelLevel

P = TypeVar("P", bound=Predictive)
Array = np.ndarray[Any, Any]

Faults = Mapping[str, dict[Kind, Array]]
"""By column, which rows have a fault of each kind."""


class Adjustment(Strict, ABC):
    """What a site that adopts a model changes of it."""

    @abstractmethod
    def fits(self, plan: Plan) -> bool:
        """Return whether a plan's predictions can be adjusted by it."""

    @abstractmethod
    def apply(self, predictive: Any) -> Any:
        """Return a predictive after the adjustment."""


class Task(ABC, Generic[P]):
    """All that a study does differently for classes, numbers and times to an event."""

    family: ClassVar[type[Any]]
    dtype: ClassVar[torch.dtype] = torch.float32
    """Of the targets as learners take them."""

    predicts: ClassVar[str]
    """What is predicted, in a sentence."""

    gives: ClassVar[str]
    """What a prediction is, as a sentence."""

    by_class: ClassVar[bool] = False
    """Whether rows are counted, and held out, by class."""

    is_scaled: ClassVar[bool] = False
    """Whether targets have a centre and a scale, and are in their units."""

    has_trend: ClassVar[bool] = True
    """Whether targets may rise and fall with a column, as seen by a correlation."""

    is_bounded: ClassVar[bool] = False
    """Whether no prediction that can be read can overflow a pool."""

    outputs: ClassVar[tuple[str, ...]]
    """Names of what `describe` returns in an exported model."""

    has_intervals: ClassVar[bool] = False
    """Whether predictions have intervals that should hold a share of targets."""

    shown_as: ClassVar[str]
    """Where a result has what `calibration` finds."""

    of_groups: ClassVar[tuple[str, ...]] = ("nll", "brier", "rmse", "mae", "auroc")
    """Measures of a group without one event. Shares are left out, because they count few misses."""

    compares_sums: ClassVar[bool] = True
    """Whether sums that sites send of groups tell a model's faults."""

    grid: ClassVar[tuple[float, ...]] = ()
    """Ends of bins of `strangeness`; none where no coverage is promised."""

    num_noise: ClassVar[int] = 0
    """Parameters that a site's network has for the noise of its target."""

    # Targets

    @abstractmethod
    def in_words(self, plan: Plan) -> str:
        """Return what is predicted, in a few words."""

    @abstractmethod
    def encode(self, plan: Plan, columns: Mapping[str, Array]) -> tuple[Array, Faults]:
        """Return targets (N,) in float64 from the codes of the plan's outcomes; NaN is missing."""

    def to_labels(self, plan: Plan, targets: Sequence[float]) -> list[Any]:
        """Return labels as a file keeps them, of targets by a plan without units."""
        del plan
        return list(targets)

    @abstractmethod
    def from_labels(self, plan: Plan, labels: Sequence[Any]) -> Tensor:
        """Return targets as learners take them; refuse labels that are not the plan's."""

    @abstractmethod
    def doubts(self, plan: Plan, targets: Tensor, least: int) -> Iterator[Finding]:
        """Yield what is odd about the targets of a site; no count below `least` may be told."""

    @abstractmethod
    def label_doubts(self, plan: Plan, targets: Tensor) -> Iterator[Finding]:
        """Yield what is wrong or odd about the labels of reference rows."""

    def by_chance(self, num_scored: int) -> str:
        """Return what a perfect model would show with so few labels, to end a sentence."""
        del num_scored
        return ""

    # Learners

    @abstractmethod
    def likelihood(self, plan: Plan, *, per_input: bool = False) -> Likelihood:
        """Return how outputs of a network are read; with a variance for each input, or one."""

    @abstractmethod
    def learner(self, plan: Plan, name: str, estimator: Any) -> Learner:
        """Return the learner of an estimator in the manner of scikit-learn."""

    @abstractmethod
    def simple(self, plan: Plan, name: str, estimator: Callable[[], Any]) -> Learner:
        """Return a small learner of an estimator, as anybody at a site would try first."""

    @abstractmethod
    def base_rate(self, plan: Plan, targets: Tensor) -> P:
        """Return the prediction for any row by these targets alone, for one row."""

    def prior(self) -> P | None:
        """Return what a product of predictions divides out; None for nothing."""
        return None

    # Uploads and predictions

    @abstractmethod
    def shapes(self, plan: Plan) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the arrays that a site sends, by name."""

    def numbers_per_row(self, plan: Plan) -> int:
        """Return how many numbers a site sends for a reference row."""
        return sum(math.prod(shape[1:]) for shape in self.shapes(plan).values())

    def require_plausible(self, arrays: Mapping[str, Tensor]) -> None:
        """Refuse predictions that no honest site can have made."""
        del arrays

    @abstractmethod
    def describe(self, plan: Plan, predictive: P, level: float) -> dict[str, Tensor]:
        """Return what a user is told, in float64, with intervals of a level from 0 to 1."""

    @abstractmethod
    def columns(self, plan: Plan, described: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the columns of a table of predictions from what `describe` says."""

    @abstractmethod
    def adjust(self, predictive: P, targets: Tensor) -> Adjustment:
        """Return the adjustment of a site with these targets."""

    @abstractmethod
    def errors(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """Return the loss by row that a site understands, of measures by row; None: not known."""

    def unsaid(self, names: Collection[str]) -> str:
        """Return what these measures leave open, in a sentence."""
        del names
        return ""

    # Scores

    def unit(self, plan: Plan) -> TargetUnit:
        """Return the unit in which predictions are scored."""
        return replace(STANDARD, ends=plan.target.times)

    def measure(self, name: str) -> Measure:
        """Return a measure of the task by its name."""
        return MEASURES[name].of(classes=self.by_class)

    @abstractmethod
    def worst(self, predictive: P) -> Tensor:
        """Return targets (N,) that score worse than any."""

    @abstractmethod
    def alike(self, predictive: P, targets: Tensor, least: int, apart: Tensor) -> Alike[P]:
        """Return predictions of blocks of rows, by what is said of them and never by outcomes.

        Args:
            predictive: What is said of each row.
            targets: Of the rows; only their centre and spread are used.
            least: Rows of a block.
            apart: Rows that may be in one block have the same number, (N,).
        """

    def values(self, plan: Plan, said: Alike[P], targets: Tensor) -> dict[str, Tensor]:
        """Return the values by row, (N,), of each measure, as an evaluation sums them up."""
        return row_values(said.predictive, targets, self.unit(plan))

    @abstractmethod
    def calibration(
        self, plan: Plan, predictive: P, targets: Tensor, *, rng: torch.Generator
    ) -> Any:
        """Return how stated and observed frequencies agree, as results keep it under `shown_as`.

        None where rows are too few to tell by; there is at least one.
        """

    @abstractmethod
    def verdict(
        self,
        plan: Plan,
        shown: Any,
        num_rows: int,
        nothing: str,
        risks: Sequence[ClassRisk] = (),
    ) -> tuple[bool, str]:
        """Return whether calibration can be judged, and what may be said about it.

        Args:
            plan: The study's plan.
            shown: What `calibration` found.
            num_rows: Rows that were scored.
            nothing: The begin of a sentence that says that nothing was found.
            risks: What was found of the risks of classes, which it must not contradict.
        """

    def risks(
        self, plan: Plan, predictive: P, targets: Tensor, *, rng: torch.Generator
    ) -> tuple[ClassRisk, ...]:
        """Return how well the risks of classes are stated."""
        del plan, predictive, targets, rng
        return ()

    def class_shares(self, plan: Plan, targets: Tensor) -> tuple[float, ...]:
        """Return the share of rows of each class."""
        del plan, targets
        return ()

    # Words

    @abstractmethod
    def at_sites(self, found: AtSites, fewest: int) -> str:
        """Return how good and how calibrated sites found the model, in a sentence.

        Args:
            found: What they sent, together.
            fewest: Rows below which a site counts nothing in bins.
        """

    @abstractmethod
    def nll_note(self, plan: Plan) -> str:
        """Return what an NLL can be compared with, in a sentence."""

    # Groups of rows

    def events(self, plan: Plan, targets: Tensor) -> Tensor | None:
        """Return whether the event came, as 0 and 1, (N,); None where the plan has no event."""
        del plan, targets
        return None

    def event_risks(self, plan: Plan, predictive: P, targets: Tensor) -> Risks | None:
        """Return the stated risks of the one event; None where risks are not of one class."""
        del plan, predictive, targets
        return None

    def expected_events(self, predictive: P, targets: Tensor) -> float | None:
        """Return how many events predictions expect in the time that rows were seen."""
        del predictive, targets
        return None

    # Promised coverage

    def strangeness(self, predictive: P, targets: Tensor) -> Tensor:
        """Return how strange each target is to the predictions, (N,), where `grid` has edges."""
        raise NotImplementedError

    def promised(self, plan: Plan, predictive: P, bound: float) -> dict[str, list[str] | Tensor]:
        """Return columns with what is no stranger than a bound."""
        raise NotImplementedError

    def promised_size(self, plan: Plan, predictive: P, bound: float) -> Tensor:
        """Return how much is no stranger than a bound, (N,)."""
        raise NotImplementedError

    def own_bound(self, level: float) -> float:
        """Return how strange the ends of the model's own interval are, where it has intervals."""
        raise NotImplementedError

    # How sure a model should be that was pooled without a label (`tasks.echo`)

    def num_echo(self, plan: Plan) -> int:
        """Return how many numbers an echo has."""
        del plan
        return 0

    def echo(self, plan: Plan, said: Alike[P], predictive: P, targets: Tensor) -> tuple[float, ...]:
        """Return what a site says of the level beside the rest of its evaluation.

        Args:
            plan: The study's plan.
            said: Of blocks of rows.
            predictive: Of each row.
            targets: Of the rows.
        """
        del plan, said, predictive, targets
        return ()

    def level(self, plan: Plan, heard: Sequence[Heard]) -> ModelLevel | None:
        """Return the level that evaluations ask for; None where they cannot say.

        Args:
            plan: The study's plan.
            heard: What each site said.
        """
        del plan, heard
        return None

    # What screening compares

    @abstractmethod
    def hellinger(self, one: P, other: P) -> Tensor:
        """Return the squared Hellinger distance per row, from 0 to 1."""

    @abstractmethod
    def distances(self, predictives: Sequence[P]) -> Tensor:
        """Return the mean squared Hellinger distances between predictives, (K, K)."""

    @abstractmethod
    def point(self, some: Sequence[P]) -> Callable[[P], Tensor]:
        """Return what makes vectors whose squared distances are about Hellinger's.

        Args:
            some: Predictives that tell what is usual.
        """

    @abstractmethod
    def is_same(self, one: P, other: P, nearly: float) -> bool:
        """Return whether predictions were copied without change, or after rounding."""

    def of_moments(self, moments: Tensor) -> P:
        """Return the predictive of a mean of moments."""
        found: P = self.family.from_moments(moments)
        return found

    @abstractmethod
    def mean(self, predictive: P) -> P:
        """Return the mean of the predictions of all rows, as one row."""

    @abstractmethod
    def movement(self, predictive: P) -> str:
        """Return by how much predictions differ from row to row, in words."""

    @abstractmethod
    def agreement(self, predictive: P, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return scores of predictions against labels by row, their variances and their freedom."""

    @abstractmethod
    def without_level(self, predictive: P) -> Tensor:
        """Return what is said at each row, but for base rates, (N, C) or (N, 1)."""

    @abstractmethod
    def expected(self, moments: Tensor) -> Tensor:
        """Return probabilities, or bounded means, from moments."""

    @abstractmethod
    def assurance(self, predictive: P) -> Tensor:
        """Return how much is claimed to be known at each row, (N,)."""


LEAST_LOG_PROB = math.log(0.01)
"""One overconfident row must not own a variance or a correlation."""

MOST_MEAN = 3.0
"""In standard deviations of the target: the same for one far prediction."""


TAILS = (0.025, 0.975)
"""Of an interval of 95%."""

MIN_OF_CLASS = 10
"""Rows of a class, or with the event, below which a site's model hardly learns it."""

NUM_MEMBERS = 3
"""Of a small bag."""

PRIOR_STD = 1.5
"""Of a shift of a class's or a hazard's log odds, in nats."""


def percent(share: float) -> str:
    """Return a share in words."""
    return f"{100 * share:.1f} %"


class SharesTask(Task[P]):
    """A task whose predictions are probabilities: of classes, or of intervals."""

    @abstractmethod
    def log_shares(self, predictive: P) -> Tensor:
        """Return the logarithms of the probabilities in float64, (N, C)."""

    def hellinger(self, one: P, other: P) -> Tensor:
        """Return half the squared distance of the square roots of the probabilities."""
        # Numerics: 1 - sum_c sqrt(p_c q_c) would be rounding where both are certain.
        roots = (0.5 * self.log_shares(one)).exp(), (0.5 * self.log_shares(other)).exp()
        return 0.5 * (roots[0] - roots[1]).square().sum(-1)

    def distances(self, predictives: Sequence[P]) -> Tensor:
        """Return the distances of all pairs at once."""
        roots = torch.stack([self.log_shares(p).mul(0.5).exp().flatten() for p in predictives])
        # Numerics: differences, not products of which equal ones would leave their rounding.
        apart = torch.cdist(roots, roots, compute_mode="donot_use_mm_for_euclid_dist")
        return apart.square() / (2 * len(predictives[0]))

    def point(self, some: Sequence[P]) -> Callable[[P], Tensor]:
        """Return the square roots of the probabilities, scaled."""
        del some

        def roots(predictive: P) -> Tensor:
            found = (0.5 * self.log_shares(predictive).float()).exp()
            return found.flatten() / math.sqrt(2 * len(found))

        return roots

    def is_same(self, one: P, other: P, nearly: float) -> bool:
        """Compare log-probabilities, of which half precision rounds large ones by more."""
        logs = [self.log_shares(p).clamp_min(LOG_PROB_FLOOR) for p in (one, other)]
        return bool(((logs[0] - logs[1]).abs() < nearly * (1 - logs[0])).all())

    def of_moments(self, moments: Tensor) -> P:
        """Return the predictive of a mean of probabilities."""
        # Numerics: rounding must not make a probability negative.
        return super().of_moments(moments.clamp_min(0))

    def mean(self, predictive: P) -> P:
        """Return the mean of the probabilities."""
        return self.of_moments(predictive.moments().double().mean(0)[None])

    def movement(self, predictive: P) -> str:
        """Return the widest range of a probability."""
        probs = predictive.moments()
        most = 100 * float((probs.amax(0) - probs.amin(0)).max())
        return f"{most:.2g} percentage points"

    def expected(self, moments: Tensor) -> Tensor:
        """Return the probabilities themselves."""
        return moments

    def assurance(self, predictive: P) -> Tensor:
        """Return the negative entropy."""
        entropy: Tensor = cast("Any", predictive).entropy()
        return -entropy.double()
