"""Heart disease in four hospitals: a federation as it is found, not one that was made.

Each hospital's file has 14 columns. Three of them (slope, ca, thal) are missing nearly everywhere
but in Cleveland, so they are dropped, and then every row with a missing value: 303, 261, 46 and 130
rows remain. A row is positive when a vessel is narrowed by more than half (``num`` > 0). Test rows
are drawn anew for each seed, the same fraction in every hospital. Numbers are scaled by the
training rows of all hospitals; the kind of pain and the resting ECG become indicators.

Switzerland writes 0 for a cholesterol that was not measured; it is left as published.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes_lab.data.dataset import Dataset, RawFiles
from predbayes_lab.data.tabular import scale

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak")
YES_OR_NO = ("sex", "fbs", "exang")
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}  # by the publisher's codebook
DROPPED = ("slope", "ca", "thal")
KEPT = tuple(column for column in COLUMNS if column not in DROPPED)
TEST_FRACTION = 0.34


def read_heart(
    raw: RawFiles, *, rng: torch.Generator, test_fraction: float = TEST_FRACTION
) -> Dataset:
    """Read the four hospitals' rows, split within each hospital."""
    hospitals = [parse_hospital(content, name) for name, content in raw.contents.items()]
    groups = torch.repeat_interleave(torch.tensor([len(rows) for rows in hospitals]))
    rows = torch.cat(hospitals)
    test = torch.cat(
        [_draw(groups == group, test_fraction, rng) for group in range(len(hospitals))]
    )
    is_train = torch.ones(len(rows), dtype=torch.bool)
    is_train[test] = False
    train = is_train.nonzero().squeeze(-1)
    x_train, x_test = _inputs(rows, train, test)
    targets = (_column(rows, "num") > 0).long()
    return raw.dataset(
        (x_train, targets[train]),
        (x_test, targets[test]),
        num_classes=2,
        train_groups=groups[train],
        test_groups=groups[test],
        group_names=HOSPITALS,
        feature_names=_feature_names(),
    )


def parse_hospital(content: bytes, name: str) -> Tensor:
    """Parse the complete rows of one hospital in the columns `KEPT`, float64."""
    rows = []
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
        cells = line.split(",")
        if len(cells) != len(COLUMNS):
            raise DataError(f"{name}, line {number} has {len(cells)} columns, not {len(COLUMNS)}")
        kept = [c for c, column in zip(cells, COLUMNS, strict=True) if column not in DROPPED]
        if "?" not in kept:
            rows.append(_floats(kept, f"{name}, line {number}"))
    if not rows:
        raise DataError(f"{name} has no complete rows")
    return torch.tensor(rows, dtype=torch.float64)


def _floats(cells: list[str], where: str) -> list[float]:
    try:
        return [float(cell) for cell in cells]
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error


def _draw(member: Tensor, fraction: float, rng: torch.Generator) -> Tensor:
    """A random fraction of the rows of one hospital, rounded up."""
    rows = member.nonzero().squeeze(-1)
    order = torch.randperm(len(rows), generator=rng)
    return rows[order[: math.ceil(fraction * len(rows))]].sort().values


def _inputs(rows: Tensor, train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    numbers = torch.stack([_column(rows, name) for name in NUMBERS], dim=1)
    flags = [_column(rows, name) for name in YES_OR_NO]
    for name, values in CATEGORIES.items():
        flags += [(_column(rows, name) == value).double() for value in values]
    indicators = torch.stack(flags, dim=1).float()
    x_train, x_test = scale(numbers, train, test)
    return (
        torch.cat([x_train, indicators[train]], dim=1),
        torch.cat([x_test, indicators[test]], dim=1),
    )


def _column(rows: Tensor, name: str) -> Tensor:
    return rows[:, KEPT.index(name)]


def _feature_names() -> tuple[str, ...]:
    indicators = [f"{name}={value}" for name, values in CATEGORIES.items() for value in values]
    return (*NUMBERS, *YES_OR_NO, *indicators)
