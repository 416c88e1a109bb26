"""Tables that programs write for themselves: spreadsheets, and files of statistics programs.

    .xlsx               the one sheet that has cells, by python-calamine
    .sav, .dta, .sas7bdat   of SPSS, Stata and SAS, by pyreadstat; a value that has a label is read
                            as its label, and what the program calls missing as an empty cell

They become what the reader of text gives: stripped text, empty where nothing is there, and the
rows' lines as an index (of a statistics program the header counts as line 1). A whole number has no
point; others have the decimal mark that the rest of the reading is told. No message repeats a cell.

Both packages come with the extra `tables` and are imported when such a file is read.
"""

from __future__ import annotations

import datetime
import math
import unicodedata
from pathlib import Path
from typing import Any

import pandas as pd

from predbayes.errors import DataError
from predbayes.optional import require
from predbayes_study.tables.textfile import LINE, require_names

SHEETS = (".xlsx",)
STATISTICS = (".sav", ".dta", ".sas7bdat")
BINARY = (*SHEETS, *STATISTICS)
"""Suffixes of the files that are read here."""


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
