from __future__ import annotations

import pytest
import torch

from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Network
from predbayes.learning.nets import cnn, mlp


def test_mlp_has_two_hidden_layers_of_a_hundred():
    shapes = [tuple(p.shape) for p in mlp(784, 10).parameters()]
    assert shapes == [(100, 784), (100,), (100, 100), (100,), (10, 100), (10,)]


def test_mlp_takes_images_and_rows():
    net = mlp(12, 3, hidden=())
    assert net(torch.zeros(5, 3, 2, 2)).shape == net(torch.zeros(5, 12)).shape == (5, 3)


@pytest.mark.parametrize(("head", "num_linear"), [((), 1), ((128, 64), 3)])
def test_cnn_has_three_convolutions_and_its_head(head, num_linear):
    net = cnn((3, 32, 32), 10, head=head)
    kinds = [type(module).__name__ for module in net.modules()]
    assert kinds.count("Conv2d") == kinds.count("MaxPool2d") == 3
    assert kinds.count("Linear") == num_linear
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_cnn_takes_sizes_that_are_not_powers_of_two():
    assert cnn((1, 28, 28), 62)(torch.zeros(1, 1, 28, 28)).shape == (1, 62)


def test_networks_by_name_have_the_outputs_of_their_likelihood():
    table = Network.mlp(4, LearnedNoise(per_input=True), hidden=(5,))
    images = Network.cnn((1, 8, 8), Softmax(3))
    assert table.build()(torch.zeros(2, 4)).shape == (2, 2)
    assert images.build()(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
