"""From a table of a site's or a user's rows to the network's inputs, by the plan alone.

    cells        as they lie in the file, text or numbers, in the plan's units
    codes        (N, columns) float64: a number as it is, a category as its index, `other` as the
                 index after the last, NaN where nothing is known; 0 where there is a vector
    vectors      of each column of vectors, one tensor (N, size)
    inputs       (N, plan.num_inputs) float32: what the network sees

The first step checks, and says all that is wrong at once, by column and line and without ever
repeating a cell, because messages are copied into e-mails. The second is arithmetic with numbers
frozen in the plan, so the same cells become the same inputs at every site.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from predbayes.errors import DataError, PlanError
from predbayes.progress import each_column
from predbayes.spill import blocks, room, row_bytes, take
from predbayes_study.plan.schema import Column, Plan, Vector
from predbayes_study.tables.column import (
    MAX_CLIPPED,
    Array,
    Coded,
    Input,
    Masks,
    Outside,
    code_column,
    inputs_of,
    is_many,
)
from predbayes_study.tables.problem import Kind, Problem, least_cell
from predbayes_study.tables.reading import LINE
from predbayes_study.tables.vectors import DAMAGED, StoredVector, is_vector, vector_words
from predbayes_study.tasks import task_of

_VECTOR_FAULTS = (Kind.NO_VECTOR, Kind.SIZE, Kind.UNREADABLE)
_MAX_INPUT = 1e6  # in scales; far outside any range, and far inside float32


@dataclass(frozen=True, slots=True)
class Examined:
    """A table's codes, what makes them unusable, and what is odd but was put up with."""

    codes: Tensor  # (N, columns) float64
    problems: tuple[Problem, ...]
    oddities: tuple[Problem, ...]  # words that became `other`, numbers that were clipped
    vectors: dict[str, Tensor] = field(default_factory=dict)  # by column

    def require_sound(self, least: int = 0) -> None:
        """Refuse a table that does not fit the plan.

        The refusal tells counts from `least` on, in steps of it and without lines; all by default.
        """
        _require_none(self.problems, least)

    def at(self, rows: Tensor) -> Examined:
        """Return some rows of a table that has no problems."""
        vectors = {name: take(values, rows) for name, values in self.vectors.items()}
        return Examined(self.codes[rows], (), (), vectors)


