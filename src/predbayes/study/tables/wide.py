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
from predbayes.study.tables.arraycells import DAMAGED, Array, is_array, is_bytes
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
    num = len(cells)
    rows = room((num, *column.form), array_dtype(column))
    found = {kind: np.zeros(num, bool) for kind in (*_FAULTS, Kind.OUTSIDE)}
    for row, cell in enumerate(cells):
        if isinstance(cell, str) and not cell:
            continue
        array, fault = _read(column, cell)
        if fault is not None:
            found[fault][row] = True
        if array is not None:
            rows[row] = torch.from_numpy(array).view(rows.shape[1:])
    beyond = found.pop(Kind.OUTSIDE)
    many = beyond.sum() > MAX_CLIPPED * num
    refused = outside == "refuse" or (outside == "clip few" and many)
    return (
        rows,
        found | ({Kind.OUTSIDE: beyond} if refused else {}),
        ({} if refused else {Kind.OUTSIDE: beyond}),
    )


def moments(arrays: Tensor | None) -> tuple[float, float] | None:
    """Return mean and standard deviation of all numbers of a column; None if it has none."""
    if arrays is None or not arrays.numel():
        return None
    total, squares = 0.0, 0.0
    for part in blocks(len(arrays), row_bytes(arrays)):
        numbers = arrays[part].double()
        total += float(numbers.sum())
        squares += float(numbers.square().sum())
    mean = total / arrays.numel()
    return mean, math.sqrt(max(squares / arrays.numel() - mean**2, 0.0))


def _read(column: Wide, cell: Any) -> tuple[Array | None, Kind | None]:
    """The array of a cell, clipped to its range; and what is wrong with it."""
    if not is_array(cell):
        return None, Kind.NO_ARRAY
    try:
        array = cell.read(column)
    except DAMAGED:
        return None, Kind.NO_ARRAY
    # An image of one channel may come without that axis.
    if array.shape not in {column.form, *([column.form[:2]] if column.form[2:] == (1,) else [])}:
        return None, Kind.SHAPE
    if is_bytes(column):
        return (np.array(array), None) if array.dtype == np.uint8 else (None, Kind.SHAPE)
    if array.dtype.kind not in "fiub":
        return None, Kind.NO_ARRAY
    numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        return None, Kind.UNREADABLE
    if column.range is None:
        return numbers, None
    clipped = numbers.clip(*column.range)
    return clipped, None if np.array_equal(clipped, numbers) else Kind.OUTSIDE
