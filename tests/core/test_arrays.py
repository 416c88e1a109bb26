"""Arrays of others as tensors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from predbayes.arrays import LoaderRows, as_inputs, as_rows, as_targets
from predbayes.errors import DataError


@pytest.mark.parametrize("make", [np.array, pd.DataFrame, list])
def test_tables_of_numbers_are_floats(make):
    inputs = as_inputs(make([[1, 2], [3, 4]]))
    assert inputs.dtype == torch.get_default_dtype()
    assert inputs.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([0, 1], torch.int64), (np.array([True]), torch.int64), (pd.Series([0.5]), torch.float32)],
)
def test_targets_are_class_indices_or_numbers(values, dtype):
    assert as_targets(values).dtype == dtype


X, Y = np.arange(14.0).reshape(7, 2), np.arange(7) % 3


class Pairs:
    """A dataset as torch and others have it: rows by number."""

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return X[row], Y[row]


class Named(Pairs):
    def __getitem__(self, row):
        return {"pixels": X[row], "label": Y[row]}


@pytest.mark.parametrize(
    "rows",
    [
        (X, Y),
        [pd.DataFrame(X), pd.Series(Y)],
        {"pixels": X, "label": Y},
        {"targets": Y, "x": X},
        TensorDataset(torch.tensor(X).float(), torch.tensor(Y)),
    ],
)
def test_rows_in_memory_become_a_pair_of_tensors(rows):
    inputs, targets = as_rows(rows)
    assert inputs.tolist() == X.tolist()
    assert inputs.dtype == torch.float32
    assert targets.tolist() == Y.tolist()
    assert targets.dtype == torch.int64


@pytest.mark.parametrize(
    "rows",
    [
        Pairs(),
        Named(),
        DataLoader(Pairs(), batch_size=3),
        DataLoader(Named(), batch_size=3),
        LoaderRows(DataLoader(Named(), batch_size=3)),
        DataLoader(Pairs(), batch_size=3, collate_fn=lambda rows: list(zip(*rows, strict=True))),
    ],
)
def test_datasets_and_loaders_are_read_batch_by_batch(rows):
    own = as_rows(rows)
    assert isinstance(own, LoaderRows)
    assert own.num_rows == 7
    batches = list(own)
    assert len(batches) == len(own)
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    order = inputs[:, 0].argsort()
    assert inputs[order].tolist() == X.tolist()
    assert targets[order].tolist() == Y.tolist()


def test_a_whole_pass_over_a_loader_counts_its_classes():
    rows = LoaderRows(DataLoader(Pairs(), batch_size=3))
    next(iter(rows))
    assert rows.class_rows is None
    for _ in range(2):
        assert len(list(rows)) == 3
        assert rows.class_rows == {0: 3, 1: 2, 2: 2}


@pytest.mark.parametrize(
    "rows",
    [
        X,
        pd.DataFrame(X),
        {"x": 1},
        {"x": X, "id": Y, "label": Y},
        {"label": Y, "y": Y},
        (1, 2, 3),
        "rows",
        None,
        iter([(X, Y)]),
    ],
)
def test_what_is_no_pair_is_refused_in_one_line_that_says_what_is_accepted(rows):
    accepted = "a pair .* of tensors, arrays or tables, a dict of .*, or a Dataset or DataLoader"
    with pytest.raises(DataError, match=rf"^a site's rows are {accepted} of [^\n]*, not \w+"):
        as_rows(rows)


def test_a_read_only_array_is_copied():
    array = np.zeros((2, 1), dtype=np.float32)
    array.setflags(write=False)
    as_inputs(array)[0] = 1
    assert array[0] == 0
