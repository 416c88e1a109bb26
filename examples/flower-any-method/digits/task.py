"""What sites and coordinator have in common: the method, and where rows are. Yours goes here."""

import torch
from sklearn.datasets import load_digits

import predbayes as pb

NETWORK = pb.Network.mlp(64, pb.Softmax(10), hidden=(32,))


def method(context):
    """The method that the run configuration names."""
    epochs = int(context.run_config["num-epochs"])
    learner = pb.SGDLearner(NETWORK, pb.OptimizerSettings(lr=0.05, num_epochs=epochs))
    if context.run_config["method"] == "fedavg":
        from predbayes_lab.baselines.fedavg import FedAvg

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
