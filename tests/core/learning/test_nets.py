from __future__ import annotations

import pytest
import torch

from predbayes.learning.nets import cnn, mlp


def test_mlp_has_two_hidden_layers_of_a_hundred():
    shapes = [tuple(p.shape) for p in mlp(784, 10).parameters()]
    assert shapes == [(100, 784), (100,), (100, 100), (100,), (10, 100), (10,)]


@pytest.mark.parametrize(("head", "num_linear"), [((), 1), ((128, 64), 3)])
def test_cnn_has_three_convolutions_and_its_head(head, num_linear):
    net = cnn((3, 32, 32), 10, head=head)
    kinds = [type(module).__name__ for module in net.modules()]
    assert kinds.count("Conv2d") == kinds.count("MaxPool2d") == 3
    assert kinds.count("Linear") == num_linear
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
