from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from predbayes.errors import ExperimentError
from predbayes_lab.statistics import (
    compare,
    holm,
    over_rows,
    summarise,
    t_test,
)


class TestSummary:
    def test_standard_error_is_that_of_the_mean(self):
        summary = summarise([1.0, 3.0, 8.0])
        assert summary.mean == pytest.approx(4)
        assert summary.standard_error == pytest.approx(math.sqrt((9 + 1 + 16) / 2 / 3))
        assert summary.num == 3


class TestHolm:
    def test_by_hand(self):
        """Sorted .01 .02 .03 .6, times 4 3 2 1: .04 .06 .06 .6, and the third may not fall."""
        assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])

    def test_step_down_is_monotone(self):
        """.02 * 2 = .04 would fall below .015 * 3 = .045."""
        assert holm([0.015, 0.02, 0.9]) == pytest.approx([0.045, 0.045, 0.9])

    def test_what_is_no_test_does_not_count(self):
        adjusted = holm([0.02, math.nan, 0.5])
        assert adjusted[0] == pytest.approx(0.04)
        assert math.isnan(adjusted[1])


class TestTTest:
    @pytest.mark.parametrize("num", [2, 3, 10])
    def test_is_students(self, num):
        differences = np.random.default_rng(num).normal(0.4, 1, num)
        expected = stats.ttest_1samp(differences, 0)
        found = summarise(differences)
        assert t_test(found) == pytest.approx(expected.pvalue)
        assert found.interval == pytest.approx(tuple(expected.confidence_interval()))

    def test_overlap_is_the_correction_of_nadeau_and_bengio(self):
        differences = np.random.default_rng(0).normal(1, 1, 10)
        plain, corrected = summarise(differences), summarise(differences, 0.25)
        ratio = math.sqrt((1 / 10 + 0.25) / (1 / 10))
        assert corrected.standard_error == pytest.approx(ratio * plain.standard_error)
        assert corrected.mean == plain.mean

    def test_no_difference_is_no_evidence_and_a_constant_one_is(self):
        assert t_test(summarise([0.0, 0.0, 0.0])) == 1.0
        assert t_test(summarise([0.5, 0.5])) == 0.0

    def test_one_value_is_no_test(self):
        assert math.isnan(t_test(summarise([1.0])))
        assert all(map(math.isnan, summarise([1.0]).interval))
        assert math.isnan(t_test(summarise([1.0, math.nan])))


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
        assert worse.interval == pytest.approx(summarise([0.1, 0.2, 0.9]).interval)

    def test_corrects_for_the_methods_compared(self):
        found = compare(VALUES, "base")
        assert set(found) == {"worse", "same"}
        expected = stats.ttest_rel([1.1, 2.2, 3.9], [1.0, 2.0, 3.0]).pvalue
        assert found["worse"].p_value == pytest.approx(expected)
        assert found["worse"].p_holm == pytest.approx(2 * expected)
        assert found["same"].p_holm == 1.0
        assert found["same"].interval == (0.0, 0.0)


class TestOverRows:
    def test_one_seed_is_the_t_interval_of_its_rows(self):
        rows = np.random.default_rng(0).normal(1, 2, 400)
        expected = stats.ttest_1samp(rows, 0).confidence_interval()
        assert over_rows([rows]) == pytest.approx(tuple(expected))

    def test_the_same_rows_again_tell_nothing_new(self):
        """Three seeds whose models agree: rows on their own would divide the width by √3."""
        rows = np.random.default_rng(0).normal(1, 2, 400)
        assert over_rows([rows] * 3) == pytest.approx(over_rows([rows]))

    def test_losses_that_are_not_finite_have_no_interval(self):
        assert all(math.isnan(end) for end in over_rows([np.array([1.0, math.inf])]))

    @pytest.mark.parametrize("rows", [[], [np.ones(1)]])
    def test_too_few_rows_are_refused(self, rows):
        with pytest.raises(ExperimentError, match="two rows"):
            over_rows(rows)
