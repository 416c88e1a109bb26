"""The splits of the benchmark `coverage`; its figures are in `test_targets.py`."""

from __future__ import annotations

import pytest
import torch

from benchmarks.coverage import dealt, one_split


def test_every_row_of_a_site_is_dealt_once():
    sites = torch.tensor([0, 1, 2, 3, 2, 1, 0, 0, 0, 3, 3, 1] * 20)
    parts = list(dealt(sites, 3))
    for site, part in enumerate(parts):
        assert sorted(torch.cat(part).tolist()) == (sites == site).nonzero()[:, 0].tolist()
    assert not torch.equal(parts[0][0], next(dealt(sites, 4))[0])


@pytest.mark.data
@pytest.mark.parametrize("name", ["heart", "bike"])
def test_bounds_from_counts_are_wider_the_larger_cells_are(name):
    found = one_split(name, 0)
    for level in ("0.8", "0.9", "0.95"):
        lines = ("rows", "min_cell 1", "min_cell 5")
        coverage = [found[f"{level} {line} coverage"] for line in lines]
        sizes = [found[f"{level} {line} size"] for line in lines]
        assert coverage == sorted(coverage)
        assert sizes == sorted(sizes)
