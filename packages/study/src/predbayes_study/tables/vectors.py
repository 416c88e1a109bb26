"""Vectors of a column, read and checked: all rows of it in one tensor.

A vector is checked as a number is: by row, and no message repeats any of it. All rows together are
one tensor (N, size) in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predbayes.spill import blocks, room, row_bytes
from predbayes_study.plan.schema import Vector
from predbayes_study.tables.cells import MAX_CLIPPED, Masks, Outside
from predbayes_study.tables.problem import Kind
from predbayes_study.tables.vectorcells import DAMAGED, Array, StoredVector, is_vector

_FAULTS = (Kind.NO_VECTOR, Kind.SIZE, Kind.UNREADABLE)


def read_vectors(
    column: Vector, cells: Sequence[Any], outside: Outside
) -> tuple[Tensor, Masks, Masks]:
    """Read the vectors of a column: all rows in one tensor, which have a fault, and which are odd.

    Rows that are missing or have a fault are zeros.
    """
    rows = room((len(cells), column.size))
    found = {kind: np.zeros(len(cells), bool) for kind in (*_FAULTS, Kind.OUTSIDE)}
    for part in blocks(len(cells), row_bytes(rows)):
        together = _stored_together(cells[part])
        if together is not None and together.shape[1:] == (column.size,):
            _fill(column, together, rows[part], {kind: of[part] for kind, of in found.items()})
            continue
        for row in range(part.start, part.stop):
            if not (isinstance(cells[row], str) and not cells[row]):
                one = slice(row, row + 1)
                own = {kind: of[one] for kind, of in found.items()}
                _fill(column, _read(cells[row]), rows[one], own)
    beyond = found.pop(Kind.OUTSIDE)
    told = {Kind.OUTSIDE: beyond}
    many = beyond.sum() > MAX_CLIPPED * len(cells)
    if outside == "refuse" or (outside == "clip few" and many):
        return rows, found | told, {}
    return rows, found, told


def _stored_together(cells: Sequence[Any]) -> Array | None:
    """The vectors of cells that are rows of one store, in order: read at once."""
    first = cells[0]
    if not all(isinstance(cell, StoredVector) for cell in cells) or isinstance(first.store, list):
        return None
    are_next = (c.store is first.store and c.row == first.row + n for n, c in enumerate(cells))
    if not all(are_next):
        return None
    return np.asarray(first.store[first.row : first.row + len(cells)])


def _read(cell: Any) -> Array | None:
    """The vector of one cell, as a batch of one; None if there is none."""
    try:
        return cell.read()[None] if is_vector(cell) else None
    except DAMAGED:
        return None


def _fill(column: Vector, batch: Array | None, rows: Tensor, found: Masks) -> None:
    """Put a batch of vectors into rows, clipped to their range; note what is wrong with which."""
    if batch is None or batch.dtype.kind not in "fiub":
        found[Kind.NO_VECTOR][:] = True
    elif batch.shape[1:] != (column.size,):
        found[Kind.SIZE][:] = True
    else:
        numbers = _tensor(batch).float()
        finite = numbers.isfinite().all(1)
        found[Kind.UNREADABLE][:] = ~finite.numpy()
        known = numbers[finite]
        rows[finite] = known if column.range is None else known.clip(*column.range)
        if column.range is not None:
            found[Kind.OUTSIDE][:] = (finite & (rows != numbers).any(1)).numpy()


def _tensor(array: Array) -> Tensor:
    """Return a tensor of an array that is only read."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    known = native if native.dtype.kind != "u" or native.itemsize == 1 else native.astype(np.int64)
    return torch.from_numpy(known if known.flags.writeable else known.copy())


def moments(vectors: Tensor | None) -> tuple[float, float] | None:
    """Return mean and standard deviation of all numbers of a column; None if it has none."""
    if vectors is None or not vectors.numel():
        return None
    total, squares = 0.0, 0.0
    for part in blocks(len(vectors), row_bytes(vectors)):
        numbers = vectors[part].double().flatten()
        total += float(numbers.sum())
        squares += float(numbers.square().sum())
    mean = total / vectors.numel()
    return mean, math.sqrt(max(squares / vectors.numel() - mean**2, 0.0))
