"""What every pool must do with predictives from anywhere: no learner, no upload, no site trains.

A new pool is one more entry of POOLS: it gets the whole suite.
"""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.auto import AutoPool
from predbayes.pools.best_site import BestSite
from predbayes.pools.beta import BetaPool, mixture, product
from predbayes.pools.gated import GatedPool
from predbayes.pools.informed import gpoe, rbcm
from predbayes.pools.pool import Contribution
from predbayes.pools.stacking import LogPool, RidgeStacker, SimplexStacking
from predbayes.pools.tempered import Tempered
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from predbayes.summand import Kept, fold

OWN_POOL = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_pool.py"))["Median"]
POOLS = {
    "mixture": mixture(),
    "product": product(),
    "robust committee": rbcm(),
    "generalised product": gpoe(),
    "beta": BetaPool(),
    "released beta": BetaPool("released"),
    "tempered mixture": Tempered(),
    "tempered product": Tempered("product"),
    "auto": AutoPool(),
    "auto, kept apart": AutoPool(keep_apart=True, num_folds=2),
    "auto, too few labels": AutoPool(min_labels=100),
    "best site": BestSite(),
    "gated mixture": GatedPool(),
    "gated log pool": GatedPool("log", exponent=0.5),
    "log pool": LogPool(),
    "simplex stacking": SimplexStacking(),
    "ridge stacker": RidgeStacker(),
    "one's own": OWN_POOL(),
}
CASES = [
    pytest.param(pool, family, id=f"{name}-{family.__name__}")
    for name, pool in POOLS.items()
    for family in (Categorical, Gaussian)
    if family in pool.families
]
NUM_LABELS, NUM_ROWS = 40, 60


def world(family, num_sites=3):
    """What sites of different size say of the reference rows, each with errors of its own."""
    rng = generator(0, "pools")
    y = torch.randn(NUM_ROWS, generator=rng)
    truth = (y > -0.5).long() + (y > 0.5).long()
    sites = []
    for k in range(num_sites):
        noise = torch.randn(NUM_ROWS, 3, generator=rng)
        if family is Categorical:
            logits = 2 * torch.nn.functional.one_hot(truth, 3) + noise
            predictive = Categorical.from_natural(logits)
            counts = torch.tensor([5.0, 3.0, 2.0]) * (k + 1)
        else:
            epistemic = torch.full((NUM_ROWS,), 0.05 * (k + 1))
            predictive = Gaussian(y + 0.4 * noise[:, 0], epistemic + 0.1, epistemic)
            counts = None
        gate = noise[:, 1].clamp(-2, 2) - 1
        sites.append(Contribution(f"site{k}", predictive, 10 * (k + 1), counts, gate))
    targets = (truth if family is Categorical else y)[:NUM_LABELS]
    return sites, ReferenceRows(torch.zeros(NUM_ROWS, 2), targets, NUM_ROWS - NUM_LABELS)


def pooled(pool, sites, reference, seed=0):
    state = pool.init(reference)
    total = fold(pool.lift(state, site) for site in sites)
    return pool.finish(state, total, reference, rng=generator(seed)).predictive


@pytest.mark.parametrize(("pool", "family"), CASES)
class TestPoolContract:
    def test_predicts_on_every_reference_row(self, pool, family):
        predictive = pooled(pool, *world(family))
        assert isinstance(predictive, family)
        assert len(predictive) == NUM_ROWS
        assert family.is_proper(predictive.natural())

    def test_same_seed_same_result(self, pool, family):
        first, second = (pooled(pool, *world(family)).natural() for _ in range(2))
        assert torch.equal(first, second)

    def test_order_of_sites_is_irrelevant(self, pool, family):
        sites, reference = world(family)
        first, second = (pooled(pool, s, reference).natural() for s in (sites, sites[::-1]))
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)

    def test_one_site_is_enough(self, pool, family):
        assert len(pooled(pool, *world(family, num_sites=1))) == NUM_ROWS

    def test_totals_made_apart_add(self, pool, family):
        sites, reference = world(family)
        state = pool.init(reference)
        lifted = [pool.lift(state, site) for site in sites]
        total = fold(lifted[:1]).add_(fold(lifted[1:]))
        merged = pool.finish(state, total, reference, rng=generator(0)).predictive
        torch.testing.assert_close(
            merged.natural(), pooled(pool, sites, reference).natural(), rtol=1e-4, atol=1e-4
        )
        assert pool.streams is not isinstance(total, Kept)

    def test_finishing_leaves_what_was_handed_in(self, pool, family):
        sites, reference = world(family)
        state = pool.init(reference)
        total = fold(pool.lift(state, site) for site in sites)
        first, second = (
            pool.finish(state, total, reference, rng=generator(0)).predictive for _ in range(2)
        )
        assert torch.equal(first.natural(), second.natural())
        for site, before in zip(sites, world(family)[0], strict=True):
            assert torch.equal(site.predictive.natural(), before.predictive.natural())

    def test_unlabelled_rows_tune_nothing(self, pool, family):
        """Labelled rows are pooled alike, whatever sites say of the others."""
        sites, reference = world(family)
        fewer = ReferenceRows(reference.inputs[:NUM_LABELS], reference.targets)
        cut = [
            replace(s, predictive=s.predictive[:NUM_LABELS], gate=s.gate[:NUM_LABELS])
            for s in sites
        ]
        torch.testing.assert_close(
            pooled(pool, cut, fewer).natural(),
            pooled(pool, sites, reference)[:NUM_LABELS].natural(),
            rtol=1e-4,
            atol=1e-4,
        )
