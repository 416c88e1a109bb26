"""Samples of a network's weights: parameters and buffers, stacked along a first axis.

M samples of a tensor of shape S are one tensor of shape (M, *S), as safetensors stores it. A point
estimate is M = 1. Nothing is pickled: a file from a stranger holds numbers and cannot run code.

What is the same in all samples by construction, as the weights of a frozen backbone, is held once,
with a stride of 0 along the first axis, and stored and sent once, as (1, *S).

Many large samples are in a file without a name, mapped into memory (`predbayes.spill`). With
`let_go` the system keeps no more of it in memory than is being read.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from predbayes import system
from predbayes.errors import TrainingError, UploadError
from predbayes.spill import mapped

IN_MEMORY_BYTES = 100_000_000
"""Tensors that are larger together go into a file."""

_ALIGNED = 64  # bytes, so that every tensor begins where its kernels like it
_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_PARAMETER, _BUFFER = "parameter/", "buffer/"
_MOST_SHARING = 1_000  # samples


@dataclass(frozen=True, slots=True)
class WeightSamples:
    """M samples of every parameter and buffer of one network."""

    parameters: Mapping[str, Tensor]  # each (M, ...)
    buffers: Mapping[str, Tensor]  # each (M, ...)
    frozen: frozenset[str] = frozenset()  # parameters that were not learnt, where that is known

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
            self.frozen,
        )

    @classmethod
    def of(cls, module: nn.Module) -> WeightSamples:
        """Copy a module's present weights, as one sample on the CPU."""
        return cls(
            {name: _copy(value) for name, value in module.named_parameters()},
            {name: _copy(value) for name, value in module.named_buffers()},
            frozen_in(module),
        )

    @classmethod
    def concat(cls, samples: Sequence[WeightSamples]) -> WeightSamples:
        """Concatenate samples of one network."""
        stack = SampleStack(sum(map(len, samples)))
        for one in samples:
            stack.add(one)
        return stack.taken()

    def load_into(self, module: nn.Module, index: int = -1) -> None:
        """Set a module's weights to one of the samples."""
        self.require_of(module)
        source = {**self.parameters, **self.buffers}
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                value.copy_(source[name][index])
        let_go()

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
        """Return named arrays, the same on disk and on the wire; what all samples share once."""
        return {name: _once(value) for name, value in _named(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor]) -> WeightSamples:
        """Make samples from what `arrays` returned."""
        stray = [name for name in arrays if not name.startswith((_PARAMETER, _BUFFER))]
        if stray:
            raise UploadError(f"array {stray[0]!r} is neither a parameter nor a buffer")
        num = max((len(value) for value in arrays.values() if value.ndim), default=0)
        every = {name: _for_all(value, num) for name, value in arrays.items()}
        # Small arrays could stand for any number of large networks, which somebody must run.
        if num > _MOST_SHARING and any(_once(value) is not value for value in every.values()):
            raise UploadError(f"more than {_MOST_SHARING:,} weight samples cannot share weights")
        return cls(_with_prefix(every, _PARAMETER), _with_prefix(every, _BUFFER))

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


class SampleStack:
    """Samples as they are taken, in room for all of them; of a large network on the disk."""

    def __init__(self, num: int) -> None:
        self._num = num
        self._taken = 0
        self._frozen: frozenset[str] = frozenset()
        self._room: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return self._taken

    def add(self, samples: WeightSamples) -> None:
        """Take samples; of one network all of them."""
        arrays = _named(samples)
        if not self._room:
            self._frozen = samples.frozen
            self._room = room({name: value[0] for name, value in arrays.items()}, self._num)
        if {n: v.shape[1:] for n, v in arrays.items()} != {
            n: v.shape[1:] for n, v in self._room.items()
        }:
            raise UploadError("cannot join samples of different networks")
        end = self._taken + len(samples)
        for name, value in arrays.items():
            self._room[name][self._taken : end].copy_(value)
        self._taken = end
        let_go()

    def taken(self) -> WeightSamples:
        """Return what was taken so far."""
        found = {name: value[: self._taken] for name, value in self._room.items()}
        # A frozen parameter that every build draws anew differs between members of an ensemble.
        same = {_PARAMETER + name for name in self._frozen if _all_same(found[_PARAMETER + name])}
        every = {n: _for_all(v[:1].clone(), len(v)) if n in same else v for n, v in found.items()}
        parameters, buffers = (_with_prefix(every, prefix) for prefix in (_PARAMETER, _BUFFER))
        return WeightSamples(parameters, buffers, self._frozen)


