"""From a table of a site's or a user's rows to the network's inputs, by the plan alone.

    cells        as they lie in the file, text or numbers, in the plan's units
    codes        (N, columns) float64: a number as it is, a category as its index, `other` as the
                 index after the last, NaN where nothing is known
    inputs       (N, plan.num_inputs) float32: what the network sees

The first step checks, and says all that is wrong at once, by column and line and without ever
repeating a cell, because messages are copied into e-mails. The second is arithmetic with numbers
frozen in the plan, so the same cells become the same inputs at every site.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from predbayes.errors import DataError, PlanError
from predbayes.optional import require
from predbayes.study.plan.schema import Category, Number, Plan
from predbayes.study.tables.problem import Kind, Problem
from predbayes.study.tables.textfile import (
    LINE,
    Remedies,
    read_csv,
    require_distinct,
    require_names,
)
from predbayes.study.tables.vocabulary import NUMBER_CODES

Outside = Literal["refuse", "clip", "clip few"]
"""What a number outside its plausible range becomes: an error, or the end of the range.

`clip few` is for a site's own table. A number is clipped unless it looks like a code for missing,
or more than `MAX_CLIPPED` of the column are outside: then they are in another unit, or of another
column. Likewise words that are not listed are an error, whatever `other` says, if they are more
than `MAX_UNREAD` of the column.
"""

MAX_CLIPPED = 0.05
MAX_UNREAD = 0.5

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""How a number is written."""

