"""Samples of a network's weights: parameters and buffers, stacked along a first axis.

M samples of a tensor of shape S are one tensor of shape (M, *S), as safetensors stores it. A point
estimate is M = 1. Nothing is pickled: a file from a stranger holds numbers and cannot run code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from predbayes.errors import UploadError

_PARAMETER, _BUFFER = "parameter/", "buffer/"


@dataclass(frozen=True, slots=True)
class WeightSamples:
    """M samples of every parameter and buffer of one network."""

    parameters: Mapping[str, Tensor]  # each (M, ...)
    buffers: Mapping[str, Tensor]  # each (M, ...)

    def __post_init__(self) -> None:
        tensors = [*self.parameters.values(), *self.buffers.values()]
        if not self.parameters or len({t.shape[:1] for t in tensors}) != 1 or not len(self):
            raise UploadError("weight samples need parameters, all with one number of samples")

    def __len__(self) -> int:
        return next(iter(self.parameters.values())).shape[0]

    def __getitem__(self, index: slice) -> WeightSamples:
        return WeightSamples(
            {name: value[index] for name, value in self.parameters.items()},
            {name: value[index] for name, value in self.buffers.items()},
        )

    @classmethod
    def of(cls, module: nn.Module) -> WeightSamples:
        """Copy a module's present weights, as one sample on the CPU."""
        return cls(
            {name: _copy(value) for name, value in module.named_parameters()},
            {name: _copy(value) for name, value in module.named_buffers()},
        )

    @classmethod
    def concat(cls, samples: Sequence[WeightSamples]) -> WeightSamples:
        """Concatenate samples of one network."""
        if len({(frozenset(s.parameters), frozenset(s.buffers)) for s in samples}) != 1:
            raise UploadError("cannot join samples of different networks")
        first = samples[0]
        return cls(
            {name: torch.cat([s.parameters[name] for s in samples]) for name in first.parameters},
            {name: torch.cat([s.buffers[name] for s in samples]) for name in first.buffers},
        )

    def load_into(self, module: nn.Module, index: int = -1) -> None:
        """Set a module's weights to one of the samples."""
        self.require_of(module)
        source = {**self.parameters, **self.buffers}
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                value.copy_(source[name][index])

    def require_of(self, module: nn.Module) -> None:
        """Refuse samples whose names or shapes are not those of this module."""
        pairs = (
            (dict(module.named_parameters()), self.parameters),
            (dict(module.named_buffers()), self.buffers),
        )
        for own, sampled in pairs:
            shapes = {name: tuple(value.shape) for name, value in own.items()}
            if shapes != {name: tuple(value.shape[1:]) for name, value in sampled.items()}:
                raise UploadError("these weights are not of this network: names or shapes differ")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter and buffer in one sample, by its name in `arrays`."""
        return {name: tuple(value.shape[1:]) for name, value in self.arrays().items()}

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return parameters (M, P) and buffers (M, B) as vectors in float64, to be averaged."""
        return _flat(self.parameters, len(self)), _flat(self.buffers, len(self))

    def from_vectors(self, parameters: Tensor, buffers: Tensor) -> WeightSamples:
        """Make samples of this network: parameters (S, P), and buffers (B,) that all share."""
        shared = buffers.expand(len(parameters), -1)
        return WeightSamples(_unflat(parameters, self.parameters), _unflat(shared, self.buffers))

    def arrays(self) -> dict[str, Tensor]:
        """Return named arrays, the same on disk and on the wire."""
        parameters = {_PARAMETER + name: value for name, value in self.parameters.items()}
        return parameters | {_BUFFER + name: value for name, value in self.buffers.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor]) -> WeightSamples:
        """Make samples from what `arrays` returned."""
        stray = [name for name in arrays if not name.startswith((_PARAMETER, _BUFFER))]
        if stray:
            raise UploadError(f"array {stray[0]!r} is neither a parameter nor a buffer")
        return cls(_with_prefix(arrays, _PARAMETER), _with_prefix(arrays, _BUFFER))

    def save(self, path: str | Path) -> None:
        """Write a safetensors file."""
        save_file({name: value.contiguous() for name, value in self.arrays().items()}, path)

    @classmethod
    def load(cls, path: str | Path) -> WeightSamples:
        """Read a safetensors file."""
        try:
            return cls.from_arrays(load_file(path))
        except FileNotFoundError:
            raise UploadError(f"there is no file {path}") from None
        except SafetensorError as error:
            raise UploadError(f"{Path(path).name} is not a safetensors file: {error}") from error


def _copy(value: Tensor) -> Tensor:
    return value.detach().cpu().clone().unsqueeze(0)


def _flat(tensors: Mapping[str, Tensor], num: int) -> Tensor:
    # Sorted: a file may give the names back in another order.
    parts = [tensors[name].reshape(num, -1).double() for name in sorted(tensors)]
    return torch.cat(parts, 1) if parts else torch.zeros(num, 0, dtype=torch.float64)


def _unflat(vectors: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    shapes = {name: like[name].shape[1:] for name in sorted(like)}
    parts = torch.split(vectors, [shape.numel() for shape in shapes.values()], 1)
    tensors = {}
    for (name, shape), part in zip(shapes.items(), parts, strict=True):
        # Counters of a batch normalisation are integers; their mean is not.
        value = part if like[name].is_floating_point() else part.round()
        tensors[name] = value.reshape(len(vectors), *shape).to(like[name].dtype)
    return tensors


def _with_prefix(arrays: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: v for name, v in arrays.items() if name.startswith(prefix)}
