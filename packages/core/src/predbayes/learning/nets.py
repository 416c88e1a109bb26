"""The paper's networks, as plain torch modules.

Released: the paper says "a two-layer fully connected network with 100 hidden units" and a CNN
with "a single fully connected layer at the end"; the released MLP has two hidden layers of 100,
its CNN three fully connected layers. The default MLP here is the released one, which made the
paper's figures (``hidden=(100,)`` is the other reading); the default CNN is the paper's
(``head=(...)`` adds layers).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn


def mlp(num_inputs: int, num_outputs: int, hidden: Sequence[int] = (100, 100)) -> nn.Sequential:
    """Build a fully connected ReLU network on flattened inputs.

    Examples:
        >>> sum(p.numel() for p in mlp(784, 10).parameters())
        89610
    """
    widths = [num_inputs, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for width_in, width_out in itertools.pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


def input_weight(net: nn.Module) -> str:
    """Return the name of the parameter that reads the inputs of a fully connected network.

    Examples:
        >>> input_weight(mlp(3, 2)), input_weight(mlp(3, 2, hidden=()))
        ('1.weight', '1.weight')
    """
    linear = (name for name, layer in net.named_modules() if isinstance(layer, nn.Linear))
    return f"{next(linear)}.weight"


def cnn(
    image_shape: tuple[int, int, int],
    num_outputs: int,
    channels: Sequence[int] = (32, 64, 64),
    head: Sequence[int] = (),
) -> nn.Sequential:
    """Build convolutions of 3 × 3, each followed by max pooling by 2 and ReLU, and a linear head.

    Weights lie channels last, which halves the time of a step on a CPU, as does pooling before the
    ReLU: the two commute, and there is a quarter left to do.

    Args:
        image_shape: Channels, height and width of an input.
        num_outputs: Width of the last layer.
        channels: Output channels of each convolution; the paper has three and does not give them.
        head: Widths of hidden fully connected layers.
    """
    depth, height, width = image_shape
    layers: list[nn.Module] = []
    for depth_in, depth_out in itertools.pairwise([depth, *channels]):
        layers += [nn.Conv2d(depth_in, depth_out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        height, width = height // 2, width // 2
    head_net = mlp(channels[-1] * height * width, num_outputs, head)
    net = nn.Sequential(*layers, head_net)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
