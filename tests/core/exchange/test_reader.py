"""What a site predicts, from what it sent."""

from __future__ import annotations

import pytest
import torch

from predbayes.errors import TrainingError, UploadError
from predbayes.exchange.reader import Reader
from predbayes.exchange.upload import Upload
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Network, OptimizerSettings, SGDLearner
from predbayes.learning.nets import mlp
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Categorical, Gaussian

NETWORKS = {
    Categorical: Network(lambda: mlp(2, 3, hidden=(4,)), Softmax(3)),
    Gaussian: Network(lambda: mlp(2, 1, hidden=(4,)), LearnedNoise()),
}
FAMILIES = pytest.mark.parametrize("family", [Categorical, Gaussian])


def drawn(family, rng):
    """Two networks' weights, inputs, and what they predict there."""
    network = NETWORKS[family]
    samples = WeightSamples.concat([WeightSamples.of(network.create(rng)) for _ in range(2)])
    inputs = torch.randn(7, 2, generator=rng)
    return samples, inputs, network.predict(samples, inputs)


@FAMILIES
def test_weights_are_run_and_predictions_decoded(family, rng):
    samples, inputs, predictive = drawn(family, rng)
    reader = Reader(NETWORKS[family])
    ran = reader.read(Upload.of_weights(samples, num_rows=5), inputs)
    assert torch.equal(ran.natural(), predictive.natural())
    sent = Upload.of_predictions(predictive, num_rows=5)
    for one in (reader, Reader()):
        assert torch.equal(one.read(sent, inputs).natural(), sent.predictive().natural())


def test_a_learner_brings_its_network_and_device():
    learner = SGDLearner(NETWORKS[Categorical], OptimizerSettings(), "meta")
    assert Reader.of(learner) == Reader(NETWORKS[Categorical], "meta")
    assert Reader.of(object()) == Reader()


def test_weights_need_their_network(rng):
    samples, inputs, _ = drawn(Categorical, rng)
    upload = Upload.of_weights(samples, num_rows=5)
    with pytest.raises(TrainingError, match="with the network that they are of"):
        Reader().read(upload, inputs)
    with pytest.raises(UploadError, match="not of this network"):
        Reader(NETWORKS[Gaussian]).read(upload, inputs)


def test_predictions_are_of_the_reference_inputs(rng):
    _, inputs, predictive = drawn(Categorical, rng)
    upload = Upload.of_predictions(predictive, num_rows=5).named("basel")
    with pytest.raises(UploadError, match="'basel' predicted 7 rows; there are 6"):
        Reader().read(upload, inputs[:6])
