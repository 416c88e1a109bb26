from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import DataError
from predbayes.partition import (
    by_group,
    dirichlet,
    homogeneous,
    label_skew,
    sorted_by,
)
from predbayes.seeding import generator


def assert_true_partition(parts, num_rows):
    """Disjoint, complete, none empty."""
    assert sorted(torch.cat(parts).tolist()) == list(range(num_rows))
    assert min(len(part) for part in parts) >= 1


def assert_partition(parts, num_rows):
    """A true partition into sizes within one."""
    assert_true_partition(parts, num_rows)
    sizes = [len(part) for part in parts]
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


@given(
    st.integers(100, 300), st.integers(1, 5), st.floats(0.5, 100), st.integers(2, 9), st.integers()
)
def test_a_dirichlet_split_is_a_partition(num_rows, num_clients, concentration, classes, seed):
    y = torch.randint(classes, (num_rows,), generator=generator(seed))
    parts = dirichlet(y, num_clients, concentration, rng=generator(seed))
    assert len(parts) == num_clients
    assert_true_partition(parts, num_rows)


@given(st.lists(st.integers(0, 4), min_size=1), st.integers(1, 5))
def test_natural_groups_are_a_partition(tail, num_groups):
    groups = torch.tensor([*range(num_groups), *(g % num_groups for g in tail)])
    parts = by_group(groups)
    assert_true_partition(parts, len(groups))
    assert [groups[part].unique().tolist() for part in parts] == [[k] for k in range(num_groups)]


def largest_share(concentration):
    """The mean over classes of the largest client's share of the class."""
    y = torch.arange(10).repeat(1000)
    parts = dirichlet(y, 5, concentration, rng=generator(0))
    counts = torch.stack([torch.bincount(y[part], minlength=10) for part in parts]).double()
    return float((counts.max(0).values / 1000).mean())


def test_concentration_runs_from_one_client_per_class_to_an_even_deal():
    shares = [largest_share(a) for a in (0.01, 0.5, 5.0, 1e6)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.95
    assert shares[-1] == pytest.approx(0.2, abs=0.005)


def test_dirichlet_shares_have_the_right_moments():
    """Mean 1/K and variance (K - 1) / (K^2 (K a + 1)), within 5 standard errors of 400 classes."""
    num_clients, concentration, classes = 4, 0.3, 400
    y = torch.arange(classes).repeat(1000)
    parts = dirichlet(y, num_clients, concentration, rng=generator(1))
    share = torch.bincount(y[parts[0]], minlength=classes).double() / 1000
    var = (num_clients - 1) / (num_clients**2 * (num_clients * concentration + 1))
    assert float(share.mean()) == pytest.approx(1 / num_clients, abs=5 * (var / classes) ** 0.5)
    fourth = float((share - share.mean()).pow(4).mean())
    error = ((fourth - var**2) / classes) ** 0.5
    assert float(share.var()) == pytest.approx(var, abs=5 * error)


def test_dirichlet_splits_that_leave_a_client_empty_are_refused(rng):
    with pytest.raises(DataError, match="raise the concentration"):
        dirichlet(torch.zeros(100).long(), 5, 1e-4, rng=rng)
    with pytest.raises(DataError, match="must be positive"):
        dirichlet(torch.zeros(100).long(), 5, 0.0, rng=rng)
    with pytest.raises(DataError, match="cannot be dealt"):
        dirichlet(torch.zeros(3).long(), 5, 1.0, rng=rng)


def test_groups_without_rows_are_refused():
    with pytest.raises(DataError, match=r"no rows in groups \[1\]"):
        by_group(torch.tensor([0, 2, 2]))
    with pytest.raises(DataError, match="no rows to deal"):
        by_group(torch.tensor([], dtype=torch.int64))
