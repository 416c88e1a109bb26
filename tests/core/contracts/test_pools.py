"""What every pool must do with predictives from anywhere: no learner, no upload, no site trains.

A new pool is one more entry of POOLS: it gets the whole suite.
"""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from predbayes.exchange.reference import ReferenceRows
from predbayes.pools.auto import AutoPool
from predbayes.pools.terms import beta, gated, gpoe, log_pool, mixture, product, rbcm, tempered
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import Contribution
from predbayes.seeding import generator
from predbayes.summand import Collected, fold

OWN_POOL = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "own_pool.py"))["Median"]
POOLS = {
    "mixture": mixture(),
    "product": product(),
    "robust committee": rbcm(),
    "generalised product": gpoe(),
    "beta": beta(),
    "tempered mixture": tempered(),
    "tempered product": tempered("product"),
    "auto": AutoPool(),
    "auto, kept apart": AutoPool(keep_apart=True, num_folds=2),
    "auto, too few labels": AutoPool(min_labels=100),
    "gated mixture": gated(),
    "gated log pool": gated("log", exponent=0.5),
    "log pool": log_pool(),
    "one's own": OWN_POOL(),
}


def cases_of(pools):
    """The options of a fixture that is each pool in each of its families."""
    params = [
        pytest.param((pool, family), id=f"{name}-{family.__name__}")
        for name, pool in pools.items()
        for family in (Categorical, Gaussian)
        if family in pool.families
    ]
    return {"params": params}


NUM_LABELS, NUM_ROWS = 40, 60


def world(family):
    """What sites of different size say of the reference rows, each with errors of its own."""
    rng = generator(0, "pools")
    y = torch.randn(NUM_ROWS, generator=rng)
    truth = (y > -0.5).long() + (y > 0.5).long()
    sites = []
    for k in range(3):
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


@dataclass(frozen=True)
class Case:
    """A pool after its one run."""

    pool: Any
    family: type
    sites: list[Contribution]
    reference: ReferenceRows
    total: Any
    predictive: Any

    @classmethod
    def of(cls, pool, family):
        sites, reference = world(family)
        state = pool.init(reference)
        total = fold(pool.lift(state, site) for site in sites)
        predictive = pool.finish(state, total, reference, rng=generator(0)).predictive
        return cls(pool, family, sites, reference, total, predictive)

    def finished(self, total, reference=None):
        reference = reference or self.reference
        state = self.pool.init(reference)
        return self.pool.finish(state, total, reference, rng=generator(0)).predictive

    def folded(self, sites, reference=None):
        state = self.pool.init(reference or self.reference)
        return fold(self.pool.lift(state, site) for site in sites)


@pytest.fixture(scope="module", **cases_of(POOLS))
def case(request):
    return Case.of(*request.param)


def close(one, other):
    torch.testing.assert_close(one.natural(), other.natural(), rtol=1e-4, atol=1e-4)


class TestPoolContract:
    def test_predicts_on_every_reference_row(self, case):
        assert isinstance(case.predictive, case.family)
        assert len(case.predictive) == NUM_ROWS
        assert case.family.is_proper(case.predictive.natural())

    def test_a_total_can_be_finished_again_to_the_same_bits(self, case):
        again = case.finished(case.total)
        assert torch.equal(again.natural(), case.predictive.natural())
        for site, before in zip(case.sites, world(case.family)[0], strict=True):
            assert torch.equal(site.predictive.natural(), before.predictive.natural())

    def test_totals_made_apart_add_in_any_order(self, case):
        *others, last = case.sites
        total = case.folded([last]).add_(case.folded(others[::-1]))
        close(case.finished(total), case.predictive)
        assert case.pool.streams is not isinstance(total, Collected)

    def test_one_site_is_enough(self, case):
        assert len(case.finished(case.folded(case.sites[:1]))) == NUM_ROWS

    def test_unlabelled_rows_tune_nothing(self, case):
        """Labelled rows are pooled alike, whatever sites say of the others."""
        fewer = ReferenceRows(case.reference.inputs[:NUM_LABELS], case.reference.targets)
        cut = [site.at(slice(NUM_LABELS)) for site in case.sites]
        close(case.finished(case.folded(cut, fewer), fewer), case.predictive[:NUM_LABELS])
