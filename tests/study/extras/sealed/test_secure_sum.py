"""Terms in words of 64 bits: their sum is that of the sites, and what cannot be is refused."""

from __future__ import annotations

import pytest
import torch

from predbayes.errors import PoolError
from predbayes.predictive.families import Categorical, Survival
from predbayes.predictive.pooling import (
    PredictiveSum,
)
from predbayes.predictive.selection import CATEGORICAL_TERMS, SURVIVAL_TERMS
from predbayes.summand import fold
from predbayes_study.extras.sealed.fixed_point import FixedPoint
from predbayes_study.extras.sealed.secure_sum import from_words, to_words

FORM = FixedPoint(20, 3, -12.0, 1000, 10)


def site(seed, sharpness=2.0):
    rng = torch.Generator().manual_seed(seed)
    predictive = Categorical.from_natural(sharpness * torch.randn(20, 3, generator=rng))
    return predictive, torch.randint(5, 200, (3,), generator=rng).double()


def words_of(seed):
    predictive, counts = site(seed)
    return to_words(FORM, predictive, float(counts.sum()), counts)


def summand(seed, terms=CATEGORICAL_TERMS):
    predictive, counts = site(seed)
    return PredictiveSum.of(
        predictive, float(counts.sum()), class_rows=counts, terms=terms, floor=-12.0
    )


class TestWords:
    def test_their_sum_gives_every_pool_of_the_sites(self):
        opened = from_words(FORM, sum(words_of(seed) for seed in range(4)), 4)
        plain = fold(summand(seed) for seed in range(4))
        assert opened.num_clients == 4
        assert set(opened.components) == set(plain.components)
        for name in opened.components:
            torch.testing.assert_close(
                opened.component(name), plain.component(name), rtol=0, atol=2e-7
            )

    def test_a_site_counts_for_no_more_rows_than_the_plan_allows(self):
        predictive, counts = site(0)
        many = from_words(FORM, to_words(FORM, predictive, 1e6, counts * 1e6 / counts.sum()), 1)
        assert many.weight("moments") == 1000
        shares = many.weight("class_mixture")
        torch.testing.assert_close(shares.view(-1), counts * 1000 / counts.sum())

    def test_a_term_that_64_bits_cannot_hold_is_refused_by_name(self):
        with pytest.raises(PoolError, match=r"the term 'moments' needs 76 bits .* lower max_rows"):
            _ = FixedPoint(20, 3, -80.0, 10**9, 10**6).parts

    def test_what_no_sites_can_have_is_refused(self):
        words = words_of(0)
        with pytest.raises(PoolError, match=r"a sum of this plan has 3\d\d words"):
            from_words(FORM, words[1:], 1)
        with pytest.raises(PoolError, match="11 sites are more than max_sites = 10"):
            from_words(FORM, words, 11)
        with pytest.raises(PoolError, match="the masks are not those of these uploads"):
            from_words(FORM, words + 2**62, 1)


class TestTimes:
    """The words of a time to an event."""

    FORM = FixedPoint(20, 4, -12.0, 1000, 10, survival=True)

    @staticmethod
    def site(seed, sharpness=3.0):
        rng = torch.Generator().manual_seed(seed)
        return Survival(sharpness * torch.randn(20, 4, generator=rng) - 1), 50.0 + 100 * seed

    def summand(self, seed):
        predictive, rows = self.site(seed)
        return PredictiveSum.of(predictive, rows, terms=SURVIVAL_TERMS, floor=-12.0)

    def test_their_sum_gives_every_pool_of_the_sites(self):
        words = [to_words(self.FORM, *self.site(seed)) for seed in range(4)]
        opened = from_words(self.FORM, sum(words), 4)
        plain = fold(self.summand(seed) for seed in range(4))
        assert (opened.family, opened.num_clients) == (Survival, 4)
        assert set(opened.components) == set(plain.components)
        for name in opened.components:
            torch.testing.assert_close(
                opened.component(name), plain.component(name), rtol=0, atol=1e-6
            )

    def test_the_surest_sites_of_most_rows_do_not_wrap(self):
        sure = Survival(torch.full((20, 4), 1e6) * torch.tensor([1, -1, 1, -1]))
        words = to_words(self.FORM, sure, 1e9)
        assert words.shape == (self.FORM.size,)
        alone, many = (from_words(self.FORM, num * words, num) for num in (1, 10))
        for name in set(alone.components) - {"product"}:
            torch.testing.assert_close(alone.component(name), many.component(name))
        assert many.weight("moments") == 10 * 1000

    def test_classes_are_no_intervals(self):
        predictive, counts = site(0)
        with pytest.raises(PoolError, match="not predictions of the plan's intervals"):
            to_words(FixedPoint(20, 3, -12.0, 1000, 10, survival=True), predictive, 9.0, counts)
        with pytest.raises(PoolError, match="not predictions of the plan's classes"):
            to_words(FixedPoint(20, 4, -12.0, 1000, 10), *self.site(0))
