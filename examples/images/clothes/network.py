"""The torch module that every site trains and everybody gets back."""

from torch import nn


def network(num_inputs: int, num_outputs: int) -> nn.Module:
    """A small convolutional network; inputs come flat, channel by channel and line by line."""
    size = round(num_inputs**0.5)
    return nn.Sequential(
        nn.Unflatten(1, (1, size, size)),
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * ((size + 3) // 4) ** 2, num_outputs),
    )
