"""Tables that are text: one reader for reference rows, for rows to predict and for a site's file.

Every cell is stripped text, empty where nothing is there, and the frame's index has the rows' lines
in the file. What to do about a file that is written in another way depends on whose it is: the
coordinator saves hers again, a site describes its own. So the reader is told the remedies. No
message repeats a cell, nor the first line's words: in a file without a header they are cells.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import itertools
import unicodedata
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pandas.api.types import is_numeric_dtype

from predbayes.errors import DataError
from predbayes.text import from_cell, to_cell
from predbayes_study.tables.problem import listed

LINE = "line"
"""Name of a frame's index where it holds the rows' lines in their file."""

DELIMITERS = (",", ";", "\t", "|")
"""Those that programs write."""

_MAX_TEXTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Remedies:
    """What is said of a file that is written in another way, and what to do about it."""

    encoding: str  # after "FILE is not UTF-8 text: "
    delimiter: str  # after "FILE "
    ragged: str = ""  # after the lines of which that is so


def read_csv(
    path: Path,
    remedies: Remedies,
    *,
    delimiter: str = ",",
    encoding: str = "UTF-8",
    blank_rows: bool = True,
    skip: int = 0,
) -> pd.DataFrame:
    """Read a file's rows by line; names of columns may be there twice.

    Args:
        path: The file.
        remedies: For its owner.
        delimiter: Between cells.
        encoding: A byte order mark is no part of the first name.
        blank_rows: Whether a line of delimiters alone is a row; an empty line is none.
        skip: Lines above the names, such as titles.
    """
    lines: list[int] = []
    rows: list[list[str]] = []
    once = _Once()
    # Closed here: whoever holds on to an error would hold on to the file.
    with contextlib.closing(_decoded(path, encoding, remedies)) as decoded:
        reader = csv.reader(itertools.islice(decoded, skip, None), delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            require_names(path, header)
            _require_split(path, header, delimiter, remedies)
            begins = skip + reader.line_num + 1
            for row in reader:
                cells = [once(cell.strip()) for cell in row]
                if any(cells) or (cells and blank_rows):
                    lines.append(begins)
                    rows.append(cells)
                begins = skip + reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{path.name}: line {skip + reader.line_num} is not CSV; look for a stray "
                "quotation mark"
            ) from error
    ragged = [line for line, row in zip(lines, rows, strict=True) if len(row) != len(header)]
    if ragged:
        have = "line has" if len(ragged) == 1 else "lines have"
        raise DataError(
            f"{path.name}: {len(ragged)} {have} another number of cells than the header's "
            f"{len(header)} ({listed(ragged)}){remedies.ragged}"
        )
    return pd.DataFrame(rows, pd.Index(lines, name=LINE), header, dtype=object)


def to_csv(frame: pd.DataFrame, float_format: str | None = None) -> str:
    """Return a table as CSV in which no cell and no name is a formula: see `to_cell`."""
    texts = frame.apply(_guarded)
    texts.columns = [to_cell(str(name)) for name in frame.columns]
    return str(texts.to_csv(index=False, float_format=float_format, lineterminator="\n"))


def _guarded(column: pd.Series) -> pd.Series:
    if is_numeric_dtype(column):
        return column
    return column.map(lambda cell: to_cell(cell) if isinstance(cell, str) else cell)


def from_csv(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table as it was before `to_csv` wrote it."""
    texts = frame.map(from_cell)
    texts.columns = [from_cell(name) for name in frame.columns]
    return texts


def require_names(path: Path, header: Sequence[str]) -> None:
    """Refuse a table without a line of names."""
    if not any(header):
        raise DataError(f"{path.name} does not begin with a line of column names")


def require_distinct(path: Path, names: Sequence[Hashable]) -> None:
    """Refuse a table with two columns of the same name."""
    seen: dict[Hashable, int] = {}
    for number, name in enumerate(names, start=1):
        if name in seen:
            raise DataError(f"{path.name}: columns {seen[name]} and {number} have the same name")
        seen[name] = number


class _Once(dict[str, str]):
    """Keeps equal texts once: most columns of a large table have few."""

    def __call__(self, text: str) -> str:
        return self.setdefault(text, text) if len(self) < _MAX_TEXTS else self.get(text, text)


def _decoded(path: Path, encoding: str, remedies: Remedies) -> Generator[str, None, None]:
    """Yield the lines of a file, which is never in memory as a whole."""
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    try:
        with path.open(encoding="utf-8-sig" if is_utf8 else encoding, newline="") as file:
            for line in file:
                if "\0" in line:
                    raise DataError(f"{path.name} is not text: save it as CSV {encoding}")
                # As plans are written, so that words are equal.
                yield unicodedata.normalize("NFC", line)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeError, LookupError) as error:
        raise DataError(f"{path.name} is not {encoding} text: {remedies.encoding}") from error


def _require_split(path: Path, header: Sequence[str], delimiter: str, remedies: Remedies) -> None:
    others = [mark for mark in DELIMITERS if mark != delimiter]
    if len(header) == 1 and any(mark in header[0] for mark in others):
        raise DataError(f"{path.name} {remedies.delimiter}")
