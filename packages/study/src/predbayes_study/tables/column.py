"""One column of a table: its cells as text, as numbers, and as codes of a column of the plan.

A draft of a plan, a draft of a `site.toml`, the check of a table and extras all look at the same
`Cells`. None of them has to wait for torch. By the plan's column the cells become codes, with a
note of every cell that is wrong or odd, and a code becomes inputs of the network. `_TYPES` has both
for each type of column.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

import numpy as np
import pandas as pd

from predbayes_study.plan.schema import Category, Number, Scalar
from predbayes_study.tables.problem import FEWEST_TOLD, Kind
from predbayes_study.tables.vectors import holds_vectors
from predbayes_study.tables.vocabulary import MISSING_WORDS, NUMBER_CODES

Array = np.ndarray[Any, Any]
Masks = dict[Kind, Array]  # which rows have which problem

Outside = Literal["refuse", "clip", "clip few", "row by row"]
"""What a number outside its plausible range becomes: an error, or the end of the range.

`clip few` is for a site's own table. A number is clipped unless it looks like a code for missing,
or more than `MAX_CLIPPED` of the column are outside: then they are in another unit, or of another
column. In the same way words that are not listed are an error, whatever `other` says, if they are
more than `MAX_UNREAD` of the column. Where these let a single cell through, they let all counts
through that are not told: otherwise an error, or a warning, would tell how many exactly.

`row by row` is for a plan that promises differential privacy. What becomes of a cell depends on no
other one, and no cell is an error: a number is clipped, and what cannot be read, or is not listed,
is missing.
"""

MAX_CLIPPED = 0.05
MAX_UNREAD = 0.5

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d[\d.]*,\d+", re.ASCII)
_COMMA_NUMBER = re.compile(
    r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?|[+-]?\d{1,3}(\.\d{3}){2,}", re.ASCII
)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_ALIKE = ("string", "floating", "integer", "boolean")  # where equal cells mean the same


@dataclass(frozen=True, eq=False)  # without slots, where what is computed once is kept
class Cells:
    """One column of a table as it is in the file."""

    name: str
    series: pd.Series
    decimal: str = "."
    least: int = FEWEST_TOLD  # count of cells that may be told

    @classmethod
    def of(cls, raw: pd.DataFrame, name: str, decimal: str = ".") -> Cells:
        """Return a column of a table that `read_raw` or `read_frame` gave."""
        return cls(name, raw[name], decimal)

    @classmethod
    def of_all(cls, raw: pd.DataFrame, decimal: str) -> list[Cells]:
        """Return all columns that have a name and are text."""
        named = [cls.of(raw, str(name), decimal) for name in raw.columns if name]
        return [one for one in named if not holds_vectors(one.series)]

    @cached_property
    def distinct(self) -> tuple[list[str], Array]:
        """Distinct texts, stripped and "" where missing, and which of them each row has.

        A large table has few in most columns, and reading a text takes longer than finding it.
        """
        cells = self.series
        if cells.isna().any() or pd.api.types.infer_dtype(cells) != "string":
            # 1, 1.0 and True are equal, and differ.
            cells = pd.Series(as_texts(cells), dtype=object)
        places, found = pd.factorize(cells.to_numpy(dtype=object))
        return [normalize("NFC", text.strip()) for text in found], places

    @cached_property
    def counts(self) -> dict[str, int]:
        """Rows by text, in the order of their first ones; empty cells are left out."""
        texts, places = self.distinct
        rows: Counter[str] = Counter()
        for text, count in zip(texts, np.bincount(places, minlength=len(texts)), strict=True):
            if text:
                rows[text] += int(count)
        return dict(rows)

    @property
    def num_filled(self) -> int:
        """Rows whose cell is not empty."""
        return sum(self.counts.values())

    @cached_property
    def known(self) -> dict[str, int]:
        """Rows by text without words for missing; whole numbers in one spelling."""
        words: Counter[str] = Counter()
        for text, count in self.counts.items():
            if text.lower() not in MISSING_WORDS:
                words[key_of(text, self.decimal)] += count
        return dict(words)

    @property
    def num_known(self) -> int:
        """Rows whose cell is neither empty nor a word for missing."""
        return sum(self.known.values())

    @cached_property
    def no_numbers(self) -> dict[str, int]:
        """Rows by text of what is known and no number."""
        return {w: n for w, n in self.known.items() if to_number(w, self.decimal) is None}

    @cached_property
    def number_counts(self) -> dict[float, int]:
        """Rows by number."""
        numbers: Counter[float] = Counter()
        for text, count in self.counts.items():
            number = to_number(text, self.decimal)
            if number is not None:
                numbers[number] += count
        return dict(numbers)

    @cached_property
    def numbers(self) -> Array:
        """The finite number of each row; NaN where there is none."""
        if pd.api.types.is_numeric_dtype(self.series):
            numbers = self.series.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            texts, places = self.distinct
            read = (to_number(text, self.decimal) for text in texts)
            numbers = np.array([np.nan if n is None else n for n in read], np.float64)[places]
        return np.where(np.isinf(numbers), np.nan, numbers)


@dataclass(frozen=True, slots=True)
class Coded:
    """One column's codes; a row with a fault has a code of no meaning."""

    codes: Array  # (N,)
    faults: Masks
    oddities: Masks = field(default_factory=dict)

    @property
    def faulty(self) -> Array:
        """Which rows have some fault."""
        none = np.zeros(len(self.codes), bool)
        some: Array = np.logical_or.reduce([none, *self.faults.values()])
        return some

    @property
    def missing(self) -> Array:
        """Which rows have no value, and nothing else is wrong or odd with them."""
        odd = Coded(self.codes, self.oddities).faulty
        return np.isnan(self.codes) & ~self.faulty & ~odd

    def forgiven(self) -> Coded:
        """The same with faulty cells as missing ones."""
        return Coded(np.where(self.faulty, np.nan, self.codes), {}, self.oddities)


