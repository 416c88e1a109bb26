"""How a table of text is written, by its bytes; and reference rows however they are written.

A site says in `site.toml` how its program writes tables, or lets `--suggest` find out. The
coordinator has no such file, so hers is found out whenever it is read: delimiter, decimal mark and
encoding, by what makes sense of the first lines.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from predbayes.errors import DataError
from predbayes_study.tables.binary import BINARY, SHEETS, filled_cells, read_binary
from predbayes_study.tables.cells import read_frame
from predbayes_study.tables.mapping import SUFFIXES, read_raw, to_point
from predbayes_study.tables.sitefile import FileForm
from predbayes_study.tables.textfile import DELIMITERS, require_distinct

_SAMPLE_LINES = 200
_SAMPLE_LETTERS = 2_000_000
_MAX_TITLE = 20  # lines in which the names of the columns are looked for


def read_reference(path: Path) -> pd.DataFrame:
    """Read reference rows as `read_frame` does, also where a spreadsheet program wrote them.

    What `read_frame` can read is read by it alone, so that rows of a frozen plan stay what they
    are; a decimal comma is the one thing that is changed.
    """
    if path.suffix.lower() in BINARY:
        frame = read_binary(path, skip=sniff(path).skip)
        named = frame.loc[:, [bool(name) for name in frame.columns]]
        require_distinct(path, list(named.columns))
        return named
    if path.suffix.lower() not in SUFFIXES:
        return read_frame(path)
    form = sniff(path)
    try:
        frame = read_frame(path)
    except DataError:
        if form == FileForm():
            raise
        frame = read_raw(form, path)
    return frame if form.decimal == "." else frame.apply(_pointed)


def _pointed(column: pd.Series) -> pd.Series:
    """A column's numbers with points; one that could be read in two ways is refused."""
    points = [to_point(text, ",") for text in column]
    if all(point == text for point, text in zip(points, column, strict=True)):
        return column
    if None in points:
        raise DataError(
            f"{column.name}: some numbers have a decimal comma, others a point; write all alike"
        )
    return pd.Series(points, column.index, object, column.name)


def sniff(path: Path) -> FileForm:
    """Find out how a table is written, by its bytes; a Parquet file says so itself.

    Of a spreadsheet no more is open than how many lines are above the names.
    """
    if path.suffix.lower() in SHEETS:
        return FileForm(skip=_first_wide(filled_cells(path, _MAX_TITLE)))
    if path.suffix.lower() not in SUFFIXES:
        return FileForm()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    encoding = _encoding(content)
    text = content.decode(encoding, "replace").removeprefix("\ufeff")
    lines = text[:_SAMPLE_LETTERS].splitlines(keepends=True)
    titles = {mark: _title_lines(lines, mark) for mark in DELIMITERS}
    below = {mark: "".join(lines[titles[mark] :]) for mark in DELIMITERS}
    best = max(DELIMITERS, key=lambda mark: _regularity(below[mark], mark, titles[mark]))
    rows = _sample(below[best], best)
    cells = [cell.strip() for row in rows[1:] for cell in row]
    with_comma = sum(bool(re.fullmatch(r"[+-]?\d+,\d+", cell)) for cell in cells)
    with_point = sum(bool(re.fullmatch(r"[+-]?\d+\.\d+", cell)) for cell in cells)
    decimal = "," if with_comma > with_point else "."
    return FileForm(delimiter=best, decimal=decimal, encoding=encoding, skip=titles[best])  # type: ignore[arg-type]


def _encoding(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        try:
            content.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"  # which reads any byte


def _sample(text: str, delimiter: str) -> list[list[str]]:
    lines = io.StringIO(text, newline="")
    try:
        rows = csv.reader(lines, delimiter=delimiter)
        return [row for row, _ in zip(rows, range(_SAMPLE_LINES), strict=False) if row]
    except csv.Error:
        return []


def _title_lines(lines: Sequence[str], delimiter: str) -> int:
    """Lines above the names: with one cell at most, and then lines with several follow."""
    cells = [line.split(delimiter) for line in lines[:_MAX_TITLE]]
    return _first_wide([sum(bool(cell.strip(' "\r\n')) for cell in line) for line in cells])


def _first_wide(filled: Sequence[int]) -> int:
    """The first of some lines that has several cells; 0 if none has."""
    return next((n for n, count in enumerate(filled) if count > 1), 0)


def _regularity(text: str, delimiter: str, num_titles: int) -> tuple[float, int, int]:
    """Share of lines as wide as the first, few lines above it, its width; one column is no table.

    With a decimal comma for a delimiter the line of names would be a title.
    """
    rows = _sample(text, delimiter)
    width = len(rows[0]) if rows else 0
    if width < 2:
        return 0.0, -num_titles, width
    return sum(len(row) == width for row in rows) / len(rows), -num_titles, width
