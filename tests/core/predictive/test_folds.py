"""Each row is in one part, and what was found by part comes back row by row."""

from __future__ import annotations

import pytest
import torch

from predbayes.predictive.families import Gaussian
from predbayes.predictive.folds import folds, in_row_order


@pytest.mark.parametrize(("num_rows", "num_folds"), [(10, 5), (11, 3), (4, 4)])
def test_parts_are_disjoint_and_of_nearly_equal_size(rng, num_rows, num_folds):
    parts = folds(num_rows, num_folds, rng=rng)
    assert sorted(torch.cat([out for out, _ in parts]).tolist()) == list(range(num_rows))
    assert {len(out) for out, _ in parts} <= {num_rows // num_folds, -(-num_rows // num_folds)}
    for out, rest in parts:
        assert sorted([*out.tolist(), *rest.tolist()]) == list(range(num_rows))
        assert rest.tolist() == sorted(rest.tolist())


def test_what_was_found_by_part_comes_back_in_the_order_of_rows(rng):
    mean = torch.arange(7.0)
    parts = folds(7, 3, rng=rng)
    found = [Gaussian(mean[out], torch.ones(len(out))) for out, _ in parts]
    assert torch.equal(in_row_order(parts, found).mean, mean)
