"""Exact sums: any order, grouping and subtraction gives the same bits, and the right ones."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import PoolError
from predbayes.exact import (
    LEAST_WEIGHT,
    MOST_AT_ONCE,
    MOST_WEIGHTED,
    WEIGHTS,
    ExactSum,
    Grid,
    Weights,
    add_weighted_,
)

GRID = Grid(7, -1, 4)
HALF_UNIT = 2.0**-54  # of the last place
numbers = st.floats(-1e6, 1e6)


def summed(values, grid=GRID):
    return ExactSum.of(torch.tensor(values, dtype=torch.float64).unsqueeze(1), grid)


def exactly(total, column=0):
    """A sum of one row as a fraction, from its digits."""
    units = [Fraction(total.grid.unit(total.grid.first + k)) for k in range(len(total.grid))]
    digits = total.digits.flatten(1)[:, column].tolist()
    return sum((d * u for d, u in zip(digits, units, strict=True)), Fraction(0))


@given(st.lists(numbers, min_size=1, max_size=20))
def test_a_sum_is_that_of_rounded_summands(values):
    error = abs(exactly(summed(values)) - sum(map(Fraction, values)))
    assert error <= len(values) * Fraction(HALF_UNIT)


@given(st.lists(numbers, min_size=2, max_size=20), st.randoms(use_true_random=False), st.data())
def test_neither_order_nor_grouping_changes_a_bit(values, random, data):
    cut = data.draw(st.integers(1, len(values) - 1))
    flat = summed(values)
    random.shuffle(values)
    tree = summed(values[cut:]).add_(summed(values[:cut]))
    assert torch.equal(flat.digits, tree.digits)
    assert torch.equal(flat.value(), tree.value())


@given(st.lists(numbers, min_size=2, max_size=20), st.data())
def test_what_is_taken_away_was_never_there(values, data):
    cut = data.draw(st.integers(1, len(values) - 1))
    left = summed(values).take_away_(summed(values[cut:]))
    assert torch.equal(left.digits, summed(values[:cut]).digits)


def weighted(values, weights):
    total = ExactSum.zero(Grid(8, -2, 4).weighted, (1,))
    tensor = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    digits = Weights.of(torch.tensor([weights], dtype=torch.float64), LEAST_WEIGHT)
    add_weighted_([([total], digits)], tensor)
    return total


pairs = st.tuples(st.floats(-80, 80), st.integers(1, 10**9))


@given(st.lists(pairs, min_size=2, max_size=20), st.data())
def test_weighted_sums_are_exact_too(found, data):
    cut = data.draw(st.integers(1, len(found) - 1))
    values, weights = zip(*found, strict=True)
    total = weighted(values, weights)
    parts = weighted(values[:cut], weights[:cut]).add_(weighted(values[cut:], weights[cut:]))
    assert torch.equal(total.digits, parts.digits)
    error = abs(exactly(total) - sum(Fraction(v) * w for v, w in found))
    assert error <= sum(weights) * Fraction(2.0**-53)  # half of 2^(8 - 4 * 15)


def test_ten_thousand_additions_carry_over():
    one = torch.full((MOST_AT_ONCE, 1), 79.9, dtype=torch.float64)
    total = ExactSum.zero(Grid(7, 0, 4), (1,))
    for _ in range(40):
        total.add_many_(one)
    assert float(total.value()) == pytest.approx(40 * MOST_AT_ONCE * 79.9, rel=1e-15)
    assert int(total.digits[1:].abs().max()) <= 2**14


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(PoolError, match="too large to be added, or none"):
        summed([1.0, bad])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), 1e19])
def test_a_weight_that_is_no_number_of_rows_is_refused(bad):
    with pytest.raises(PoolError, match="weights are numbers of rows"):
        weighted([1.0, 2.0], [1.0, bad])


@given(
    st.integers(0, 10**6), st.sampled_from([1.0, 2.0**-15, 7.99, 2.0**18 - 1, 2.0**40 + 2.0**-9])
)
def test_weights_that_differ_within_a_tensor_are_exact_where_all_are_largest(seed, scale):
    rng = torch.Generator().manual_seed(seed)
    shape = (MOST_WEIGHTED, 3, 2)
    values = -15.99 + 0.02 * torch.rand(shape, generator=rng, dtype=torch.float64)
    weights = scale * (1 - 0.01 * torch.rand(*shape[:2], 1, generator=rng, dtype=torch.float64))
    grid = Grid(5, -3, 2)  # of logarithms, whose last unit is 2^-25
    total, of_weights = ExactSum.zero(grid.weighted, (3, 2)), ExactSum.zero(WEIGHTS, (3, 1))
    digits = Weights.of(weights.unsqueeze(0))
    add_weighted_([([total], digits)], values)
    digits.add_to_([of_weights])
    for row, column in ((0, 0), (2, 1)):
        rounded = [round(Fraction(v) * 2**25) for v in values[:, row, column].tolist()]
        counted = [round(Fraction(w) * 2**30) for w in weights[:, row, 0].tolist()]
        products = sum(Fraction(v * w, 2**55) for v, w in zip(rounded, counted, strict=True))
        assert exactly(total[row : row + 1], column) == products
        assert exactly(of_weights[row : row + 1]) == Fraction(sum(counted), 2**30)


def test_too_many_summands_at_once_are_refused():
    many = [1.0] * (MOST_WEIGHTED + 1)
    with pytest.raises(PoolError, match="at most 32 summands"):
        weighted(many, many)


def test_sums_of_other_shapes_do_not_add():
    with pytest.raises(PoolError, match="different shapes"):
        summed([1.0]).add_(ExactSum.zero(GRID, (2,)))


def test_a_sum_that_overflows_is_refused():
    total = summed([2.0**44], Grid(0, 0, 0))
    for _ in range(16):  # 2^60 units
        total.add_(total.clone())
        total.value()
    total.add_(total.clone())
    with pytest.raises(PoolError, match="larger than can be added"):
        total.value()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rows_that_differ_much_in_size_are_split_alike_in_any_precision(dtype, monkeypatch):
    """Blocks of rows have digits at different places; what a block lacks is zero."""
    monkeypatch.setattr("predbayes.exact._BLOCK", 4)
    values = torch.tensor([[1e4, 1e-4, 3.0, 2.0**-14], [-5e3, 2e-4, 1.0, 0.5]]).to(dtype)
    grid = Grid(7, -13, 6)
    ones = torch.ones(2, 1, dtype=torch.float64)
    found = ExactSum.zero(grid, (4,)).add_many_(values, ones)
    expected = [sum(map(Fraction, column)) for column in values.double().T.tolist()]
    assert list(map(Fraction, found.value().tolist())) == expected
    assert torch.equal(found.digits, ExactSum.of(values, grid).digits)
