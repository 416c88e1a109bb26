r"""A method, then one more round in which sites say how sure the student should be.

Without labels at the coordinator nothing tells how sure a pool should be. Sites have labels. Each
holds some rows out, and once there is a student it adds up, over these rows and for factors t on a
grid,

    S(t) = sum_i -log p_t(y_i | x_i),      eta_t(x) = t eta_student(x)

in natural coordinates. Such *echoes* add over sites, S is convex in t, and its least value is the
level of the student. A weak prior, log t ~ N(0, 1), keeps few rows from deciding much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # whose parts load when they are used
import torch
from torch import Tensor

from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.federation import with_learner
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload, digest_of
from predbayes.learning.local import Learner, NetworkPredictor
from predbayes.learning.training import Rows, gather
from predbayes.methods.distilled import Distilled, DistilledState
from predbayes.methods.method import sends_state
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Predictive
from predbayes.predictive.metrics import nll_rows
from predbayes.seeding import generator
from predbayes.summand import TensorSum

TIMES = tuple(2.0 ** (step / 4) for step in range(-8, 13))
"""Where S is asked for, from 1/4 to 8."""

_ECHO, _STUDENT, _TIMES = "echo", "student.", "inverse_temperature"
_MOST = 1e15
_FINEST = 801  # points at which the curve between these is looked up


@dataclass(frozen=True, slots=True)
class Asked:
    """The state of a round: that of the method, and in the last one the student to judge."""

    inner: DistilledState[Any] | None
    student: NetworkPredictor | None = None


@dataclass(frozen=True, slots=True)
class Levelled:
    """A distilled method of one round, then an echo of each site's held-out rows.

    Args:
        method: What makes the student.
        holdout: Share of a site's rows that it holds out, and tries the student on.
    """

    method: Distilled[Any, Any]
    holdout: float = 0.2

    def __post_init__(self) -> None:
        if not isinstance(self.method, Distilled):
            raise TrainingError(
                "sites can say how sure a student should be: run pb.Distilled(method, "
                "student=network)"
            )
        if not 0 < self.holdout <= 0.5:
            raise TrainingError(f"holdout must be above 0 and at most 0.5, not {self.holdout}")

    @property
    def families(self) -> frozenset[type[Predictive]]:
        """Those of the wrapped method."""
        return self.method.families

    @property
    def streams(self) -> bool:
        """As the wrapped method does."""
        return self.method.streams

    def with_learner(self, learner: Learner) -> Levelled:
        """Return the same for a site with a learner of its own, where the wrapped method can."""
        return replace(self, method=with_learner(self.method, learner))

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> Asked:
        """The wrapped method's first state."""
        return Asked(self.method.init(reference, rng=rng))

    def learn(self, state: Asked, rows: Rows, inputs: Tensor, *, rng: torch.Generator) -> Upload:
        """Learn from the rows that are not held out; once there is a student, judge it."""
        own, targets = gather(rows, rng=rng)
        out = self._held_out(own, targets)
        if state.student is None:
            assert state.inner is not None
            return self.method.learn(state.inner, (own[~out], targets[~out]), inputs, rng=rng)
        said = state.student.predict(own[out])
        sums = [nll_rows(said.from_natural(t * said.natural()), targets[out]).sum() for t in TIMES]
        info = UploadInfo(kind=_ECHO, num_rows=int(out.sum()))
        return Upload(info, {_ECHO: torch.stack(sums).double()})

    def _held_out(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Which rows are held out, (N,): as it follows from the rows, the same in both rounds."""
        num = int(self.holdout * len(targets))
        if not num:
            raise TrainingError(
                f"{len(targets)} rows are too few to hold {self.holdout:.0%} out; leave "
                'calibrate="sites" out'
            )
        digest = digest_of("rows", {"inputs": inputs, "targets": targets})
        out = torch.zeros(len(targets), dtype=torch.bool)
        out[torch.randperm(len(targets), generator=generator(0, "held out", digest))[:num]] = True
        return out

    def lift(self, state: Asked, upload: Upload, inputs: Tensor) -> Any:
        """An upload of the wrapped method, or an echo, as a summand."""
        if state.student is None:
            assert state.inner is not None
            return self.method.lift(state.inner, upload, inputs)
        echo = upload.arrays.get(_ECHO)
        if upload.info.kind != _ECHO or echo is None or echo.shape != (len(TIMES),):
            raise UploadError(f"site {upload.info.site!r} sent no echo of {len(TIMES)} sums")
        if float(echo.abs().max()) > _MOST:
            raise UploadError(f"the echo of site {upload.info.site!r} is too large to be of rows")
        return TensorSum({_ECHO: echo})

    def finish(
        self, state: Asked, total: Any, reference: ReferenceRows, *, rng: torch.Generator
    ) -> Asked | DistilledState[Any]:
        """Make the student, or set its level: then the state is the wrapped method's."""
        assert state.inner is not None
        if state.student is None:
            inner = self.method.finish(state.inner, total, reference, rng=rng)
            return Asked(inner, inner.student)
        times = level_of(total[_ECHO])
        level = replace(
            state.student, inverse_temperature=times * state.student.inverse_temperature
        )
        return replace(state.inner, distilled=level)

    def model(self, state: DistilledState[Any]) -> NetworkPredictor:
        """The student at its level."""
        return self.method.model(state)

    def state_arrays(self, state: Asked) -> Mapping[str, Tensor]:
        """As the wrapped method; in the last round the student."""
        if state.student is None:
            assert state.inner is not None
            return sends_state(self.method).state_arrays(state.inner)
        arrays = {_STUDENT + n: array for n, array in state.student.samples.arrays().items()}
        times = torch.tensor([state.student.inverse_temperature], dtype=torch.float64)
        return {**arrays, _TIMES: times}

    def state_from(self, arrays: Mapping[str, Tensor]) -> Asked:
        """As the wrapped method; in the last round the student."""
        if _TIMES not in arrays:
            return Asked(sends_state(self.method).state_from(arrays))
        weights = {
            name.removeprefix(_STUDENT): array for name, array in arrays.items() if name != _TIMES
        }
        samples = WeightSamples.from_arrays(weights)
        samples.require_of(self.method.student.create(torch.Generator()))
        return Asked(
            None,
            NetworkPredictor(
                self.method.student, samples, inverse_temperature=float(arrays[_TIMES][0])
            ),
        )


def level_of(echo: Tensor) -> float:
    """Return the factor of least S, by sums over all sites.

    Examples:
        >>> times = torch.tensor(TIMES, dtype=torch.float64)
        >>> round(level_of(400 * (times - 3 * times.log())), 1)
        3.0
    """
    log_times = np.log(TIMES)
    curve = scipy.interpolate.CubicSpline(log_times, echo.numpy() + log_times**2 / 2)
    places = np.linspace(log_times[0], log_times[-1], _FINEST)
    return math.exp(float(places[int(curve(places).argmin())]))
