from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from predbayes.errors import ExperimentError
from predbayes.experiments.statistics import (
    Summary,
    bootstrap_mean,
    compare,
    holm,
    paired_examples,
    summarise,
    wilcoxon,
)
from tests.oracles import FALSE_ALARM


def p_by_enumeration(differences) -> float:
    """The definition: how many of the 2^n signs have a rank sum as far out as the observed one."""
    ranks = stats.rankdata(np.abs(differences))
    observed = abs((np.sign(differences) * ranks).sum())
    signs = np.array(list(itertools.product((-1, 1), repeat=len(ranks))))
    return float((np.abs(signs @ ranks) >= observed - 1e-9).mean())


class TestSummary:
    def test_standard_error_is_that_of_the_mean(self):
        summary = summarise([1.0, 3.0, 8.0])
        assert summary.mean == pytest.approx(4)
        assert summary.standard_error == pytest.approx(math.sqrt((9 + 1 + 16) / 2 / 3))
        assert summary.num == 3

    def test_one_value_has_no_standard_error(self):
        summary = summarise([2.5])
        assert (summary.mean, summary.num) == (2.5, 1)
        assert math.isnan(summary.standard_error)

    def test_a_run_that_diverged_shows(self):
        summary = summarise([1.0, math.inf])
        assert summary.mean == math.inf
        assert math.isnan(summary.standard_error)

    def test_nothing_cannot_be_summarised(self):
        with pytest.raises(ExperimentError, match="no values"):
            summarise([])

    def test_equal_values_are_certain(self):
        assert summarise([2.0, 2.0]) == Summary(2.0, 0.0, 2)


class TestHolm:
    def test_by_hand(self):
        """Sorted .01 .02 .03 .6, times 4 3 2 1: .04 .06 .06 .6, and the third may not fall."""
        assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])

    def test_step_down_is_monotone(self):
        """.02 * 2 = .04 would fall below .015 * 3 = .045."""
        assert holm([0.015, 0.02, 0.9]) == pytest.approx([0.045, 0.045, 0.9])

    def test_never_above_one(self):
        assert holm([0.5, 0.6, 0.7]) == [1.0, 1.0, 1.0]

    def test_one_test_needs_no_correction(self):
        assert holm([0.03]) == [0.03]
        assert holm([]) == []

    def test_what_is_no_test_does_not_count(self):
        adjusted = holm([0.02, math.nan, 0.5])
        assert adjusted[0] == pytest.approx(0.04)
        assert math.isnan(adjusted[1])


class TestWilcoxon:
    @pytest.mark.parametrize("num", [1, 2, 3, 5, 8, 10])
    def test_is_exact(self, num):
        differences = np.random.default_rng(num).normal(0.4, 1, num)
        assert wilcoxon(differences) == pytest.approx(p_by_enumeration(differences))

    @pytest.mark.parametrize("num", [4, 7, 10])
    def test_is_exact_with_ties(self, num):
        differences = np.random.default_rng(num).choice([-1.0, 1.0, 2.0, 3.0], num)
        assert wilcoxon(differences) == pytest.approx(p_by_enumeration(differences))

    @pytest.mark.parametrize("num", [3, 5, 6, 10, 20])
    def test_smallest_p_is_two_over_two_to_the_n(self, num):
        assert wilcoxon(np.arange(1.0, num + 1)) == pytest.approx(2 / 2**num)

    def test_zeros_are_left_out(self):
        assert wilcoxon([0.0, 1.0, 2.0, 0.0, -3.5]) == wilcoxon([1.0, 2.0, -3.5])

    def test_no_difference_is_no_evidence(self):
        assert wilcoxon([0.0, 0.0, 0.0]) == 1.0

    def test_rounding_does_not_break_ties(self):
        """.3 - .2 and .2 - .1 differ in the last bit, and are one tenth both."""
        noisy = [0.3 - 0.2, 0.1 - 0.2, 0.4, -0.5, 0.6]
        assert abs(noisy[0]) != abs(noisy[1])
        assert wilcoxon(noisy) == p_by_enumeration([1, -1, 4, -5, 6]) != p_by_enumeration(noisy)

    def test_sign_does_not_matter(self):
        differences = np.random.default_rng(0).normal(1, 1, 9)
        assert wilcoxon(differences) == wilcoxon(-differences)

    @pytest.mark.parametrize("digits", [1, 15])
    def test_many_pairs_are_approximated(self, digits):
        """By the normal law of the signed rank sum, whose variance is the sum of squared ranks."""
        differences = np.random.default_rng(0).normal(0.2, 1, 60).round(digits)
        ranks = stats.rankdata(np.abs(differences))
        z = (np.sign(differences) * ranks).sum() / math.sqrt((ranks**2).sum())
        assert wilcoxon(differences) == pytest.approx(2 * stats.norm.sf(abs(z)), rel=0.05)

    def test_a_run_that_diverged_is_no_test(self):
        assert math.isnan(wilcoxon([1.0, math.nan]))
        assert math.isnan(wilcoxon([]))


