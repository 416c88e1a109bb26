"""Averaged weights: a small method that ends with a network and may take several rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from predbayes.errors import UploadError
from predbayes.exchange.upload import Upload
from predbayes.learning.local import NetworkPredictor, SGDLearner, check_targets
from predbayes.learning.training import count_rows
from predbayes.methods.method import ModelState
from predbayes.pools.pool import BOTH_FAMILIES
from predbayes.posterior.samples import WeightSamples
from predbayes.summand import Collected, TensorSum


@dataclass(frozen=True)
class Averaged:
    """Average the sites' weights by rows, as federated averaging does."""

    learner: SGDLearner

    families = BOTH_FAMILIES
    streams = True

    def init(self, reference, *, rng):
        check_targets(self.learner, reference.targets)
        return ModelState(WeightSamples.of(self.learner.network.create(rng)))

    def learn(self, state, rows, inputs, *, rng):
        fitted = self.learner.fit(rows, rng=rng, start=state.weights)
        return Upload.of_weights(fitted.samples[-1:], num_rows=count_rows(rows))

    def state_arrays(self, state):
        return state.weights.arrays()

    def state_from(self, arrays):
        return ModelState(WeightSamples.from_arrays(arrays))

    def lift(self, state, upload, inputs):
        samples = upload.samples()
        if samples.shapes() != state.weights.shapes():
            raise UploadError(f"site {upload.info.site!r} sent weights of another network")
        parameters, buffers = samples.vectors()
        rows = torch.tensor(float(upload.info.num_rows))
        return TensorSum(
            {"rows": rows, "parameters": rows * parameters, "buffers": rows * buffers[-1]}
        )

    def finish(self, state, total, reference, *, rng):
        mean, buffers = (total[name] / total["rows"] for name in ("parameters", "buffers"))
        return self.state_of(state.weights.from_vectors(mean, buffers), reference)

    def state_of(self, weights, reference):
        pooled = self.learner.network.predict(weights, reference.inputs)
        return ModelState(weights, pooled=pooled)

    def model(self, state):
        return NetworkPredictor(self.learner.network, state.weights)


class Ensemble(Averaged):
    """Keep the sites' networks, and average what they predict."""

    streams = False

    def lift(self, state, upload, inputs):
        return Collected(upload.samples().vectors())

    def finish(self, state, total, reference, *, rng):
        parameters, buffers = (torch.cat(part) for part in zip(*total.items, strict=True))
        return self.state_of(state.weights.from_vectors(parameters, buffers), reference)
