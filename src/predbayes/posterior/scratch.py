"""Room for many tensors: in memory, or where they are large in a file without a name.

A file is mapped into memory: tensors are views of it, and the system keeps no more of it in memory
than is being read. It has no name in any folder, so that it goes with its process whatever ends
that; its folder is that of temporary files (`TMPDIR`). The disk space is taken at once, so that a
full disk is told before training, not during it.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from predbayes.errors import TrainingError

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
    mapped, found, offset = _map(sum(padded.values())), {}, 0
    for name, value in like.items():
        shape = (num, *value.shape)
        if math.prod(shape):
            flat = torch.frombuffer(
                mapped, dtype=value.dtype, offset=offset, count=math.prod(shape)
            )
            found[name] = flat.view(shape)
        else:
            found[name] = torch.empty(shape, dtype=value.dtype)
        offset += padded[name]
    return found


def let_go() -> None:
    """Let the system have the memory of mapped files; what is read again comes from the file."""
    if sys.platform == "linux":
        for mapped in list(_maps):
            mapped.madvise(mmap.MADV_DONTNEED)  # of a shared map: nothing written is lost


def _map(num_bytes: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                file.truncate(num_bytes)
            mapped = mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        raise TrainingError(
            f"there is no room for {num_bytes / 1e9:.1f} GB of weight samples in "
            f"{tempfile.gettempdir()} ({error.strerror}); set TMPDIR to a folder on a larger disk"
        ) from error
    _maps.add(mapped)
    return mapped
