"""Tensors that may be larger than memory: their numbers then lie in a nameless temporary file.

Such a tensor is like any other. The system reads its pages when they are used and drops them when
memory is short; the file has no name in any folder, and goes with its process whatever ends that.
It lies where Python keeps temporary files, which the variable TMPDIR says; a folder that is itself
in memory gains nothing. The disk space is taken at once, so that a full disk is told beforehand.
"""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Iterator

import torch
from torch import Tensor

from predbayes.errors import DataError, PredbayesError
from predbayes.system import take_room

MOST_IN_MEMORY = 256_000_000
"""Bytes of a tensor above which it lies in a file."""

_BLOCK_BYTES = 16_000_000
_MOST_ROWS = 8192


def room(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor of zeros, in memory or, if it is large, in a temporary file."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes <= MOST_IN_MEMORY:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(mapped(num_bytes, "numbers"), dtype=dtype).view(shape)


def mapped(num_bytes: int, what: str, refused: type[PredbayesError] = DataError) -> mmap.mmap:
    """Return so many bytes of zeros in a file; refuse, saying for ``what``, if there is no room."""
    try:
        with tempfile.TemporaryFile() as file:
            take_room(file, num_bytes)
            return mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        raise refused(
            f"there is no room for {num_bytes / 1e9:.1f} GB of {what} in {tempfile.gettempdir()} "
            f"({error.strerror}); set TMPDIR to a folder on a larger disk"
        ) from error


def blocks(num_rows: int, row_bytes: int) -> Iterator[slice]:
    """Split rows into some that fit into memory many times."""
    step = min(_MOST_ROWS, max(1, _BLOCK_BYTES // max(row_bytes, 1)))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def row_bytes(rows: Tensor) -> int:
    """Return the bytes of one row of a tensor."""
    return math.prod(rows.shape[1:]) * rows.dtype.itemsize


def take(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a tensor, as `tensor[rows]` does, also if they are larger than memory.

    Examples:
        >>> take(torch.arange(6).reshape(3, 2), torch.tensor([2, 0])).tolist()
        [[4, 5], [0, 1]]
    """
    if len(rows) * row_bytes(tensor) <= MOST_IN_MEMORY:
        return tensor[rows]
    taken = room((len(rows), *tensor.shape[1:]), tensor.dtype)
    for part in blocks(len(rows), row_bytes(tensor)):
        taken[part] = tensor[rows[part]]
    return taken
