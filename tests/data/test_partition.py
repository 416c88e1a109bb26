from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predbayes.data.partition import homogeneous, label_skew, sorted_by
from predbayes.errors import DataError
from predbayes.seeding import generator


def assert_partition(parts, num_rows):
    """Disjoint, complete, none empty, sizes within one."""
    assert sorted(torch.cat(parts).tolist()) == list(range(num_rows))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(5, 200), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99))
def test_every_split_is_a_partition(num_rows, num_clients, h, seed):
    y = torch.randint(4, (num_rows,), generator=generator(seed))
    assert_partition(homogeneous(num_rows, num_clients, rng=generator(seed)), num_rows)
    assert_partition(label_skew(y, num_clients, h, rng=generator(seed)), num_rows)
    assert_partition(sorted_by(y.double(), num_clients), num_rows)


def class_shares(h, seed=0):
    """For each client, the share of its two most frequent of ten classes."""
    y = torch.arange(10).repeat(1000)
    parts = label_skew(y, 5, h, rng=generator(seed))
    counts = torch.stack([torch.bincount(y[part], minlength=10) for part in parts]).double()
    return counts.topk(2).values.sum(-1) / counts.sum(-1)


@pytest.mark.parametrize("h", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_declared_heterogeneity_is_realised(h):
    """Own classes make up h of a client, and two tenths of the rest; a block may cut a class."""
    expected = h + 0.2 * (1 - h)
    assert class_shares(h).mean() == pytest.approx(expected, abs=0.03 + 0.02 * (h == 0))


def test_seeds_cover_the_assignment_of_classes():
    y = torch.arange(10).repeat(100)
    own = {
        tuple(sorted(y[label_skew(y, 5, 1.0, rng=generator(seed))[0]].unique().tolist()))
        for seed in range(5)
    }
    assert len(own) > 1


def test_sorted_clients_hold_neighbouring_values(rng):
    feature = torch.rand(100, generator=rng)
    parts = sorted_by(feature, 4)
    assert all(feature[a].max() <= feature[b].min() for a, b in itertools.pairwise(parts))


def test_impossible_splits_are_refused(rng):
    for num_clients in (0, 4):
        with pytest.raises(DataError, match="cannot be dealt"):
            homogeneous(3, num_clients, rng=rng)
    with pytest.raises(DataError, match=r"in \[0, 1\]"):
        label_skew(torch.zeros(5).long(), 2, 1.5, rng=rng)