def examine(plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse") -> Examined:
    """Code a table by the plan, and note everything that is wrong or odd with it.

    Columns may come in any order; those that the plan does not name are ignored.
    """
    least = least_cell(plan)
    codes = np.full((len(frame), len(plan.columns)), np.nan)
    problems: list[Problem] = []
    oddities: list[Problem] = []
    vectors: dict[str, Tensor] = {}
    for index, name in enumerate(each_column(plan.columns, "checking")):
        column = plan.columns[name]
        if column.optional and name not in frame.columns:
            continue
        if (whole := _column_problem(frame, name)) is not None:
            problems.append(whole)
            continue
        if isinstance(column, Vector):
            vectors[name], coded = _code_vectors(column, frame[name], outside, least)
        else:
            coded = code_column(column, frame[name], outside, least)
        if outside == "row by row":
            coded = coded.forgiven()
        codes[:, index] = coded.codes
        problems += _problems(name, column, coded.faults, frame)
        oddities += _problems(name, column, coded.oddities, frame)
    return Examined(torch.from_numpy(codes), tuple(problems), tuple(oddities), vectors)


def sound(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse", *, least: int = 0
) -> Examined:
    """Code a table; refuse one that does not fit the plan, as `Examined.require_sound` does."""
    examined = examine(plan, frame, outside)
    examined.require_sound(least)
    return examined


def code_table(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse", *, least: int = 0
) -> Tensor:
    """Return codes (N, columns) in float64; refuse a table as `sound` does."""
    return sound(plan, frame, outside, least=least).codes


def target_problems(plan: Plan, frame: pd.DataFrame) -> list[Problem]:
    """Find everything in the target's column that would be refused; labels may be missing."""
    return _examine_targets(plan, frame)[1]


def code_targets(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse", *, least: int = 0
) -> Tensor:
    """Return targets (N,) in float64 as the plan's task has them; NaN is missing.

    What is told of problems is as in `code_table`.
    """
    codes, problems = _examine_targets(plan, frame, outside)
    _require_none(problems, least)
    return codes


class Encoder(nn.Module):
    """Codes (N, columns) to network inputs (N, plan.num_inputs) in float32.

    A number becomes (x - centre) / scale, a category one 0/1 input for each word; what is missing
    becomes zeros, with a 1 beside them where the plan asks for a flag. The numbers of a vector are
    at the place of its column.
    """

    source: Tensor  # (I,) column of each input
    centre: Tensor  # (I,)
    scale: Tensor  # (I,)
    category: Tensor  # (I,) the code that makes a 0/1 input 1
    is_number: Tensor  # (I,)
    is_flag: Tensor  # (I,)

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        inputs = _inputs(plan)
        for part in fields(Input):
            kind = {"int": np.int64, "bool": np.bool_}.get(str(part.type), np.float64)
            values: Array = np.array([getattr(one, part.name) for one in inputs], dtype=kind)
            # The plan has them already.
            self.register_buffer(part.name, torch.from_numpy(values), persistent=False)

    def forward(self, codes: Tensor, *vectors: Tensor) -> Tensor:
        """Encode codes of any floating type, and the vectors of each column in order."""
        scalars = self._scalars(codes)
        if not self.plan.vectors:
            return scalars
        blocks, held, parts = _scalar_blocks(self.plan), iter(vectors), []
        for index, (name, column) in enumerate(self.plan.columns.items()):
            if isinstance(column, Vector):
                parts.append(_standard(column, next(held), codes[:, index].isnan()))
            parts.append(scalars[:, blocks[name]])
        filled = [part for part in parts if part.shape[1]]
        return torch.cat(filled, 1) if len(filled) > 1 else filled[0]

    def _scalars(self, codes: Tensor) -> Tensor:
        values = codes.double().index_select(1, self.source)
        missing = values.isnan()
        numbers = (torch.where(missing, self.centre, values) - self.centre) / self.scale
        # Numerics: a cell of 1e300 would be infinite in float32.
        numbers = numbers.clamp(-_MAX_INPUT, _MAX_INPUT)
        switches = (self.is_flag & missing) | (values == self.category)
        return torch.where(self.is_number, numbers, switches.double()).float()

    def in_blocks(self, examined: Examined) -> Tensor:
        """Encode some rows at a time: a step needs far more room than its result."""
        codes, width = examined.codes, self.plan.num_inputs
        inputs = room((len(codes), width))
        none = {name: torch.zeros(1, c.size) for name, c in self.plan.vectors.items()}
        for part in blocks(len(codes), width * inputs.itemsize):
            vectors = [
                examined.vectors[name][part]
                if name in examined.vectors
                else zeros.expand(part.stop - part.start, -1)
                for name, zeros in none.items()
            ]
            inputs[part] = self(codes[part], *vectors)
        return inputs


def encode(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse", *, least: int = 0
) -> Tensor:
    """Return a table's network inputs (N, plan.num_inputs) in float32."""
    return Encoder(plan).in_blocks(sound(plan, frame, outside, least=least))


# Targets and problems


def _examine_targets(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse"
) -> tuple[Tensor, list[Problem]]:
    absent = [problem for name in plan.outcomes if (problem := _column_problem(frame, name))]
    if absent:
        return torch.full((len(frame),), torch.nan, dtype=torch.float64), absent
    forms = plan.target.as_column(), plan.target.event_column()
    columns = dict(zip(plan.outcomes, forms, strict=False))
    coded = {name: code_column(column, frame[name]) for name, column in columns.items()}
    if outside == "row by row":
        coded = {name: column.forgiven() for name, column in coded.items()}
    codes = {name: column.codes for name, column in coded.items()}
    targets, faults = task_of(plan).encode(plan, codes)
    problems = [
        problem
        for name, column in columns.items()
        for problem in _problems(name, column, coded[name].faults | faults.get(name, {}), frame)
    ]
    return torch.from_numpy(targets), problems


def _column_problem(frame: pd.DataFrame, name: str) -> Problem | None:
    count = int((frame.columns == name).sum())
    return None if count == 1 else Problem(Kind.REPEATED if count else Kind.ABSENT, name)


def _problems(name: str, column: Column, masks: Masks, frame: pd.DataFrame) -> list[Problem]:
    known = frame.index.name == LINE
    lines = frame.index.to_numpy() if known else np.arange(2, len(frame) + 2)
    return [
        Problem(kind, name, tuple(lines[rows].tolist()), _detail(kind, column))
        for kind, rows in masks.items()
        if rows.any()
    ]


def _detail(kind: Kind, column: Column) -> str:
    if kind is Kind.SIZE and isinstance(column, Vector):
        return vector_words(column)
    if kind is not Kind.OUTSIDE or column.range is None:
        return ""
    return f"{column.range[0]:.12g} to {column.range[1]:.12g}"


def _require_none(problems: Sequence[Problem], least: int) -> None:
    if problems:
        told = "; ".join(problem.told(least) for problem in problems)
        raise DataError(f"the table does not fit the plan: {told}")


# Encoding


def _inputs(plan: Plan) -> list[Input]:
    inputs: list[Input] = []
    for source, (name, column) in enumerate(plan.columns.items()):
        if column.is_scaled and (column.centre is None or column.scale is None):
            raise PlanError(f"{name} has no centre and scale yet: run `predbayes plan freeze`")
        if not isinstance(column, Vector):
            inputs += inputs_of(column, source)
        if column.missing == "flag":
            inputs.append(Input(source, is_flag=True))
    return inputs


def _scalar_blocks(plan: Plan) -> dict[str, slice]:
    """The inputs of each column among those that are no vector: of a vector its flag."""
    blocks, start = {}, 0
    for name, column in plan.columns.items():
        is_vector = isinstance(column, Vector)
        stop = start + ((column.missing == "flag") if is_vector else column.width)
        blocks[name], start = slice(start, stop), stop
    return blocks


def _standard(column: Vector, vectors: Tensor, missing: Tensor) -> Tensor:
    """Vectors as inputs (N, size): in scales, zeros where they are missing."""
    assert column.centre is not None
    assert column.scale is not None
    # In place, because there may be many of them.
    inputs = vectors.to(torch.float32, copy=True).sub_(column.centre).div_(column.scale)
    return inputs.masked_fill_(missing[:, None], 0.0)


# Vectors


def _code_vectors(
    column: Vector, cells: pd.Series, outside: Outside, least: int
) -> tuple[Tensor, Coded]:
    """The vectors of a column, and 0 or NaN for each row."""
    vectors, faults, oddities = _read_vectors(column, list(cells), outside, least)
    missing = np.array([isinstance(cell, str) and not cell for cell in cells], bool)
    if column.missing == "refuse" and not (column.optional and missing.all()):
        faults[Kind.MISSING] = missing
    return vectors, Coded(np.where(missing, np.nan, 0.0), faults, oddities)


def _read_vectors(
    column: Vector, cells: Sequence[Any], outside: Outside, least: int
) -> tuple[Tensor, Masks, Masks]:
    """Read the vectors of a column: all rows in one tensor, which have a fault, and which are odd.

    Rows that are missing or have a fault are zeros.
    """
    rows = room((len(cells), column.size))
    found = {kind: np.zeros(len(cells), bool) for kind in (*_VECTOR_FAULTS, Kind.OUTSIDE)}
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
    many = is_many(beyond, MAX_CLIPPED * len(cells), least)
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