class TestBootstrap:
    def test_width_is_that_of_the_plug_in_normal(self):
        values = np.random.default_rng(0).normal(3, 2, 200)
        low, high = bootstrap_mean(values)
        assert low < values.mean() < high
        expected = 2 * 1.96 * values.std() / math.sqrt(200)
        assert high - low == pytest.approx(expected, rel=0.05)

    def test_moves_and_stretches_with_the_values(self):
        values = np.random.default_rng(0).normal(size=7)
        low, high = bootstrap_mean(values, seed=3)
        assert bootstrap_mean(2 * values + 5, seed=3) == pytest.approx((2 * low + 5, 2 * high + 5))

    def test_covers_the_mean_as_often_as_documented(self):
        """84 % at five seeds, far from 95 %, and nearly 95 % at fifty."""
        rng = np.random.default_rng(0)
        for num, coverage in ((5, 0.84), (50, 0.945)):
            hits = 0
            for draw in range(500):
                low, high = bootstrap_mean(rng.normal(size=num), seed=draw, num_draws=500)
                hits += low <= 0 <= high
            assert stats.binomtest(hits, 500, coverage).pvalue > FALSE_ALARM

    def test_seed_decides_the_draws(self):
        values = np.random.default_rng(0).normal(size=9)
        assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1)
        assert bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)

    def test_one_value_has_no_interval(self):
        assert all(math.isnan(end) for end in bootstrap_mean([1.0]))


VALUES = {
    "base": {0: 1.0, 1: 2.0, 2: 3.0},
    "worse": {2: 3.9, 0: 1.1, 1: 2.2, 7: 50.0},
    "same": {0: 1.0, 1: 2.0, 2: 3.0},
    "elsewhere": {8: 1.0},
}


class TestCompare:
    def test_pairs_are_the_seeds_that_both_have(self):
        worse = compare(VALUES, "base")["worse"]
        assert worse.difference == pytest.approx((0.1 + 0.2 + 0.9) / 3)
        assert worse.num == 3
        assert worse.interval[0] == pytest.approx(0.1)
        assert worse.interval[1] == pytest.approx(0.9)

    def test_corrects_for_the_methods_compared(self):
        found = compare(VALUES, "base")
        assert set(found) == {"worse", "same"}
        assert found["worse"].p_value == pytest.approx(0.25)
        assert found["worse"].p_holm == pytest.approx(0.5)
        assert found["same"].p_holm == 1.0
        assert found["same"].interval == (0.0, 0.0)

    def test_an_interval_does_not_depend_on_the_company(self):
        alone = {name: VALUES[name] for name in ("base", "worse")}
        assert compare(alone, "base")["worse"].interval == (
            compare(VALUES, "base")["worse"].interval
        )

    def test_swapping_the_two_turns_the_sign(self):
        there, back = compare(VALUES, "base")["worse"], compare(VALUES, "worse")["base"]
        assert there.difference == pytest.approx(-back.difference)
        assert there.p_value == back.p_value

    def test_an_unknown_baseline_is_refused(self):
        with pytest.raises(ExperimentError, match="'bsae'"):
            compare(VALUES, "bsae")


class TestPairedExamples:
    def test_one_seed_is_the_bootstrap_of_its_rows(self):
        rows = np.random.default_rng(0).normal(1, 2, 400)
        low, high = paired_examples([rows])
        assert (low + high) / 2 == pytest.approx(rows.mean(), abs=0.02)
        assert high - low == pytest.approx(2 * 1.96 * rows.std() / 20, rel=0.08)

    def test_the_same_rows_again_tell_nothing_new(self):
        """Three seeds whose models agree: drawing rows apart would divide the width by √3."""
        rows = np.random.default_rng(0).normal(1, 2, 400)
        assert paired_examples([rows] * 3) == pytest.approx(paired_examples([rows]))

    @pytest.mark.parametrize("sizes", [(400, 400, 400), (399, 400, 401)])
    def test_other_rows_do(self, sizes):
        rng = np.random.default_rng(0)
        rows = [rng.normal(1, 2, size) for size in sizes]
        low, high = paired_examples(rows)
        assert high - low == pytest.approx(2 * 1.96 * 2 / math.sqrt(1200), rel=0.12)

    def test_every_seed_counts_alike_whatever_its_rows(self):
        assert paired_examples([np.zeros(10), np.ones(1000)]) == (0.5, 0.5)

    def test_blocks_do_not_change_the_law(self, monkeypatch):
        """With little memory the draws are made some at a time."""
        rows = np.random.default_rng(0).normal(size=300)
        whole = paired_examples([rows])
        monkeypatch.setattr("predbayes.experiments.statistics._BLOCK", 1000)
        assert paired_examples([rows]) == pytest.approx(whole, abs=1e-12)

    def test_losses_that_are_not_finite_have_no_interval(self):
        assert all(math.isnan(end) for end in paired_examples([np.array([1.0, math.inf])]))

    @pytest.mark.parametrize("rows", [[], [np.ones(1)]])
    def test_too_few_rows_are_refused(self, rows):
        with pytest.raises(ExperimentError, match="two rows"):
            paired_examples(rows)
