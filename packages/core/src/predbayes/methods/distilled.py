"""Any method whose result is a predictive on the reference rows, distilled into one network.

The last step of Algorithm 1 (Paper: alg:dBpredbayes, step 6). A wrapper, so that every ensemble
method gets its student in the same way. What the student loses on the way is measured, and what
one temperature can win back is won back on the labelled rows.

Deviation: the paper's student has no temperature: ``recalibrate=False``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.exchange.federation import with_learner
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.distill import DISTILLATION, distill, recalibrated
from predbayes.learning.local import Learner, Network, NetworkPredictor, OptimizerSettings
from predbayes.learning.training import Rows
from predbayes.methods.description import describe_pool
from predbayes.methods.method import Method, require_method, sends_state
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Predictive
from predbayes.predictive.metrics import nll
from predbayes.progress import STUDENT, Event, at, tell
from predbayes.summand import Summand

_log = logging.getLogger(__name__)
_WIDE_GAP = 0.1


class Teacher(Protocol):
    """A state that holds predictives on all reference rows."""

    @property
    def predictive(self) -> Predictive:
        """Row by row, as in the reference inputs."""


T = TypeVar("T", bound=Teacher)
Total = TypeVar("Total", bound=Summand)


@dataclass(frozen=True, slots=True)
class DistilledState(Generic[T]):
    """The wrapped method's state, and the student."""

    teacher: T
    distilled: NetworkPredictor | None = None
    gap: float = math.nan  # mean KL(teacher || student) in nats on the rows distilled on
    nll_gap: float = math.nan  # student's NLL minus teacher's on the labelled rows, where any are

    @property
    def student(self) -> NetworkPredictor:
        """The network that everybody gets back."""
        if self.distilled is None:
            raise PoolError("no round has been run yet, so there is no student")
        return self.distilled

    @property
    def temperature(self) -> float:
        """The student's own T, 1 where it was not recalibrated."""
        return 1 / self.student.inverse_temperature


@dataclass(frozen=True, slots=True)
class Distilled(Generic[T, Total]):
    """A method, then a student of its result.

    Args:
        method: The method to wrap.
        student: The network to distil into; for regression one with a variance head.
        settings: Optimiser and epochs.
        device: Where to train the student.
        recalibrate: Whether to tune one temperature of the student on the labelled rows, if any.
        start: The student's initial weights, such as those of a site or of an earlier student;
            random if None.
    """

    method: Method[T, Total]
    student: Network
    settings: OptimizerSettings = DISTILLATION
    device: str = "cpu"
    recalibrate: bool = True
    start: WeightSamples | None = None

    def __post_init__(self) -> None:
        require_method(self.method)

    @property
    def families(self) -> frozenset[type[Predictive]]:
        """Those of the wrapped method."""
        return self.method.families

    @property
    def streams(self) -> bool:
        """As the wrapped method does."""
        return self.method.streams

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> DistilledState[T]:
        """The wrapped method's first state; a student that cannot fit the targets is refused."""
        self.student.likelihood.check(reference.targets)
        if self.start is not None:
            self.start.require_of(self.student.create(torch.Generator()))
        return DistilledState(self.method.init(reference, rng=rng))

    def learn(
        self, state: DistilledState[T], rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """As the wrapped method."""
        return self.method.learn(state.teacher, rows, inputs, rng=rng)

    def with_learner(self, learner: Learner) -> Distilled[T, Total]:
        """Return the same for a site with a learner of its own, where the wrapped method can."""
        return replace(self, method=with_learner(self.method, learner))

    def state_arrays(self, state: DistilledState[T]) -> Mapping[str, Tensor]:
        """As the wrapped method; the student stays."""
        return sends_state(self.method).state_arrays(state.teacher)

    def state_from(self, arrays: Mapping[str, Tensor]) -> DistilledState[T]:
        """As the wrapped method."""
        return DistilledState(sends_state(self.method).state_from(arrays))

    def lift(self, state: DistilledState[T], upload: Upload, inputs: Tensor) -> Total:
        """As the wrapped method."""
        return self.method.lift(state.teacher, upload, inputs)

    def finish(
        self,
        state: DistilledState[T],
        total: Total,
        reference: ReferenceRows,
        *,
        rng: torch.Generator,
    ) -> DistilledState[T]:
        """Finish the wrapped method, then distil it on all but the evaluation rows."""
        return taught_by(
            self.method.finish(state.teacher, total, reference, rng=rng),
            reference,
            self.student,
            settings=self.settings,
            device=self.device,
            recalibrate=self.recalibrate,
            start=self.start,
            rng=rng,
        )

    def model(self, state: DistilledState[T]) -> NetworkPredictor:
        """The student."""
        return state.student


def taught_by(
    teacher: T,
    reference: ReferenceRows,
    network: Network,
    *,
    settings: OptimizerSettings = DISTILLATION,
    device: str = "cpu",
    recalibrate: bool = True,
    start: WeightSamples | None = None,
    rng: torch.Generator,
) -> DistilledState[T]:
    """Distil what a state predicts into one network, on all but the evaluation rows."""
    rows, labelled = reference.distillation, reference.labelled
    inputs, taught = reference.inputs[rows], teacher.predictive[rows]
    tell(Event("pool", detail=describe_pool(teacher)))
    with at(STUDENT):
        student = distill(
            network, taught, inputs, settings=settings, start=start, device=device, rng=rng
        )
    # Before it is recalibrated: that may well lead away from a teacher who is not calibrated.
    gap = float(taught.kl(student.predict(inputs)).mean())
    if gap > _WIDE_GAP:
        _log.warning("the student is %.2f nats from its teacher; distil for more steps", gap)
    if recalibrate:
        student = recalibrated(student, reference.inputs[labelled], reference.targets)
    predicted = student.predict(inputs)
    gap, nll_gap = float(taught.kl(predicted).mean()), math.nan
    tell(Event("student", who=STUDENT, gap=gap))
    if len(reference.targets):
        theirs, own = (nll(p[labelled], reference.targets) for p in (taught, predicted))
        nll_gap = own - theirs
    return DistilledState(teacher, student, gap, nll_gap)
