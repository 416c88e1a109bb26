"""Regression tables: which column is the target, which would leak it, and by which to sort.

Features and target are scaled by the training rows' mean and standard deviation, so nothing of the
test rows is known in training; scores are in units of the training targets' standard deviation.
Test rows are a random fifth, drawn anew for each seed.

Released: ``variant="released"`` prepares the tables as the authors' code does, for comparison with
the paper's Table 2 and nothing else. Bike keeps the two columns whose sum is the target, real
estate keeps the row number, the last fifth of the rows is the test set, all rows are used for
scaling, air quality keeps the code -200 in all columns but the target, and clients are sorted by
the column of largest variance after standardising, which is by chance.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes.optional import require
from predbayes_lab.data.dataset import Dataset, RawFiles

TEST_FRACTION = 0.2
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MISSING = -200  # how air quality codes a missing value

_Split = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]
"""Inputs and targets of training and of test rows, and what training rows are sorted by."""


def _as_published(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The facts about a table that one needs to learn from it without a leak."""

    target: str
    sorted_by: str  # the feature by which clients differ in the heterogeneous split
    dropped: tuple[str, ...] = ()  # row numbers, dates, and columns that give the target away
    dropped_released: tuple[str, ...] = ()
    prepare: Callable[[pd.DataFrame], pd.DataFrame] = _as_published
    prepare_released: Callable[[pd.DataFrame], pd.DataFrame] = _as_published
    separator: str = ","


def _timed(frame: pd.DataFrame) -> pd.DataFrame:
    """Air quality without missing values, and with the hours since its first row."""
    frame = frame.drop(columns="NMHC(GT)")  # missing in nine rows of ten
    measured = frame.drop(columns=["Date", "Time"])
    times = pd.to_datetime(frame["Date"]) + pd.to_timedelta(frame["Time"].astype(str))
    hours = (times - times.min()) / pd.Timedelta(hours=1)
    return frame.assign(hours=hours)[(measured != _MISSING).all(axis=1)]


def _timed_released(frame: pd.DataFrame) -> pd.DataFrame:
    """Air quality with month and hour, and -200 where the target alone is not missing."""
    month = pd.to_datetime(frame["Date"]).dt.month
    hour = frame["Time"].astype(str).str.split(":").str[0].astype(int)
    return frame.assign(month=month, hour=hour)[frame["CO(GT)"] != _MISSING]


def _log_area(frame: pd.DataFrame) -> pd.DataFrame:
    """Forest fires with log(1 + area), and month and weekday as points on a circle."""
    circles: dict[str, pd.Series] = {}
    for column, names in (("month", MONTHS), ("day", WEEKDAYS)):
        angle = 2 * np.pi * _positions(frame[column], names) / len(names)
        circles |= {f"{column} sine": np.sin(angle), f"{column} cosine": np.cos(angle)}
    return frame.drop(columns=["month", "day"]).assign(area=np.log1p(frame["area"]), **circles)


def _log_area_released(frame: pd.DataFrame) -> pd.DataFrame:
    """Forest fires with log(1 + area), and month and weekday as numbers from 1."""
    return frame.assign(
        area=np.log1p(frame["area"]),
        month=1 + _positions(frame["month"], MONTHS),
        day=1 + _positions(frame["day"], WEEKDAYS),
    )


def _positions(values: pd.Series, names: Sequence[str]) -> pd.Series:
    positions = values.map({name: index for index, name in enumerate(names)})
    if positions.isna().any():
        raise DataError(f"{values[positions.isna()].iloc[0]!r} is not one of {', '.join(names)}")
    return positions


