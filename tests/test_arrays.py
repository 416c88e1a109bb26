"""Arrays of others as tensors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from predbayes.arrays import as_inputs, as_rows, as_targets
from predbayes.errors import DataError


@pytest.mark.parametrize("make", [np.array, pd.DataFrame, list])
def test_tables_of_numbers_are_floats(make):
    inputs = as_inputs(make([[1, 2], [3, 4]]))
    assert inputs.dtype == torch.get_default_dtype()
    assert inputs.tolist() == [[1, 2], [3, 4]]


def test_tensors_pass_as_they_are():
    images, classes = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    assert as_inputs(images) is images
    assert as_targets(classes) is classes


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([0, 1], torch.int64), (np.array([True]), torch.int64), (pd.Series([0.5]), torch.float32)],
)
def test_targets_are_class_indices_or_numbers(values, dtype):
    assert as_targets(values).dtype == dtype


def test_a_loader_passes_as_it_is():
    loader = DataLoader(TensorDataset(torch.zeros(2, 1), torch.zeros(2)))
    assert as_rows(loader) is loader


@pytest.mark.parametrize("rows", [np.zeros((2, 2)), {"x": 1}, (1, 2, 3), ([[1], [2, 3]], [0, 1])])
def test_what_is_no_pair_of_tables_is_refused_in_one_line(rows):
    with pytest.raises(DataError) as error:
        as_rows(rows)
    assert "\n" not in str(error.value)


def test_a_read_only_array_is_copied():
    array = np.zeros((2, 1), dtype=np.float32)
    array.setflags(write=False)
    as_inputs(array)[0] = 1
    assert array[0] == 0
