"""FedAvg of a small network; rows are in files that nodes and coordinator have at home."""

import numpy as np
import torch

import predbayes as pb

NETWORK = pb.Network.mlp(784, pb.Softmax(10), hidden=(32,))


def method(context):
    epochs = int(context.run_config["num-epochs"])
    return pb.FedAvg(pb.SGDLearner(NETWORK, pb.OptimizerSettings(lr=0.05, num_epochs=epochs)))


def rows(context):
    return images(context.node_config["data"])


def reference(context):
    return pb.ReferenceRows.of(images(context.run_config["reference"]))


def images(path):
    with np.load(path) as file:
        return torch.from_numpy(file["inputs"]), torch.from_numpy(file["targets"])