_SAVE = Remedies(
    encoding="save it as CSV UTF-8",
    delimiter="is not separated by commas: save it as CSV with commas",
)
_MAX_INPUT = 1e6  # in scales; far outside any range, and far inside float32
_DECIMAL_COMMA = re.compile(r"[+-]?\d[\d.]*,\d+", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Examined:
    """A table's codes, what makes them unusable, and what is odd but was put up with."""

    codes: Tensor  # (N, columns) float64
    problems: tuple[Problem, ...]
    oddities: tuple[Problem, ...]  # words that became `other`, numbers that were clipped


def read_frame(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file as it is; in a CSV every cell is text, empty where missing.

    The frame's index is the rows' lines in the file.
    """
    match path.suffix.lower():
        case ".csv":
            frame = read_csv(path, _SAVE)
        case ".parquet":
            frame = _read_parquet(path)
        case suffix:
            raise DataError(
                f"{path.name}: {suffix or 'a file without a suffix'} is not read; "
                "save the table as .csv, separated by commas, or as .parquet"
            )
    require_distinct(path, frame.columns)
    if frame.empty:
        raise DataError(f"{path.name} has no rows")
    return frame


def examine(plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse") -> Examined:
    """Code a table by the plan, and note everything that is wrong or odd with it.

    Columns may come in any order; those that the plan does not name are ignored.
    """
    codes = np.full((len(frame), len(plan.columns)), np.nan)
    problems: list[Problem] = []
    oddities: list[Problem] = []
    for index, (name, column) in enumerate(plan.columns.items()):
        if column.optional and name not in frame.columns:
            continue
        if (whole := _column_problem(frame, name)) is not None:
            problems.append(whole)
            continue
        coded = code_column(column, frame[name], outside)
        codes[:, index] = coded.codes
        problems += _problems(name, column, coded.faults, frame)
        oddities += _problems(name, column, coded.oddities, frame)
    return Examined(torch.from_numpy(codes), tuple(problems), tuple(oddities))


def code_table(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse", *, least: int = 0
) -> Tensor:
    """Return codes (N, columns) in float64; refuse a table that does not fit the plan.

    The refusal tells counts from `least` on, in steps of it and without lines; all by default.
    """
    examined = examine(plan, frame, outside)
    _require_none(examined.problems, least)
    return examined.codes


def target_problems(plan: Plan, frame: pd.DataFrame) -> list[Problem]:
    """Find everything in the target's column that would be refused; labels may be missing."""
    return _examine_targets(plan, frame)[1]


def code_targets(plan: Plan, frame: pd.DataFrame, *, least: int = 0) -> Tensor:
    """Return targets (N,) in float64: classes, or numbers in standard units; NaN is missing.

    Standard units are (t - centre) / scale of the transformed target t; a plan that has no centre
    and scale yet leaves t as it is. What is told of problems is as in `code_table`.
    """
    codes, problems = _examine_targets(plan, frame)
    _require_none(problems, least)
    return codes


def untransform(plan: Plan, values: Tensor) -> Tensor:
    """Take quantiles of a regression's target from standard units to its own unit."""
    centre, scale = target_units(plan)
    transformed = centre + scale * values
    return transformed.exp() if plan.target.transform == "log" else transformed


def target_units(plan: Plan) -> tuple[float, float]:
    """Return centre and scale of the transformed target: 0 and 1 where the plan has none yet."""
    centre, scale = plan.target.centre, plan.target.scale
    return 0.0 if centre is None else centre, 1.0 if scale is None else scale


class Encoder(nn.Module):
    """Codes (N, columns) to network inputs (N, plan.num_inputs) in float32.

    A number becomes (x - centre) / scale, a category one 0/1 input for each word; what is missing
    becomes zeros, with a 1 beside them where the plan asks for a flag.
    """

    source: Tensor  # (I,) column of each input
    centre: Tensor  # (I,)
    scale: Tensor  # (I,)
    category: Tensor  # (I,) the code that makes a 0/1 input 1
    is_number: Tensor  # (I,)
    is_flag: Tensor  # (I,)

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        inputs = _inputs(plan)
        for part in fields(_Input):
            values = np.array([getattr(one, part.name) for one in inputs])  # floats are float64
            # The plan has them already.
            self.register_buffer(part.name, torch.from_numpy(values), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Encode codes of any floating type."""
        values = codes.double().index_select(1, self.source)
        missing = values.isnan()
        numbers = (torch.where(missing, self.centre, values) - self.centre) / self.scale
        # Numerics: a cell of 1e300 would be infinite in float32.
        numbers = numbers.clamp(-_MAX_INPUT, _MAX_INPUT)
        switches = (self.is_flag & missing) | (values == self.category)
        return torch.where(self.is_number, numbers, switches.double()).float()


def encode(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse", *, least: int = 0
) -> Tensor:
    """Return a table's network inputs (N, plan.num_inputs) in float32."""
    inputs: Tensor = Encoder(plan)(code_table(plan, frame, outside, least=least))
    return inputs


# Reading files


def _read_parquet(path: Path) -> pd.DataFrame:
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    try:
        table = parquet.ParquetFile(path).read()
    except arrow.ArrowException as error:
        raise DataError(f"{path.name} is not a Parquet file") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or 'damaged'}") from error
    require_names(path, [name.strip() for name in table.column_names])
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    frame.columns = frame.columns.str.strip().str.normalize("NFC")
    # Where they would lie in a CSV file.
    frame.index = pd.RangeIndex(2, len(frame) + 2, name=LINE)
    return frame


# Coding columns

Array = np.ndarray[Any, Any]
Masks = dict[Kind, Array]  # which rows have which problem


@dataclass(frozen=True, slots=True)
class Coded:
    """One column's codes; a row with a fault has a code of no meaning."""

    codes: Array  # (N,)
    faults: Masks
    oddities: Masks = field(default_factory=dict)


def code_column(column: Number | Category, cells: pd.Series, outside: Outside = "refuse") -> Coded:
    """Code the cells of one column, and note which are wrong or odd."""
    if isinstance(column, Number):
        coded = _in_range(_code_numbers(cells), column, outside)
    else:
        coded = _in_list(_code_words(cells, column.categories), column, outside)
    faulty = np.logical_or.reduce([np.zeros(len(cells), bool), *coded.faults.values()])
    missing = np.isnan(coded.codes) & ~faulty
    # A column without a single value is as good as none.
    if column.missing == "refuse" and not (column.optional and missing.all()):
        coded.faults[Kind.MISSING] = missing
    return coded


def _in_range(coded: Coded, column: Number, outside: Outside) -> Coded:
    """Numbers against their plausible range."""
    if column.range is None:
        return coded
    least, greatest = column.range
    beyond = (coded.codes < least) | (coded.codes > greatest)
    refused = beyond & _refused(coded.codes, beyond, outside)
    clipped = np.where(refused, coded.codes, coded.codes.clip(least, greatest))
    return Coded(
        clipped,
        coded.faults | {Kind.OUTSIDE: refused},
        coded.oddities | {Kind.OUTSIDE: beyond & ~refused},
    )


def _refused(numbers: Array, beyond: Array, outside: Outside) -> Array:
    """Which numbers would be an error if they are out of range."""
    if outside != "clip few":
        return np.full(len(numbers), outside == "refuse")
    many = beyond.sum() > MAX_CLIPPED * np.isfinite(numbers).sum()
    return np.full(len(numbers), many) | np.isin(numbers, list(NUMBER_CODES))


def _in_list(codes: Array, column: Category, outside: Outside) -> Coded:
    """Words that the plan does not list are `other`, if there is such a category."""
    unlisted = {Kind.UNLISTED: codes == len(column.categories)}
    many = unlisted[Kind.UNLISTED].sum() > MAX_UNREAD * np.isfinite(codes).sum()
    is_wrong = not column.other or (many and outside == "clip few")
    return Coded(codes, unlisted) if is_wrong else Coded(codes, {}, unlisted)


def _code_numbers(cells: pd.Series) -> Coded:
    """Numbers, and what is not one; text in a decimal comma has a fault of its own."""
    if pd.api.types.is_numeric_dtype(cells):
        numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
        return Coded(numbers, {Kind.UNREADABLE: np.isinf(numbers)})
    texts = as_texts(cells)
    numbers = np.array([float(t) if NUMBER.fullmatch(t) else np.nan for t in texts])
    comma = np.array([_DECIMAL_COMMA.fullmatch(t) is not None for t in texts], dtype=bool)
    filled = np.array([t != "" for t in texts], dtype=bool)
    unreadable = filled & ~comma & ~np.isfinite(numbers)
    return Coded(numbers, {Kind.UNREADABLE: unreadable, Kind.COMMA: comma})


def _code_words(cells: pd.Series, names: Sequence[str]) -> Array:
    """Indices of words in a list, and its length for words that are not in it."""
    indices = {name.strip(): index for index, name in enumerate(names)}
    # Many programs write a column of integers with an empty cell as 1.0, 2.0.
    for name, index in list(indices.items()):
        if _INTEGER.fullmatch(name):
            indices.setdefault(f"{name}.0", index)
    indices[""] = -1
    codes = np.array([indices.get(t, len(names)) for t in as_texts(cells)], dtype=np.float64)
    return np.where(codes < 0, np.nan, codes)


def as_texts(cells: pd.Series) -> list[str]:
    """Return cells as stripped text, empty where missing."""
    missing = cells.isna().to_numpy()
    pairs = zip(cells.astype(object).to_numpy(), missing, strict=True)
    return ["" if gone else normalize("NFC", str(cell).strip()) for cell, gone in pairs]


def _examine_targets(plan: Plan, frame: pd.DataFrame) -> tuple[Tensor, list[Problem]]:
    target, column = plan.target, plan.target.as_column()
    if (whole := _column_problem(frame, target.name)) is not None:
        return torch.full((len(frame),), torch.nan, dtype=torch.float64), [whole]
    coded = code_column(column, frame[target.name])
    if not plan.classification:
        coded = _in_standard_units(plan, coded)
    return torch.from_numpy(coded.codes), _problems(target.name, column, coded.faults, frame)


def _in_standard_units(plan: Plan, coded: Coded) -> Coded:
    centre, scale = target_units(plan)
    values, faults = coded.codes, coded.faults
    if plan.target.transform == "log":
        faults = faults | {Kind.NOT_POSITIVE: values <= 0}
        values = np.log(np.where(values > 0, values, np.nan))
    return Coded((values - centre) / scale, faults)


def _column_problem(frame: pd.DataFrame, name: str) -> Problem | None:
    count = int((frame.columns == name).sum())
    return None if count == 1 else Problem(Kind.REPEATED if count else Kind.ABSENT, name)


def _problems(
    name: str, column: Number | Category, masks: Masks, frame: pd.DataFrame
) -> list[Problem]:
    known = frame.index.name == LINE
    lines = frame.index.to_numpy() if known else np.arange(2, len(frame) + 2)
    return [
        Problem(kind, name, tuple(lines[rows].tolist()), _detail(kind, column))
        for kind, rows in masks.items()
        if rows.any()
    ]


def _detail(kind: Kind, column: Number | Category) -> str:
    if kind is not Kind.OUTSIDE or not isinstance(column, Number) or column.range is None:
        return ""
    return f"{column.range[0]:.12g} to {column.range[1]:.12g}"


def _require_none(problems: Sequence[Problem], least: int) -> None:
    if problems:
        told = "; ".join(problem.told(least) for problem in problems)
        raise DataError(f"the table does not fit the plan: {told}")


# Encoding


@dataclass(frozen=True, slots=True)
class _Input:
    """One input of the network: a number, a flag, or a 0/1 input for one category."""

    source: int
    centre: float = 0.0
    scale: float = 1.0
    category: float = math.nan  # which equals no code
    is_number: bool = False
    is_flag: bool = False


def _inputs(plan: Plan) -> list[_Input]:
    inputs: list[_Input] = []
    for source, (name, column) in enumerate(plan.columns.items()):
        if isinstance(column, Category):
            num_words = len(column.categories) + column.other
            inputs += [_Input(source, category=float(code)) for code in range(num_words)]
        elif column.centre is None or column.scale is None:
            raise PlanError(f"{name} has no centre and scale yet: run `predbayes plan freeze`")
        else:
            inputs.append(_Input(source, column.centre, column.scale, is_number=True))
        if column.missing == "flag":
            inputs.append(_Input(source, is_flag=True))
    return inputs