def frozen_in(module: nn.Module) -> frozenset[str]:
    """Return the names of parameters that are not learnt."""
    return frozenset(name for name, value in module.named_parameters() if not value.requires_grad)


def _named(samples: WeightSamples) -> dict[str, Tensor]:
    """All tensors, each (M, ...), by the names of `arrays`."""
    parameters = {_PARAMETER + name: value for name, value in samples.parameters.items()}
    return parameters | {_BUFFER + name: value for name, value in samples.buffers.items()}


def _once(value: Tensor) -> Tensor:
    return value[:1] if len(value) > 1 and value.stride(0) == 0 else value


def _for_all(value: Tensor, num: int) -> Tensor:
    return value.expand(num, *value.shape[1:]) if value.shape[:1] == (1,) else value


def _all_same(values: Tensor) -> bool:
    return all(torch.equal(value, values[0]) for value in values[1:])


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


def room(like: Mapping[str, Tensor], num: int) -> dict[str, Tensor]:
    """Return room for ``num`` tensors of each type and shape, (num, ...), with any content."""
    sizes = {name: num * value.nbytes for name, value in like.items()}
    if sum(sizes.values()) <= IN_MEMORY_BYTES:
        return {n: torch.empty(num, *v.shape, dtype=v.dtype) for n, v in like.items()}
    padded = {name: -(-size // _ALIGNED) * _ALIGNED for name, size in sizes.items()}
    file, found, offset = mapped(sum(padded.values()), "weight samples", TrainingError), {}, 0
    _maps.add(file)
    for name, value in like.items():
        shape = (num, *value.shape)
        if math.prod(shape):
            flat = torch.frombuffer(file, dtype=value.dtype, offset=offset, count=math.prod(shape))
            found[name] = flat.view(shape)
        else:
            found[name] = torch.empty(shape, dtype=value.dtype)
        offset += padded[name]
    return found


def let_go() -> None:
    """Let the system have the memory of mapped files; what is read again comes from the file."""
    for file in list(_maps) if len(_maps) else ():  # of which there is mostly none
        system.let_go(file)


def effective_samples(samples: WeightSamples, per_cycle: int) -> float:
    """Return the effective number of samples, of which ``per_cycle`` in a row are of one cycle.

    C cycles of m samples each, w_cj. With the mean squares of a one-way analysis of variance, over
    all parameters at once,

        between = m sum_c |w_c - w|^2 / (C - 1),     within = sum_cj |w_cj - w_c|^2 / (C (m - 1))
        r = (between - within) / (between + (m - 1) within)
        effective = C m / (1 + (m - 1) r)

    r is the correlation of samples of one cycle, and the last line Kish's design effect: the
    variance of the samples' mean is that of so many independent ones. Samples that do not move
    within a cycle are worth C, independent ones C m. One cycle does not tell: another one might end
    elsewhere.

    A first cycle of which not all samples were kept is left out; NaN if there is only one.

    Examples:
        >>> twice = torch.tensor([[0.0, 1.0], [0.0, 1.0], [3.0, 5.0], [3.0, 5.0]])
        >>> effective_samples(WeightSamples({"w": twice}, {}), per_cycle=2)
        2.0
    """
    num_cycles = len(samples) // per_cycle
    if num_cycles < 2:
        return math.nan
    if per_cycle == 1:
        return float(num_cycles)
    vectors = samples.vectors()[0][-num_cycles * per_cycle :].view(num_cycles, per_cycle, -1)
    means = vectors.mean(1)
    between = per_cycle * float((means - means.mean(0)).square().sum()) / (num_cycles - 1)
    scatter = float((vectors - means.unsqueeze(1)).square().sum())
    within = scatter / (num_cycles * (per_cycle - 1))
    total = between + (per_cycle - 1) * within
    # Below 0 by chance alone; samples that never move are one.
    correlation = max(0.0, (between - within) / total) if total else 1.0
    return num_cycles * per_cycle / (1 + (per_cycle - 1) * correlation)
