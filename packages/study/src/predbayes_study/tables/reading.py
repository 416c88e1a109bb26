"""Reading a table from a file, whoever wrote it and with which program.

    .csv .tsv .txt          text
    .xlsx                   the one sheet that has cells, by python-calamine
    .sav .dta .sas7bdat     of SPSS, Stata and SAS, by pyreadstat; a value that has a label is read
                            as its label, and what the program calls missing as an empty cell
    .parquet                typed columns, by pyarrow; a column may have lists, which are vectors

Every other cell becomes stripped text, empty where nothing is there; the frame's index has the
rows' lines in the file (of a statistics program the header counts as line 1).

    read_frame      reference rows of a kit and rows to predict: CSV or Parquet, as they are
    read_raw        a site's file, written as `[file]` of its `site.toml` says
    read_reference  the coordinator's rows: how they are written is found out by `sniff`

What to do about a file that is written in another way depends on whose it is: the coordinator saves
it again, a site describes it. No message repeats a cell, nor the first line's words: in a file
without a header they are cells. The packages for spreadsheets and statistics programs come with the
extra `tables` and are imported when such a file is read.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import datetime
import io
import itertools
import math
import re
import unicodedata
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from predbayes.errors import DataError
from predbayes.files import open_regular
from predbayes.optional import require
from predbayes.progress import each_column
from predbayes.text import from_cell, to_cell
from predbayes_study.tables.column import as_texts, to_number, to_point
from predbayes_study.tables.problem import listed, stepped
from predbayes_study.tables.sitefile import SITE_FILE, FileForm
from predbayes_study.tables.vectors import holds_vectors, vector_cells

LINE = "line"
"""Name of a frame's index where it holds the rows' lines in their file."""

TEXT = (".csv", ".tsv", ".txt")
SHEETS = (".xlsx",)
STATISTICS = (".sav", ".dta", ".sas7bdat")
BINARY = (*SHEETS, *STATISTICS)
"""Suffixes of the files that programs write for themselves."""

_DELIMITERS = (",", ";", "\t", "|")  # that programs write
_MAX_TEXTS = 1_000_000
_SAMPLE_LINES = 200
_SAMPLE_LETTERS = 2_000_000
_DAY = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}([T ].*)?")
_MAX_TITLE = 20  # lines in which the names of the columns are looked for


@dataclass(frozen=True, slots=True)
class Remedies:
    """What is said of a file that is written in another way, and what to do about it."""

    encoding: str  # after "FILE is not UTF-8 text: "
    delimiter: str  # after "FILE "
    ragged: str = ""  # after the lines of which that is so


_SAVE = Remedies(
    encoding="save it as CSV UTF-8",
    delimiter="is not separated by commas: save it as CSV with commas",
)
_DESCRIBE = Remedies(
    encoding=(
        f'write encoding, such as "cp1252", under [file] in {SITE_FILE}, or let `--suggest` find it'
    ),
    delimiter=(
        f"has another delimiter: write it under [file] in {SITE_FILE}, or let `--suggest` find it"
    ),
    ragged=f"; look at the delimiter in {SITE_FILE}",
)


_SHOWN = "; `predbayes site check` with --show-values names the lines"


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


def read_raw(
    form: FileForm, path: Path, *, least: int = 0, row_by_row: bool = False
) -> pd.DataFrame:
    """Read the file as it is: stripped text, empty where missing, by line.

    Args:
        form: How it is written.
        path: The file.
        least: The least count that a refusal tells, without lines; 0: all, and lines.
        row_by_row: Whether no row decides what becomes of another one, or of the file: one that
            cannot be read is left out, and the first line is judged by itself.
    """
    match path.suffix.lower():
        case ".parquet":
            frame = _as_text(read_frame(path), form.decimal)
        case suffix if suffix in TEXT:
            frame = read_csv(
                path,
                _DESCRIBE,
                delimiter=form.delimiter,
                encoding=form.encoding,
                blank_rows=False,  # spreadsheets leave lines of delimiters
                skip=form.skip,
                least=least,
                row_by_row=row_by_row,
            )
        case suffix if suffix in BINARY:
            frame = read_binary(path, decimal=form.decimal, skip=form.skip)
        case suffix:
            raise DataError(
                f"{path.name}: {suffix or 'a file without a suffix'} is not read; save the table "
                "as .csv, .xlsx, .sav, .dta, .sas7bdat or .parquet"
            )
    if frame.empty:
        raise DataError(f"{path.name} has no rows")
    _require_no_row(path, frame, row_by_row=row_by_row)
    return frame


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
    if path.suffix.lower() not in TEXT:
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


def _require_no_row(path: Path, frame: pd.DataFrame, *, row_by_row: bool) -> None:
    """The first line has names. If it is a row its words are cells, and must not be repeated."""
    names = [str(name) for name in frame.columns]
    are_cells = [
        _DAY.fullmatch(name) is not None
        or any(to_number(name, mark) is not None for mark in ".,")
        or (name != "" and not row_by_row and bool((frame.iloc[:, place] == name).any()))
        for place, name in enumerate(names)
    ]
    if 2 * sum(are_cells) >= len(names):
        raise DataError(
            f"{path.name}: the first line looks like a row; it must have the names of the columns"
        )
    require_distinct(path, [name or object() for name in names])  # one without is like no other


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


# Text


def read_csv(
    path: Path,
    remedies: Remedies,
    *,
    delimiter: str = ",",
    encoding: str = "UTF-8",
    blank_rows: bool = True,
    skip: int = 0,
    least: int = 0,
    row_by_row: bool = False,
) -> pd.DataFrame:
    """Read a file's rows by line; names of columns may be there twice.

    Args:
        path: The file.
        remedies: For its owner.
        delimiter: Between cells.
        encoding: A byte order mark is no part of the first name.
        blank_rows: Whether a line of delimiters alone is a row; an empty line is none.
        skip: Lines above the names, such as titles.
        least: The least count that a refusal tells, without lines; 0: all, and lines.
        row_by_row: Whether a row with another number of cells is left out, and a letter that is no
            text replaced; otherwise the file is refused.
    """
    lines: list[int] = []
    rows: list[list[str]] = []
    once = _Once()
    # Closed here: whoever holds on to an error would hold on to the file.
    with contextlib.closing(_decoded(path, encoding, remedies, row_by_row)) as decoded:
        reader = csv.reader(itertools.islice(decoded, skip, None), delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            require_names(path, header)
            others = [mark for mark in _DELIMITERS if mark != delimiter]
            if len(header) == 1 and any(mark in header[0] for mark in others):
                raise DataError(f"{path.name} {remedies.delimiter}")
            begins = skip + reader.line_num + 1
            for row in reader:
                cells = [once(cell.strip()) for cell in row]
                if any(cells) or (cells and blank_rows):
                    lines.append(begins)
                    rows.append(cells)
                begins = skip + reader.line_num + 1
        except csv.Error as error:
            where = f"line {skip + reader.line_num}" if not least else "a line"
            raise DataError(
                f"{path.name}: {where} is not CSV; look for a stray quotation mark"
                f"{_SHOWN if least else ''}"
            ) from error
    fits = [len(row) == len(header) for row in rows]
    if row_by_row and any(fits):
        lines, rows = [*itertools.compress(lines, fits)], [*itertools.compress(rows, fits)]
    elif ragged := [line for line, is_fine in zip(lines, fits, strict=True) if not is_fine]:
        have = "has" if (least or len(ragged)) == 1 else "have"
        where = _SHOWN if least else f" ({listed(ragged)})"
        raise DataError(
            f"{path.name}: {stepped(len(ragged), 'line', least)} {have} another number of cells "
            f"than the header's {len(header)}{remedies.ragged}{where}"
        )
    return pd.DataFrame(rows, pd.Index(lines, name=LINE), header, dtype=object)


class _Once(dict[str, str]):
    """Keeps equal texts once: most columns of a large table have few."""

    def __call__(self, text: str) -> str:
        return self.setdefault(text, text) if len(self) < _MAX_TEXTS else self.get(text, text)


def _decoded(
    path: Path, encoding: str, remedies: Remedies, row_by_row: bool
) -> Generator[str, None, None]:
    """Yield the lines of a file, which is never in memory as a whole."""
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    try:
        coding = "utf-8-sig" if is_utf8 else encoding
        errors = "replace" if row_by_row else "strict"
        with io.TextIOWrapper(open_regular(path), coding, errors, newline="") as file:
            for line in file:
                if "\0" in line and not row_by_row:
                    raise DataError(f"{path.name} is not text: save it as CSV {encoding}")
                # As plans are written, so that words are equal.
                yield unicodedata.normalize("NFC", line)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeError, LookupError) as error:
        raise DataError(f"{path.name} is not {encoding} text: {remedies.encoding}") from error


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


# How text is written


def sniff(path: Path) -> FileForm:
    """Find out how a table is written, by its bytes; a Parquet file says so itself.

    Of a spreadsheet no more is open than how many lines are above the names.
    """
    if path.suffix.lower() in SHEETS:
        return FileForm(skip=_first_wide(filled_cells(path, _MAX_TITLE)))
    if path.suffix.lower() not in TEXT:
        return FileForm()
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    encoding = _encoding(content)
    text = content.decode(encoding, "replace").removeprefix("\ufeff")
    lines = text[:_SAMPLE_LETTERS].splitlines(keepends=True)
    titles = {mark: _title_lines(lines, mark) for mark in _DELIMITERS}
    below = {mark: "".join(lines[titles[mark] :]) for mark in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda mark: _regularity(below[mark], mark, titles[mark]))
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


# Files of other programs


def read_binary(path: Path, *, decimal: str = ".", skip: int = 0) -> pd.DataFrame:
    """Read a file's rows by line, as text.

    Args:
        path: The file, with a suffix of `BINARY`.
        decimal: The mark that numbers get.
        skip: Lines above the header, of a sheet.
    """
    _require_file(path)
    is_sheet = path.suffix.lower() in SHEETS
    lines = (_sheet(path) if is_sheet else _statistics(path))[skip if is_sheet else 0 :]
    texts = [[_text(cell, decimal) for cell in line] for line in lines]
    header = texts[0] if texts else []
    require_names(path, header)
    first = 2 + (skip if is_sheet else 0)
    kept = [(number, row) for number, row in enumerate(texts[1:], start=first) if any(row)]
    index = pd.Index([number for number, _ in kept], name=LINE)
    return pd.DataFrame([row for _, row in kept], index, header, dtype=object)


def filled_cells(path: Path, most_lines: int) -> list[int]:
    """Count the cells that are not empty in each of the first lines of a sheet."""
    _require_file(path)
    return [sum(bool(_text(cell, ".")) for cell in line) for line in _sheet(path)[:most_lines]]


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"cannot read {path}: there is no such file")


def _sheet(path: Path) -> list[list[Any]]:
    """All cells of the one sheet that has some, from its first line and column on."""
    calamine = require("python_calamine", "study[tables]")
    try:
        book = calamine.CalamineWorkbook.from_path(str(path))
        filled = [
            cells
            for name in book.sheet_names
            if (cells := book.get_sheet_by_name(name).to_python(skip_empty_area=False))
        ]
    except (calamine.CalamineError, OSError, ValueError) as error:
        raise DataError(f"{path.name} is not a spreadsheet that can be read") from error
    if len(filled) > 1:
        raise DataError(
            f"{path.name} has {len(filled)} sheets with cells; save the sheet of the table as a "
            "file of its own"
        )
    return filled[0] if filled else []


def _statistics(path: Path) -> list[list[Any]]:
    """Names and rows of a file of a statistics program, labelled values by their labels."""
    package = require("pyreadstat", "study[tables]")
    read = getattr(package, f"read_{path.suffix.lower()[1:]}")
    try:
        frame, _ = read(str(path), apply_value_formats=True, formats_as_category=False)
    except Exception as error:  # of the package's own kinds, which it does not name in one place
        raise DataError(f"{path.name} is not a {path.suffix} file that can be read") from error
    return [list(frame.columns), *frame.to_numpy(dtype=object).tolist()]


def _text(cell: Any, decimal: str) -> str:
    """A cell as its owner would type it."""
    if cell is None or cell is pd.NaT or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, int | float):
        whole = math.isfinite(cell) and float(cell).is_integer() and abs(cell) < 1e15
        return str(int(cell)) if whole else repr(float(cell)).replace(".", decimal)
    if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
        cell = cell.date()
    text = cell.isoformat() if hasattr(cell, "isoformat") else str(cell)
    return unicodedata.normalize("NFC", text).strip()


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
    names = [unicodedata.normalize("NFC", name.strip()) for name in table.column_names]
    frame = pd.DataFrame({place: _typed(cells) for place, cells in enumerate(table.columns)})
    frame.columns = pd.Index(names)
    # Where they would lie in a CSV file.
    frame.index = pd.RangeIndex(2, len(frame) + 2, name=LINE)
    return frame


def _typed(cells: Any) -> pd.Series:
    """Cells of a Parquet column; an empty one changes the type, and the text, of no other."""
    types = require("pyarrow.types", "study[parquet]")
    if any(is_of(cells.type) for is_of in (types.is_list, types.is_fixed_size_list)):
        return vector_cells(cells)
    series: pd.Series = cells.to_pandas(integer_object_nulls=True)
    return series


def _as_text(frame: pd.DataFrame, decimal: str) -> pd.DataFrame:
    """A typed table as text, its numbers with the decimal mark that the rest is told."""
    columns = {}
    for name in each_column(frame.columns, "reading"):
        if holds_vectors(frame[name]):
            columns[str(name)] = list(frame[name])
            continue
        columns[str(name)] = texts = as_texts(frame[name])
        if pd.api.types.is_float_dtype(frame[name]):  # as pandas has whole numbers, if one is empty
            told = {text: _text(float(text or "nan"), decimal) for text in set(texts)}
            columns[str(name)] = [told[text] for text in texts]
    return pd.DataFrame(columns, index=frame.index, dtype=object)
