"""Pools that keep sites apart fulfil the contract of every pool."""

from __future__ import annotations

import pytest

from predbayes_lab.baselines.sites_apart import BestSite, RidgeStacker, SimplexStacking
from predbayes_lab.released import beta
from tests.core.contracts.test_pools import Case, TestPoolContract, cases_of  # noqa: F401

POOLS = {
    "best site": BestSite(),
    "simplex stacking": SimplexStacking(),
    "ridge stacker": RidgeStacker(),
    "released beta": beta("released"),
}


@pytest.fixture(scope="module", **cases_of(POOLS))
def case(request):
    return Case.of(*request.param)
