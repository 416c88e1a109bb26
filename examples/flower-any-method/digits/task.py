"""What sites and coordinator have in common: the method, and where rows are. Yours goes here."""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits

import predbayes as pb
from predbayes.learning.local import NetworkPredictor
from predbayes.methods.method import ModelState
from predbayes.posterior.samples import WeightSamples
from predbayes.summand import TensorSum

NETWORK = pb.Network.mlp(64, pb.Softmax(10), hidden=(32,))


@dataclass(frozen=True)
class FedAvg:
    """Federated averaging, which goes on for rounds: the mean of the sites' weights, by rows."""

    learner: pb.SGDLearner

    families = frozenset({pb.Categorical, pb.Gaussian})
    streams = True

    def init(self, reference, *, rng):
        return ModelState(WeightSamples.of(self.learner.network.create(rng)))

    def learn(self, state, rows, inputs, *, rng):
        fitted = self.learner.fit(rows, rng=rng, start=state.weights)
        return pb.Upload.of_weights(fitted.samples, num_rows=len(rows[1]))

    def state_arrays(self, state):  # this and the next are for the way over Flower
        return state.weights.arrays()

    def state_from(self, arrays):
        return ModelState(WeightSamples.from_arrays(arrays))

    def lift(self, state, upload, inputs):
        parameters, buffers = upload.samples().vectors()
        rows = torch.tensor(float(upload.info.num_rows))
        sums = {"rows": rows, "parameters": rows * parameters, "buffers": rows * buffers[-1]}
        return TensorSum(sums)

    def finish(self, state, total, reference, *, rng):
        parameters, buffers = (total[name] / total["rows"] for name in ("parameters", "buffers"))
        weights = state.weights.from_vectors(parameters, buffers)
        return ModelState(weights, pooled=self.learner.network.predict(weights, reference.inputs))

    def model(self, state):
        return NetworkPredictor(self.learner.network, state.weights)


def method(context):
    """The method that the run configuration names."""
    epochs = int(context.run_config["num-epochs"])
    learner = pb.SGDLearner(NETWORK, pb.OptimizerSettings(lr=0.05, num_epochs=epochs))
    if context.run_config["method"] == "fedavg":
        return FedAvg(learner)
    return pb.Distilled(pb.Pooled(learner, pb.pools.beta(), send="predictions"), NETWORK)


def rows(context):
    """A site's rows: here every n-th of those that nobody else has; yours read a table."""
    number, sites = (int(context.node_config[name]) for name in ("partition-id", "num-partitions"))
    inputs, targets = digits()
    return inputs[400 + number :: sites], targets[400 + number :: sites]


def reference(context):
    """The coordinator's rows, with 200 labels; sites get the inputs."""
    inputs, targets = digits()
    return pb.ReferenceRows.of((inputs[:200], targets[:200]), unlabelled=inputs[200:400])


def digits():
    """Images of 8 x 8 pixels, which come with scikit-learn."""
    inputs, targets = load_digits(return_X_y=True)
    return torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(targets)
