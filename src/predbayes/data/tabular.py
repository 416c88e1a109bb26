"""Regression tables: which column is the target, which would leak it, and by which to sort.

Features and target are scaled by the training rows' mean and standard deviation, so nothing of the
test rows is known in training; scores are in units of the training targets' standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from predbayes.data.files import find_file
from predbayes.errors import DataError


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What must be known about a table to learn from it without a leak."""

    file: str
    target: str
    separator: str = ","
    dropped: tuple[str, ...] = ()  # row numbers, dates, and columns that give the target away
    sorted_by: str = ""  # the feature by which clients differ in the heterogeneous split


TABLES = {
    # The target is the sum of casual and registered riders.
    "bike": TableSpec(
        "bike.csv", "cnt", ",", ("instant", "dteday", "casual", "registered"), "temp"
    ),
    "wine": TableSpec("winequality-red.csv", "quality", ";", (), "alcohol"),
}


@dataclass(frozen=True, slots=True)
class Table:
    """A scaled regression table, split once."""

    train_inputs: Tensor  # (N, D) float32
    train_targets: Tensor  # (N,) float32
    test_inputs: Tensor
    test_targets: Tensor
    feature_names: tuple[str, ...]
    sorted_by: str

    @property
    def sort_feature(self) -> Tensor:
        """The training rows' values of the feature that clients are sorted by, (N,)."""
        return self.train_inputs[:, self.feature_names.index(self.sorted_by)]


def load_table(
    name: str, folder: Path, *, test_fraction: float = 0.2, rng: torch.Generator
) -> Table:
    """Read a table and hold a random fraction out as test rows."""
    if name not in TABLES:
        raise DataError(f"no table {name!r}; there are {', '.join(sorted(TABLES))}")
    spec = TABLES[name]
    frame = pd.read_csv(find_file(folder, spec.file), sep=spec.separator)
    if spec.target not in frame.columns:
        raise DataError(f"{spec.file} has no column {spec.target!r}")
    features = frame.drop(columns=[spec.target, *spec.dropped])
    inputs = torch.tensor(features.to_numpy(dtype=np.float64))
    targets = torch.tensor(frame[spec.target].to_numpy(dtype=np.float64))
    order = torch.randperm(len(frame), generator=rng)
    num_test = round(test_fraction * len(frame))
    test, train = order[:num_test], order[num_test:]
    x_train, x_test = _scaled(inputs, train, test)
    y_train, y_test = _scaled(targets, train, test)
    names = tuple(str(column) for column in features.columns)
    return Table(x_train, y_train, x_test, y_test, names, spec.sorted_by)


def _scaled(values: Tensor, train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both parts in standard deviations of the training part; constant columns become zero."""
    mean, std = values[train].mean(0), values[train].std(0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    return ((values[train] - mean) / std).float(), ((values[test] - mean) / std).float()
