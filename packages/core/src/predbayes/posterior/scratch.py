"""Room for many tensors: in memory, or where they are large in a file without a name.

A file is mapped into memory (`predbayes.spill`): tensors are views of it, and with `let_go` the
system keeps no more of it in memory than is being read.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from predbayes import system
from predbayes.errors import TrainingError
from predbayes.spill import mapped

IN_MEMORY_BYTES = 100_000_000
"""Tensors that are larger together go into a file."""

_ALIGNED = 64  # bytes, so that every tensor begins where its kernels like it
_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


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
