"""Many sites: copies by sketches, influence by subtraction, rounds, and what is kept of a site."""

from __future__ import annotations

import pytest
import torch

from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import Contribution
from predbayes.seeding import generator
from predbayes_study.result import copies, screening
from predbayes_study.result.conclude import compact
from predbayes_study.result.copies import copies_among
from predbayes_study.result.influence import PoolLosses
from predbayes_study.result.screening import screen
from tests.study.result.test_screening import (
    FAMILIES,
    PRIOR,
    QUICK,
    always_the_same,
    honest,
    kinds,
    left_out,
    replaced,
    truth,
    with_noise,
    wrong,
    wrong_and_sure,
)

MANY = copies.ALL_PAIRS + 60


def many(family, rng, num=MANY, num_rows=120, error=0.7):
    targets, signal = truth(family, rng, num_rows)
    sites = [honest(family, signal, rng, error, f"site {k:03d}") for k in range(num)]
    return sites, targets


class TestSketches:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize(("noisy", "error"), [(False, 0.1), (True, 0.7)])
    def test_all_planted_copies_are_found_and_none_is_invented(self, family, noisy, error, rng):
        """With a small error all sites are near each other, and copies nearer still."""
        sites, _ = many(family, rng, 400, error=error)
        expected = {}
        for k in range(0, 40, 2):
            copied, first = sites[k + 1].predictive, sites[k]
            if noisy:
                copied = with_noise(copied, rng)
            sites[k] = replaced(first, copied)
            group = (f"site {k:03d}", f"site {k + 1:03d}")
            expected |= dict.fromkeys(group, group)
        assert copies_among(sites) == expected
        assert copies_among(sites[::-1]) == expected

    def test_no_copy_can_be_aimed_at_the_directions(self, rng, monkeypatch):
        """It changes little, and all of it where directions that it knows see the most."""
        sites, _ = many(Categorical, rng, 150, num_rows=300)
        usual = float(copies.hellinger(sites[1].predictive, sites[2].predictive).mean())
        roots = (0.5 * sites[0].predictive.log_probs.double()).exp()
        known = copies._directions(7, roots.numel()).double()
        seen_most = torch.linalg.svd(known, full_matrices=False).U[:, 0].view_as(roots)
        step = (0.05 * min(usual, 0.1) * 2 * len(roots)) ** 0.5
        aimed = Categorical.from_moments((roots + step * seen_most).square().float())
        sites[3] = replaced(sites[3], aimed)
        group = ("site 000", "site 003")
        assert copies_among(sites) == dict.fromkeys(group, group)
        monkeypatch.setattr(copies, "_seed_of", lambda sites: 7)
        assert copies_among(sites) == {}  # it was, for whoever knew them

    def test_a_thousand_copies_are_one_group(self, rng):
        """Each has the same tuple, not one of its own: memory is linear."""
        sites, _ = many(Categorical, rng, 1000, num_rows=30)
        same = [replaced(site, sites[0].predictive) for site in sites]
        found = copies_among(same)
        assert len(found) == 1000
        assert len({id(group) for group in found.values()}) == 1


class TestSubtraction:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_taking_away_is_folding_without(self, family, rng):
        sites, targets = many(family, rng, 12)
        losses = PoolLosses(targets, seed=0, prior=PRIOR[family])
        whole = losses.tuned(sites).total
        less = losses.tuned(sites).without(sites[3:5]).total
        rest = losses.tuned([*sites[:3], *sites[5:]]).total
        assert less.num_clients == rest.num_clients
        assert less.components == rest.components
        for name in rest.components:
            torch.testing.assert_close(less.component(name), rest.component(name))
        back = losses.tuned(sites).without(sites[3:5]).with_sites(sites[3:5]).total
        torch.testing.assert_close(back.component("mixture"), whole.component("mixture"))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_effects_are_differences_of_losses_at_the_same_weights(self, family, rng):
        sites, targets = many(family, rng, 12)
        losses = PoolLosses(targets, seed=0, prior=PRIOR[family])
        pool = losses.tuned(sites)
        weights = pool.choice.tuned.weights
        before = -pool.total.pool(weights).log_prob(targets).double()
        found = pool.effects(sites)
        assert list(found) == [site.site for site in sites]
        for k in (0, 7):
            rest = losses.tuned([site for site in sites if site is not sites[k]]).total
            gaps = -rest.pool(weights).log_prob(targets).double() - before
            assert found[sites[k].site].value == pytest.approx(float(gaps.mean()), abs=1e-9)
            assert found[sites[k].site].error == pytest.approx(
                float(gaps.std()) / len(gaps) ** 0.5, rel=1e-6
            )


class TestRounds:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_same_are_left_out_as_one_by_one(self, family, monkeypatch):
        # A draw in which all three are found out; whatever the draw, both ways find the same.
        sites, targets = many(family, torch.Generator().manual_seed(0), 12)
        for k, poison in enumerate((wrong, wrong_and_sure, always_the_same)):
            sites[3 * k] = replaced(sites[3 * k], poison(sites[3 * k].predictive))
        losses = PoolLosses(targets, seed=0, prior=PRIOR[family], specs=QUICK)
        one_by_one = screen(sites, targets, losses=losses)
        monkeypatch.setattr(screening, "ALL_PAIRS", 10)
        in_rounds = screen(sites, targets, losses=losses)
        assert left_out(one_by_one) == left_out(in_rounds) == {"site 000", "site 003", "site 006"}
        for name, one in one_by_one.items():
            assert kinds(one) - {"harmful"} == kinds(in_rounds[name]) - {"harmful"}

    def test_of_many_sites_the_bad_go_and_the_order_is_irrelevant(self, rng):
        sites, targets = many(Categorical, rng)
        bad = {site.site for site in sites[::10]}
        sites[::10] = [replaced(site, wrong(site.predictive)) for site in sites[::10]]
        losses = PoolLosses(targets, seed=0, specs=QUICK)
        found = screen(sites, targets, losses=losses)
        assert left_out(found) == bad
        assert {name for name, one in found.items() if one.findings} == bad
        assert all(one.influence is not None for one in found.values())
        assert left_out(screen(sites[::-1], targets, losses=losses)) == bad


@pytest.mark.parametrize("family", [Categorical, Gaussian])
def test_a_site_keeps_the_memory_of_its_rows_and_no_more(family):
    rng = generator(0, "memory")
    whole = honest(family, truth(family, rng, 2000)[1], rng).predictive
    kept = compact(Contribution("a", whole[:50], 100.0, None, torch.zeros(2000)[:50]))
    tensors = [kept.predictive.natural(), kept.gate]
    assert torch.equal(tensors[0], whole[:50].natural())
    held = kept.predictive.mean if family is Gaussian else kept.predictive.log_probs
    for tensor in (held, kept.gate):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
