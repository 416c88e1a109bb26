"""FedKT (Li, He and Song, 2021): knowledge transfer by two tiers of votes.

Each site cuts its rows s times at random into t parts and trains a teacher on each. For each of
the s cuts a student is trained on the reference inputs, labelled by its t teachers' votes; the
site sends its s students. The coordinator labels the reference inputs by all students' votes,
counting a site only where its s students agree (*consistent voting*), with s votes, and trains
the final network on those labels. Rows for which no site votes are left out.

For classification only. Evaluation rows are not used to train anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from predbayes.errors import ImproperPoolError, PoolError, TrainingError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkLearner, NetworkPredictor, check_targets
from predbayes.learning.training import Rows, gather
from predbayes.pools.pool import RoundState
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Categorical, Predictive
from predbayes.summand import TensorSum
from predbayes_lab.baselines.global_model import require_network


@dataclass(frozen=True, slots=True)
class FedKTState(RoundState):
    """How many reference rows to label, and after the round the final network."""

    num_inputs: int
    model: NetworkPredictor | None = None


@dataclass(frozen=True, slots=True)
class FedKT:
    """Two tiers of votes on the reference inputs, then one network.

    Args:
        learner: What teachers, students and the final network are fitted by.
        num_cuts: s, students per site.
        num_parts: t, teachers per student.
        consistent: Whether a site votes only where its students agree.
    """

    learner: NetworkLearner
    num_cuts: int = 2
    num_parts: int = 5
    consistent: bool = True

    families: ClassVar[frozenset[type[Predictive]]] = frozenset({Categorical})
    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> FedKTState:
        """Return how many of the reference inputs may be trained on."""
        require_network(self.learner, "FedKT")
        check_targets(self.learner, reference.targets)
        return FedKTState(reference.distillation.stop)

    def learn(
        self, state: FedKTState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Train teachers and students; send the students."""
        x, y = gather(rows, rng=rng)
        if len(x) < self.num_parts:
            raise TrainingError(f"{len(x)} rows cannot be cut into {self.num_parts} parts")
        shared = inputs[: state.num_inputs]
        students = []
        for _ in range(self.num_cuts):
            parts = torch.randperm(len(x), generator=rng).tensor_split(self.num_parts)
            votes = torch.stack(
                [
                    self._votes(self.learner.fit((x[part], y[part]), rng=rng).samples, shared)
                    for part in parts
                ]
            ).sum(0)
            students.append(self.learner.fit((shared, votes.argmax(-1)), rng=rng).samples[-1:])
        return Upload.of_weights(WeightSamples.concat(students), num_rows=len(x))

    def state_arrays(self, state: FedKTState) -> dict[str, Tensor]:
        """How many reference rows to label."""
        return {"num_inputs": torch.tensor(state.num_inputs)}

    def state_from(self, arrays: Mapping[str, Tensor]) -> FedKTState:
        """The state with that number."""
        return FedKTState(int(arrays["num_inputs"]))

    def lift(self, state: FedKTState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The site's votes on the inputs that may be trained on."""
        shared, students = inputs[: state.num_inputs], upload.samples()
        each = [self._votes(students[i : i + 1], shared) for i in range(len(students))]
        return TensorSum({"votes": count_votes(torch.stack(each), consistent=self.consistent)})

    def finish(
        self, state: FedKTState, total: TensorSum, reference: ReferenceRows, *, rng: torch.Generator
    ) -> FedKTState:
        """Train the final network on the labels with most votes."""
        votes = total["votes"]
        voted = votes.sum(-1) > 0
        if not bool(voted.any()):
            raise ImproperPoolError(
                "no site's students agree on any reference row; set consistent=False"
            )
        inputs = reference.inputs[: state.num_inputs][voted]
        model = self.learner.fit((inputs, votes[voted].argmax(-1)), rng=rng)
        return replace(state, model=model, pooled=model.predict(reference.inputs))

    def model(self, state: FedKTState) -> NetworkPredictor:
        """The final network."""
        if state.model is None:
            raise PoolError("no round has been run yet, so there is no network")
        return state.model

    def _votes(self, samples: WeightSamples, inputs: Tensor) -> Tensor:
        """One-hot most probable classes, (R, C)."""
        predictive = self.learner.network.predict(samples, inputs, self.learner.device)
        probs = predictive.moments()
        return torch.nn.functional.one_hot(probs.argmax(-1), probs.shape[-1])


def count_votes(votes: Tensor, *, consistent: bool) -> Tensor:
    """A site's votes (R, C) from its students' one-hot votes (s, R, C)."""
    counts = votes.sum(0)
    return torch.where(counts == len(votes), counts, 0) if consistent else counts
