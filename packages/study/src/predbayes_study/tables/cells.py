"""Cells of a table as numbers: the part of `coding` that needs no torch.

A file is read as it is. A column of it becomes codes, with a note of every cell that is wrong or
odd. Whoever drafts a plan or a `site.toml` needs no more, and so need not wait for torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import numpy as np
import pandas as pd

from predbayes.errors import DataError
from predbayes.optional import require
from predbayes_study.plan.schema import Category, Number
from predbayes_study.tables.problem import Kind
from predbayes_study.tables.textfile import (
    LINE,
    Remedies,
    read_csv,
    require_distinct,
    require_names,
)
from predbayes_study.tables.vectorcells import Array, vector_cells
from predbayes_study.tables.vocabulary import NUMBER_CODES

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
_DECIMAL_COMMA = re.compile(r"[+-]?\d[\d.]*,\d+", re.ASCII)
_ALIKE = ("string", "floating", "integer", "boolean")  # where equal cells mean the same
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


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


# Reading files


def _read_parquet(path: Path) -> pd.DataFrame:
    arrow, parquet = (
        require("pyarrow", "study[parquet]"),
        require("pyarrow.parquet", "study[parquet]"),
    )
    try:
        table = parquet.ParquetFile(path).read()
    except arrow.ArrowException as error:
        raise DataError(f"{path.name} is not a Parquet file") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or 'damaged'}") from error
    require_names(path, [name.strip() for name in table.column_names])
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    frame.columns = frame.columns.str.strip().str.normalize("NFC")
    for name, kind in zip(list(frame.columns), table.schema.types, strict=True):
        if arrow.types.is_list(kind) or arrow.types.is_fixed_size_list(kind):
            frame[name] = vector_cells(frame[name])
    # Where they would lie in a CSV file.
    frame.index = pd.RangeIndex(2, len(frame) + 2, name=LINE)
    return frame


# Coding columns

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
    texts, places = _distinct(cells)
    numbers = np.array([float(t) if NUMBER.fullmatch(t) else np.nan for t in texts])
    comma = np.array([_DECIMAL_COMMA.fullmatch(t) is not None for t in texts], dtype=bool)
    filled = np.array([t != "" for t in texts], dtype=bool)
    unreadable = filled & ~comma & ~np.isfinite(numbers)
    faults = {Kind.UNREADABLE: unreadable[places], Kind.COMMA: comma[places]}
    return Coded(numbers[places], faults)


def _code_words(cells: pd.Series, names: Sequence[str]) -> Array:
    """Indices of words in a list, and its length for words that are not in it."""
    indices = {name.strip(): index for index, name in enumerate(names)}
    # Many programs write a column of integers with an empty cell as 1.0, 2.0.
    for name, index in list(indices.items()):
        if _INTEGER.fullmatch(name):
            indices.setdefault(f"{name}.0", index)
    indices[""] = -1
    texts, places = _distinct(cells)
    codes = np.array([indices.get(t, len(names)) for t in texts], dtype=np.float64)
    return np.where(codes < 0, np.nan, codes)[places]


def _distinct(cells: pd.Series) -> tuple[list[str], Array]:
    """Distinct texts, as `as_texts` makes them, and where among them each cell is.

    A large table has few in most columns, and reading a text takes longer than finding it again.
    """
    if cells.isna().any() or pd.api.types.infer_dtype(cells) != "string":
        cells = pd.Series(as_texts(cells), dtype=object)  # 1, 1.0 and True are equal, and differ
    places, found = pd.factorize(cells.to_numpy(dtype=object))
    return [normalize("NFC", text.strip()) for text in found], places


def as_texts(cells: pd.Series) -> list[str]:
    """Return cells as stripped text, empty where missing; equal cells are one and the same text.

    A large table has few different cells in most columns, and would not fit into memory else.
    """
    if pd.api.types.infer_dtype(cells) in _ALIKE:
        places, found = pd.factorize(cells)  # -1, which is the last one, where missing
        texts = [*_each_text(pd.Series(found)), ""]
        return [texts[place] for place in places.tolist()]
    return _each_text(cells)


def _each_text(cells: pd.Series) -> list[str]:
    missing = cells.isna().to_numpy()
    pairs = zip(cells.astype(object).to_numpy(), missing, strict=True)
    return ["" if gone else normalize("NFC", str(cell).strip()) for cell, gone in pairs]
