"""Arrays of a column, read and checked: all rows of it in one tensor.

An array is checked as a number is: by row, and no message repeats any of it. All rows together are
one tensor (N, height, width, channels) or (N, size): bytes for images of 0 to 255, else float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predbayes.spill import blocks, room, row_bytes
from predbayes.study.plan.schema import Wide
from predbayes.study.tables.arraycells import DAMAGED, Array, StoredArray, is_array, is_bytes
from predbayes.study.tables.cells import MAX_CLIPPED, Masks, Outside
from predbayes.study.tables.problem import Kind

_FAULTS = (Kind.NO_ARRAY, Kind.SHAPE, Kind.UNREADABLE)


def array_dtype(column: Wide) -> torch.dtype:
    """Return the type in which the arrays of a column are kept."""
    return torch.uint8 if is_bytes(column) else torch.float32


def read_arrays(
    column: Wide, cells: Sequence[Any], outside: Outside
) -> tuple[Tensor, Masks, Masks]:
    """Read the arrays of a column: all rows in one tensor, which have a fault, and which are odd.

    Rows that are missing or have a fault are zeros.
    """
    rows = room((len(cells), *column.form), array_dtype(column))
    found = {kind: np.zeros(len(cells), bool) for kind in (*_FAULTS, Kind.OUTSIDE)}
    for part in blocks(len(cells), row_bytes(rows)):
        together = _stored_together(cells[part])
        if together is not None and together.shape[1:] in _forms(column):
            _fill(column, together, rows[part], {kind: of[part] for kind, of in found.items()})
            continue
        for row in range(part.start, part.stop):
            if not (isinstance(cells[row], str) and not cells[row]):
                one = slice(row, row + 1)
                own = {kind: of[one] for kind, of in found.items()}
                _fill(column, _read(column, cells[row]), rows[one], own)
    beyond = found.pop(Kind.OUTSIDE)
    told = {Kind.OUTSIDE: beyond}
    many = beyond.sum() > MAX_CLIPPED * len(cells)
    if outside == "refuse" or (outside == "clip few" and many):
        return rows, found | told, {}
    return rows, found, told


def _stored_together(cells: Sequence[Any]) -> Array | None:
    """The arrays of cells that are rows of one store, in order: read at once."""
    first = cells[0]
    if not all(isinstance(cell, StoredArray) for cell in cells) or isinstance(first.store, list):
        return None
    are_next = (c.store is first.store and c.row == first.row + n for n, c in enumerate(cells))
    if not all(are_next):
        return None
    return np.asarray(first.store[first.row : first.row + len(cells)])


def _read(column: Wide, cell: Any) -> Array | None:
    """The array of one cell, as a batch of one; None if there is none."""
    try:
        return cell.read(column)[None] if is_array(cell) else None
    except DAMAGED:
        return None


def _forms(column: Wide) -> tuple[tuple[int, ...], ...]:
    """Shapes that an array may come in: an image of one channel also without that axis."""
    return (column.form, column.form[:2]) if column.form[2:] == (1,) else (column.form,)


def _fill(column: Wide, batch: Array | None, rows: Tensor, found: Masks) -> None:
    """Put a batch of arrays into rows, clipped to their range; note what is wrong with which."""
    if batch is None or batch.dtype.kind not in "fiub":
        found[Kind.NO_ARRAY][:] = True
    elif batch.shape[1:] not in _forms(column) or (is_bytes(column) and batch.dtype != np.uint8):
        found[Kind.SHAPE][:] = True
    elif is_bytes(column):
        rows[:] = _tensor(batch).view(rows.shape)
    else:
        numbers = _tensor(batch).float().view(rows.shape)
        finite = numbers.flatten(1).isfinite().all(1)
        found[Kind.UNREADABLE][:] = ~finite.numpy()
        known = numbers[finite]
        rows[finite] = known if column.range is None else known.clip(*column.range)
        if column.range is not None:
            found[Kind.OUTSIDE][:] = (finite & (rows != numbers).flatten(1).any(1)).numpy()


def _tensor(array: Array) -> Tensor:
    """A tensor of an array that nobody writes to."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    known = native if native.dtype.kind != "u" or native.itemsize == 1 else native.astype(np.int64)
    return torch.from_numpy(known if known.flags.writeable else known.copy())


def moments(arrays: Tensor | None) -> tuple[float, float] | None:
    """Return mean and standard deviation of all numbers of a column; None if it has none."""
    if arrays is None or not arrays.numel():
        return None
    total, squares = 0.0, 0.0
    for part in blocks(len(arrays), row_bytes(arrays)):
        numbers = arrays[part]
        if numbers.dtype == torch.uint8:  # of few values it is faster to count each
            counts = torch.bincount(numbers.flatten(), minlength=256).double()
            values = torch.arange(256).double()
        else:
            values, counts = numbers.double().flatten(), torch.ones((), dtype=torch.float64)
        total += float((counts * values).sum())
        squares += float((counts * values.square()).sum())
    mean = total / arrays.numel()
    return mean, math.sqrt(max(squares / arrays.numel() - mean**2, 0.0))
