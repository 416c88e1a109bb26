"""Small groups are not told of, nor what would tell of them: a solver cannot find any hidden count.

All that is published of a table is given to it: rows and events of all, and of each group that is
shown, for two columns at once, whose rows are the same people. For each hidden count it looks for
the least and the greatest value that any table with these figures has.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, milp

from predbayes_study.result.groups import shown

MIN_CELL, LEAST = 5, 30


def people(seed):
    """Rows by sex, age and outcome, (S, A, 2), some combinations rare."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4), rng.integers(3, 6)
    table = rng.poisson(rng.gamma(0.7, 40, size=(*sizes, 1)) * rng.dirichlet((5, 1)), (*sizes, 2))
    return table.astype(int)


def published(table):
    """Which groups of either column are shown, with their counts by outcome."""
    for axis in (0, 1):
        counts = table.sum(axis=1 - axis)
        yield axis, counts, shown(torch.from_numpy(counts), MIN_CELL, LEAST)


def known(table):
    """All published sums, as linear constraints on the cells of the whole table."""
    cells = np.arange(table.size).reshape(table.shape)
    told = [(cells[..., outcome].ravel(), table[..., outcome].sum()) for outcome in (0, 1)]
    for axis, counts, may in published(table):
        for group, outcome in itertools.product(np.flatnonzero(may), (0, 1)):
            places = np.take(cells[..., outcome], group, axis=axis).ravel()
            told.append((places, counts[group, outcome]))
    matrix = np.zeros((len(told), table.size))
    for row, (places, _) in enumerate(told):
        matrix[row, places] = 1
    values = np.array([value for _, value in told], dtype=float)
    return LinearConstraint(matrix, values, values)


def extremes(table, places):
    """The least and the greatest sum of some cells that fits all that is published."""
    goal = np.zeros(table.size)
    goal[places] = 1
    found = [milp(sign * goal, constraints=known(table), integrality=1) for sign in (1, -1)]
    assert all(one.success for one in found)
    return round(found[0].fun), round(-found[1].fun)


@pytest.mark.parametrize("seed", range(8))
def test_no_hidden_count_can_be_found_by_subtraction(seed):
    table = people(seed)
    cells = np.arange(table.size).reshape(table.shape)
    for axis, counts, may in published(table):
        hidden = [k for k in range(len(may)) if not may[k] and counts[k].sum()]
        if not any(may):
            continue  # nothing of this column is published
        for group, outcome in itertools.product(hidden, (0, 1)):
            places = np.take(cells[..., outcome], group, axis=axis).ravel()
            least, most = extremes(table, places)
            assert least <= counts[group, outcome] <= most
            assert most - least >= MIN_CELL


def test_the_draws_have_groups_to_hide_and_groups_to_show():
    found = [m for seed in range(25) for _, _, may in published(people(seed)) for m in may]
    assert 20 < sum(found) < len(found) - 20


def test_without_hiding_a_second_group_the_first_would_follow():
    """The same solver finds a count that is left out alone: the test above can fail."""
    table = np.array([[[60, 20], [70, 30]], [[50, 3], [40, 10]]])
    assert shown(torch.from_numpy(table.sum(1)), MIN_CELL, LEAST) == [True, True]
    by_age = table.sum(0)
    assert shown(torch.from_numpy(by_age), MIN_CELL, LEAST) == [True, True]
    small = table.copy()
    small[1, :, 1] = (1, 2)  # three events: too few
    assert shown(torch.from_numpy(small.sum(1)), MIN_CELL, LEAST) == [False, False]
    assert small[..., 1].sum() - small[0, :, 1].sum() == 3  # which subtraction would tell


@pytest.mark.parametrize(
    ("counts", "may"),
    [
        ([[50, 20], [60, 30]], [True, True]),
        ([[50, 20], [60, 30], [0, 0]], [True, True, False]),
        ([[50, 2], [60, 30], [90, 40]], [False, False, True]),
        ([[50, 0], [60, 30], [90, 40]], [False, False, True]),  # no event tells of everybody
        ([[2, 1], [1, 1], [60, 30], [90, 40]], [False, False, False, True]),  # together too few
        ([[10, 4], [12, 9], [60, 30]], [False, False, True]),
    ],
)
def test_which_groups_are_hidden(counts, may):
    assert shown(torch.tensor(counts), MIN_CELL, LEAST) == may
