"""A method of one's own, in one file of one's own: the median of the sites' weights.

A mean is moved by one bad site, a median is not (Yin et al., 2018). Medians do not add, so the
coordinator keeps every site's weights: the method does not stream, and says so. Where only the way
of pooling predictions is new, a pool is shorter: `own_pool.py`.

Run it on its own, or beside the paper's methods in an experiment, by where it is:

    [methods.median]
    method = "own_method:Median"
    learner = "optimizer"
"""

# --8<-- [start:method]
from dataclasses import dataclass

import torch

import predbayes as pb
from predbayes.methods.method import ModelState
from predbayes.posterior.samples import WeightSamples
from predbayes.summand import Collected


@dataclass(frozen=True)
class Median:
    """Weight by weight, the median of the sites' networks, which start from common weights."""

    learner: pb.SGDLearner

    families = frozenset({pb.Categorical, pb.Gaussian})
    streams = False

    def init(self, reference, *, rng):
        return ModelState(WeightSamples.of(self.learner.network.create(rng)))

    def learn(self, state, rows, inputs, *, rng):
        fitted = self.learner.fit(rows, rng=rng, start=state.weights)
        return pb.Upload.of_weights(fitted.samples, num_rows=len(rows[1]))

    def state_arrays(self, state):  # this and the next, to run it over Flower
        return state.weights.arrays()

    def state_from(self, arrays):
        return ModelState(WeightSamples.from_arrays(arrays))

    def lift(self, state, upload, inputs):
        return Collected(upload.samples().vectors())

    def finish(self, state, total, reference, *, rng):
        parameters, buffers = (torch.cat(part) for part in zip(*total.items, strict=True))
        median = parameters.quantile(0.5, dim=0, keepdim=True)
        weights = state.weights.from_vectors(median, buffers.mean(0))
        return ModelState(weights, pooled=self.learner.network.predict(weights, reference.inputs))


# --8<-- [end:method]


def main() -> None:
    """Five sites, one of which has its labels mixed up."""

    rng = torch.Generator().manual_seed(0)
    y = torch.randint(3, (3000,), generator=rng)
    x = 1.5 * torch.eye(3)[y][:, :2] + torch.randn(3000, 2, generator=rng)
    parts = pb.partition.homogeneous(2000, 5, rng=rng)
    sites = {f"site {k}": (x[part], y[part]) for k, part in enumerate(parts)}
    sites["site 0"] = (sites["site 0"][0], (sites["site 0"][1] + 1) % 3)
    reference = pb.ReferenceRows.of((x[2000:2100], y[2000:2100]), evaluate=x[2500:])
    network = pb.Network.mlp(2, pb.Softmax(3))
    learner = pb.SGDLearner(network, pb.OptimizerSettings("adam", lr=0.01, num_epochs=20))
    # --8<-- [start:run]
    from predbayes_lab.baselines.fedavg import FedAvg

    for method in (Median(learner), FedAvg(learner)):
        result = pb.run(method, sites, reference)
        predicted = result.predictive[reference.evaluate]
        print(f"{type(method).__name__}: NLL {pb.metrics.nll(predicted, y[2500:]):.3f}")
    # --8<-- [end:run]


if __name__ == "__main__":
    main()
