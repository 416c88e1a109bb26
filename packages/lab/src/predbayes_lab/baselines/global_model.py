"""What the methods that average weights share: a global model, and sums of the sites' weights.

Sites start from the global model w, train, and send their weights w_k; the coordinator needs

    sum_k |D_k| w_k    and    sum_k |D_k|

Parameters travel as named arrays and are summed as one vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkLearner, NetworkPredictor, check_targets
from predbayes.learning.training import Rows, count_rows
from predbayes.methods.method import ModelState
from predbayes.pools.pool import BOTH_FAMILIES
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Predictive
from predbayes.summand import TensorSum


def require_network(learner: object, what: str) -> None:
    """Refuse learners without weights before any site trains."""
    if not isinstance(learner, NetworkLearner):
        raise TrainingError(
            f"{what} needs a network, and the learner has none; use SGDLearner or "
            "SGHMCLearner, or a method that pools predictions"
        )


@dataclass(frozen=True, slots=True)
class FromGlobalModel:
    """The first half of a method whose sites start from one model and send their weights.

    Args:
        learner: What each site fits.
    """

    learner: NetworkLearner

    families: ClassVar[frozenset[type[Predictive]]] = BOTH_FAMILIES
    streams: ClassVar[bool] = True

    def init(self, reference: ReferenceRows, *, rng: torch.Generator) -> ModelState:
        """Return the weights that every site starts from."""
        require_network(self.learner, "a method that combines weights")
        check_targets(self.learner, reference.targets)
        return ModelState(WeightSamples.of(self.learner.network.create(rng)))

    def learn(
        self, state: ModelState, rows: Rows, inputs: Tensor, *, rng: torch.Generator
    ) -> Upload:
        """Train from the global model; send the last weights."""
        predictor = self.learner.fit(rows, rng=rng, start=state.weights)
        return Upload.of_weights(predictor.samples[-1:], num_rows=count_rows(rows))

    def state_arrays(self, state: ModelState) -> dict[str, Tensor]:
        """The global model; a server's optimiser stays at the server."""
        return state.weights.arrays()

    def state_from(self, arrays: Mapping[str, Tensor]) -> ModelState:
        """The state with that model."""
        return ModelState(WeightSamples.from_arrays(arrays))


@dataclass(frozen=True, slots=True)
class AveragesWeights(FromGlobalModel):
    """The same where the mean of the sites' weights leads to the next global model."""

    def lift(self, state: ModelState, upload: Upload, inputs: Tensor) -> TensorSum:
        """The site's weights times its rows."""
        return row_weighted(weights_of(upload, state), upload.info.num_rows)

    def model(self, state: ModelState) -> NetworkPredictor:
        """The global model."""
        return network_of(self.learner, state.weights)


def weights_of(upload: Upload, state: ModelState, kind: str = "weights") -> WeightSamples:
    """The weights that a site sent; refused if they are not of the global model's network."""
    samples = upload.samples(kind)
    if samples.shapes() != state.weights.shapes():
        raise UploadError(f"site {upload.info.site!r} sent weights of another network")
    return samples


def row_weighted(samples: WeightSamples, num_rows: int) -> TensorSum:
    """One site's weights, or change of weights, times its rows."""
    parameters, buffers = samples.vectors()
    rows = torch.tensor(float(num_rows))
    return TensorSum(
        {"rows": rows, "parameters": rows * parameters[-1], "buffers": rows * buffers[-1]}
    )


def mean_of(total: TensorSum, name: str) -> Tensor:
    """A row-weighted mean over sites."""
    return total[name] / total["rows"]


def predict_with(
    learner: NetworkLearner, weights: WeightSamples, reference: ReferenceRows
) -> Predictive:
    """Predict the reference rows with one or more sets of weights."""
    return learner.network.predict(weights, reference.inputs, learner.device)


def network_of(learner: NetworkLearner, weights: WeightSamples) -> NetworkPredictor:
    """The learner's network with these weights, to predict new inputs with."""
    return NetworkPredictor(learner.network, weights, learner.device)