TABLES = {
    "airquality": TableSpec(
        "CO(GT)",
        "hours",
        dropped=("Date", "Time", "hours"),
        dropped_released=("Date", "Time", "NMHC(GT)"),
        prepare=_timed,
        prepare_released=_timed_released,
    ),
    "bike": TableSpec(
        "cnt",
        "temp",
        # The target is the sum of casual and registered riders.
        dropped=("instant", "dteday", "casual", "registered"),
        dropped_released=("instant", "dteday"),
    ),
    "forest-fires": TableSpec(
        "area", "temp", prepare=_log_area, prepare_released=_log_area_released
    ),
    "real-estate": TableSpec("Y house price of unit area", "X1 transaction date", dropped=("No",)),
    "wine": TableSpec("quality", "alcohol", separator=";"),
}


def read_table(raw: RawFiles, *, rng: torch.Generator) -> Dataset:
    """Prepare a table, hold test rows out, and scale."""
    spec = TABLES[raw.name]
    ((file, content),) = raw.contents.items()
    frame = _parse(content, file, spec.separator)
    if spec.target not in frame.columns:
        raise DataError(f"{file} has no column {spec.target!r}")
    released = raw.variant == "released"
    try:
        frame = spec.prepare_released(frame) if released else spec.prepare(frame)
        features = frame.drop(
            columns=[spec.target, *(spec.dropped_released if released else spec.dropped)]
        )
        order = _numbers(frame[spec.sorted_by], file) if not released else None
    except KeyError as error:
        raise DataError(f"{file} lacks a column of the publisher's: {error.args[0]}") from error
    inputs, targets = _numbers(features, file), _numbers(frame[spec.target], file)
    split = (
        _split_released(inputs, targets) if order is None else _split(inputs, targets, order, rng)
    )
    (x_train, x_test), (y_train, y_test), sort_feature = split
    note = "prepared with the released code's leaks" if released else ""
    names = tuple(map(str, features.columns))
    known = {"sort_feature": sort_feature, "feature_names": names}
    return raw.dataset((x_train, y_train), (x_test, y_test), None, note, **known)


def scale(values: Tensor, train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Scale both parts by the training part's deviations; constant columns become zero."""
    by = values[train]
    return _standardised(values[train], by), _standardised(values[test], by)


def _standardised(values: Tensor, by: Tensor, correction: int = 0) -> Tensor:
    """Numerics: the deviation of a constant column may be a rounding error instead of zero."""
    mean, std = by.mean(0), by.std(0, correction=correction)
    std = torch.where(std > 1e-12 * mean.abs(), std, 1.0)
    return ((values - mean) / std).float()


def _split(inputs: Tensor, targets: Tensor, order: Tensor, rng: torch.Generator) -> _Split:
    rows = torch.randperm(len(targets), generator=rng)
    num_test = round(TEST_FRACTION * len(targets))
    test, train = rows[:num_test], rows[num_test:]
    return scale(inputs, train, test), scale(targets, train, test), order[train]


def _split_released(inputs: Tensor, targets: Tensor) -> _Split:
    """Released: all rows set the scale, the last fifth is the test set, whatever the seed."""
    x, y = (_standardised(values, by=values, correction=1) for values in (inputs, targets))
    end = int((1 - TEST_FRACTION) * len(targets))
    widest = int(x[:end].var(0).argmax())
    return (x[:end], x[end:]), (y[:end], y[end:]), x[:end, widest]


def _parse(content: bytes, file: str, separator: str) -> pd.DataFrame:
    try:
        if file.endswith(".xlsx"):
            require("openpyxl", "lab")  # what pandas reads it with
            return pd.read_excel(io.BytesIO(content), engine="openpyxl")
        return pd.read_csv(io.BytesIO(content), sep=separator)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} is not a table: {str(error).splitlines()[0]}") from error


def _numbers(values: pd.DataFrame | pd.Series, file: str) -> Tensor:
    try:
        numbers = torch.tensor(values.to_numpy(dtype=np.float64))
    except ValueError as error:
        raise DataError(f"{file} has something other than numbers: {error}") from error
    if not bool(torch.isfinite(numbers).all()):
        raise DataError(f"{file} has empty cells or numbers that are not finite")
    return numbers