def code_column(
    column: Scalar, cells: pd.Series, outside: Outside = "refuse", least: int = FEWEST_TOLD
) -> Coded:
    """Code the cells of one column, and note which are wrong or odd.

    No verdict on the column tells a count of cells that is below `least`.
    """
    coded = _TYPES[column.type].code(column, Cells(str(cells.name), cells, least=least), outside)
    missing = coded.missing
    # A column without a single value is as good as none.
    if column.missing == "refuse" and not (column.optional and missing.all()):
        coded.faults[Kind.MISSING] = missing
    return coded


def is_many(rows: Array, most: float, least: int) -> bool:
    """Return whether more rows than so many have something; where some may, fewer than told may."""
    return bool(rows.sum() > (most if most < 1 else max(most, least - 1)))


def _code_number(column: Number, cells: Cells, outside: Outside) -> Coded:
    """A number is its code; a decimal comma has a fault of its own."""
    numbers = cells.numbers
    if pd.api.types.is_numeric_dtype(cells.series):
        faults = {Kind.UNREADABLE: np.isnan(numbers) & ~cells.series.isna().to_numpy()}
    else:
        texts, places = cells.distinct
        comma = np.array([_DECIMAL_COMMA.fullmatch(t) is not None for t in texts], dtype=bool)
        filled = np.array([t != "" for t in texts], dtype=bool)
        unreadable = filled[places] & ~comma[places] & np.isnan(numbers)
        faults = {Kind.UNREADABLE: unreadable, Kind.COMMA: comma[places]}
    if column.range is None:
        return Coded(numbers, faults)
    least, greatest = column.range
    beyond = (numbers < least) | (numbers > greatest)
    if outside == "clip few":
        many = is_many(beyond, MAX_CLIPPED * np.isfinite(numbers).sum(), cells.least)
        refused = beyond & (np.full(len(numbers), many) | np.isin(numbers, list(NUMBER_CODES)))
    else:
        refused = beyond & np.full(len(numbers), outside == "refuse")
    clipped = np.where(refused, numbers, numbers.clip(least, greatest))
    return Coded(clipped, faults | {Kind.OUTSIDE: refused}, {Kind.OUTSIDE: beyond & ~refused})


