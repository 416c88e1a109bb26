"""Uploads of every kind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from predbayes.exchange.upload import Upload
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Gaussian
from tests.core.oracles import random_categorical


@pytest.fixture
def classes(rng):
    return random_categorical(rng)


@pytest.fixture
def uploads(classes):
    return {
        "weights": Upload.of_weights(WeightSamples.of(nn.Linear(3, 2)), num_rows=12),
        "classes": Upload.of_predictions(classes, num_rows=12, class_rows=(3.0, 4.0, 4.0, 1.0)),
        "numbers": Upload.of_predictions(
            Gaussian(torch.zeros(3), torch.ones(3), torch.tensor([0.1, 0.2, 0.3])), num_rows=7
        ),
    }