def _code_word(column: Category, cells: Cells, outside: Outside) -> Coded:
    """A word's code is its index in the plan's list, or behind the last for every other word."""
    names = column.categories
    indices = {name.strip(): index for index, name in enumerate(names)}
    # Many programs write a column of integers with an empty cell as 1.0, 2.0.
    for name, index in list(indices.items()):
        if _INTEGER.fullmatch(name):
            indices.setdefault(f"{name}.0", index)
    indices[""] = -1
    texts, places = cells.distinct
    codes = np.array([indices.get(t, len(names)) for t in texts], dtype=np.float64)
    codes = np.where(codes < 0, np.nan, codes)[places]
    unlisted = {Kind.UNLISTED: codes == len(names)}
    most = MAX_UNREAD * np.isfinite(codes).sum()
    many = is_many(unlisted[Kind.UNLISTED], most, cells.least)
    is_wrong = not column.other or (many and outside == "clip few")
    return Coded(codes, unlisted) if is_wrong else Coded(codes, {}, unlisted)


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the network: a number, a flag, or a 0/1 input for one category."""

    source: int  # place of its column
    centre: float = 0.0
    scale: float = 1.0
    category: float = math.nan  # the code that makes it 1; which equals no code: none does
    is_number: bool = False
    is_flag: bool = False


def inputs_of(column: Scalar, source: int) -> list[Input]:
    """Return the inputs of one column without its flag."""
    return _TYPES[column.type].inputs(column, source)


def _number_input(column: Number, source: int) -> list[Input]:
    assert column.centre is not None
    assert column.scale is not None
    return [Input(source, column.centre, column.scale, is_number=True)]


def _word_inputs(column: Category, source: int) -> list[Input]:
    num_words = len(column.categories) + column.other
    return [Input(source, category=float(code)) for code in range(num_words)]


class _Type(NamedTuple):
    """What a table's cells are, by the type of the plan's column."""

    code: Callable[[Any, Cells, Outside], Coded]
    inputs: Callable[[Any, int], list[Input]]


_TYPES: Mapping[str, _Type] = {
    "number": _Type(_code_number, _number_input),
    "category": _Type(_code_word, _word_inputs),
}
"""By type; vectors are read in `coding`, and only their flag is an input here."""


# Texts and numbers


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


def to_point(text: str, decimal: str) -> str | None:
    """Return a number with a decimal point; None if it could be read in two ways.

    What is no number stays as it is: whoever reads it next says so.

    Examples:
        >>> to_point("1.234,5", ","), to_point("12", ","), to_point("leer", ",")
        ('1234.5', '12', 'leer')
        >>> to_point("1.234", ",") is None
        True
    """
    if decimal == ".":
        return text
    if _COMMA_NUMBER.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return None if "." in text and _NUMBER.fullmatch(text) else text


def to_number(text: str, decimal: str = ".") -> float | None:
    """Return the number that a cell is, if it is one."""
    pointed = to_point(text, decimal)
    if pointed is None or not _NUMBER.fullmatch(pointed):
        return None
    return float(pointed)


def key_of(text: str, decimal: str = ".", *, is_number: bool = False) -> str:
    """Return one key for all ways to write a code: 0 is 0.0, and in words 1 is 1.0.

    Examples:
        >>> key_of("1.0"), key_of("-9,00", ","), key_of("1.50"), key_of("01")
        ('1', '-9', '1.50', '01')
        >>> key_of("1.50", is_number=True), key_of("leer", is_number=True)
        ('1.5', 'leer')
    """
    if is_number:
        number = to_number(text, decimal)
        return text if number is None else f"{number + 0.0:.15g}"  # -0 is 0
    whole = re.fullmatch(rf"([+-]?\d+){re.escape(decimal)}0+", text, re.ASCII)
    return whole.group(1) if whole else text
