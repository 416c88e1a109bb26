from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predbayes.errors import ExperimentError
from predbayes_lab.verdict import note_on, tally, to_markdown, verdicts
from tests.lab.test_tables import record


def study(values, cell="bike", metric="nll"):
    return [
        record(method, seed, cell, **{metric: value})
        for method, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]


def outcome(values, **options):
    (found,) = verdicts(study(values), "ours", **options)
    return found.outcome


STEADY = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)


def shifted(*by):
    return [v + d for v, d in zip(STEADY, by, strict=True)]


class TestOutcome:
    def test_a_clear_difference_is_better_or_worse(self):
        higher = shifted(0.1, 0.11, 0.09, 0.1, 0.1, 0.1)
        assert outcome({"ours": STEADY, "theirs": higher}) == "better"
        assert outcome({"ours": higher, "theirs": STEADY}) == "worse"

    def test_inside_the_margin_it_is_level(self):
        ours = shifted(0.002, -0.003, 0.001, 0.004, -0.002, 0.003)
        assert outcome({"ours": ours, "theirs": STEADY}) == "level"
        assert outcome({"ours": ours, "theirs": STEADY}, margin=0.001) == "undecided"

    def test_a_wide_interval_around_zero_shows_nothing(self):
        ours = shifted(0.3, -0.2, 0.2, -0.15, 0.1, 0.0)
        (found,) = verdicts(study({"ours": ours, "theirs": STEADY}), "ours")
        assert found.outcome == "undecided"
        assert not found.not_worse

    def test_not_worse_needs_the_upper_end_within_the_margin(self):
        ours = shifted(-0.1, 0.0, -0.09, 0.0, -0.05, 0.0)
        (found,) = verdicts(study({"ours": ours, "theirs": STEADY}), "ours")
        low, high = found.best.relative_interval
        assert low < -0.01 < 0 < high < 0.01
        assert found.outcome == "undecided"
        assert found.not_worse
        assert "| undecided, not worse |" in to_markdown([found], "ours")

    def test_one_seed_decides_nothing(self):
        (found,) = verdicts(study({"ours": (1.0,), "theirs": (2.0,)}), "ours")
        assert found.outcome == "undecided"
        assert not found.not_worse
        assert "One seed has no interval" in to_markdown([found], "ours")

    def test_an_nll_below_zero_is_compared_by_its_size(self):
        below = [v - 2 for v in STEADY]
        assert outcome({"ours": [v + 0.005 for v in below], "theirs": below}) == "level"
        assert outcome({"ours": [v + 0.05 for v in below], "theirs": below}) == "worse"

    def test_overlapping_test_sets_widen_the_interval(self):
        """Paired t of these differences is 3.2 without the correction, 1.9 with it."""
        values = {"ours": shifted(0.1, 0.0, 0.05, 0.08, 0.02, 0.03), "theirs": STEADY}
        data = {"name": "bike", "variant": "default", "num_test": 146, "num_train": 585}
        drawn = [replace(r, data=data) for r in study(values)]
        assert outcome(values) == "worse"
        (found,) = verdicts(drawn, "ours")
        assert found.outcome == "undecided"
        assert "Nadeau and Bengio" in note_on(drawn)
        assert note_on(study(values)) == ""


class TestRival:
    def test_it_is_the_best_of_the_others(self):
        values = {"near": [v + 0.1 for v in STEADY], "far": [9.0] * 6, "diverged": [math.nan] * 6}
        (found,) = verdicts(study({"ours": STEADY, **values}), "ours")
        assert (found.best.rival, found.best.num) == ("near", 6)
        assert found.best.relative == pytest.approx(-0.1 / 1.1)
        assert found.best.interval[0] == pytest.approx(-0.1)

    def test_only_seeds_that_both_have_count(self):
        records = study({"ours": (5.0, 1.0), "theirs": (1.0,)})
        (found,) = verdicts(records, "ours")
        assert (found.best.mean, found.best.rival_mean, found.best.num) == (5.0, 1.0, 1)
        records = study({"ours": (5.0,), "theirs": (1.0, 9.0)})
        (found,) = verdicts(records, "ours")
        assert (found.best.mean, found.best.rival_mean, found.best.num) == (5.0, 1.0, 1)

    def test_the_losses_of_test_rows_give_the_interval_where_they_are(self, tmp_path):
        records = study({"ours": (1.2,), "theirs": (1.0,)})
        rng = np.random.default_rng(0)
        theirs = rng.normal(1.0, 0.1, 400).astype(np.float32)
        noise = rng.normal(0.0, 30.0, 400).astype(np.float32)
        np.save(tmp_path / "theirs-0-bike.npy", theirs - theirs.mean() + 1.0)
        np.save(tmp_path / "ours-0-bike.npy", theirs + noise - (theirs + noise).mean() + 1.2)
        (found,) = verdicts(records, "ours", losses=tmp_path)
        assert found.best.interval[0] < 0 < found.best.interval[1]
        assert found.p_value > 0.05  # of the interval, though one seed has no test over seeds
        assert found.outcome == "undecided"


def test_lines_are_counted_by_what_they_say():
    values = {"ours": STEADY, "theirs": [v + 1 for v in STEADY]}
    found = tally(verdicts(study(values), "ours"))
    assert {word: num for word, num in found.items() if num} == {
        "better": 1,
        "lowest": 1,
        "not worse": 1,
    }
    assert tally(verdicts(study(values), "theirs"))["worse"] == 1


class TestManyRivals:
    """Better is better than each; worse is worse than one, as of many one is by chance."""

    def test_an_unsteady_rival_is_not_beaten_by_beating_a_steady_one(self):
        unsteady = shifted(0.9, -0.4, 0.8, -0.3, 0.7, -0.2)
        steady = shifted(0.1, 0.11, 0.09, 0.1, 0.1, 0.1)
        values = {"ours": STEADY, "steady": steady, "unsteady": unsteady}
        (found,) = verdicts(study(values), "ours")
        assert found.best.rival == "steady"
        assert found.best.interval[1] < 0
        assert (found.hardest.rival, found.outcome) == ("unsteady", "undecided")
        assert found.p_value == found.hardest.p_value > 0.05
        assert outcome(values, rivals=["steady"]) == "better"

    def test_worse_allows_for_the_number_of_rivals(self):
        ours = shifted(0.1, 0.0, 0.05, 0.08, 0.02, 0.03)
        values = {"ours": ours, "theirs": STEADY}
        assert outcome(values) == "worse"
        values["far"] = [9.0] * 6
        (found,) = verdicts(study(values), "ours")
        (alone,) = verdicts(study(values), "ours", rivals=["theirs"])
        assert found.p_value == pytest.approx(2 * alone.p_value)
        assert (alone.outcome, found.outcome) == ("worse", "undecided")

    @pytest.mark.parametrize("num_seeds", [3, 10])
    def test_how_often_a_claim_is_false(self, num_seeds):
        """At most 2.5 % *better* if a rival is as good, 5 % *worse* if nine are; 300 draws.

        The rivals: one as good that is unsteady, and eight as good but for a steady disadvantage.
        Three standard errors of the count are allowed for.
        """
        rng = np.random.default_rng(num_seeds)
        better = worse = 0
        for _ in range(300):
            ours = 1 + rng.normal(0, 0.02, num_seeds)
            unsteady = 1 + rng.normal(0, 0.2, num_seeds)
            close = {f"r{k}": ours + 0.05 + rng.normal(0, 0.01, num_seeds) for k in range(8)}
            better += outcome({"ours": ours, "unsteady": unsteady, **close}) == "better"
            equal = {f"r{k}": 1 + rng.normal(0, 0.2, num_seeds) for k in range(9)}
            noisy = 1 + rng.normal(0, 0.2, num_seeds)
            worse += outcome({"ours": noisy, **equal}) == "worse"
        assert better / 300 <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 300)
        assert worse / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


class TestTable:
    def test_what_holds_by_itself_alone_is_said(self):
        """A p of .029 is .058 after Holm's correction for this line and another like it."""
        clear = study({"ours": STEADY, "theirs": [v + 1 for v in STEADY]})
        ours = shifted(0.1, 0.0, 0.05, 0.08, 0.02, 0.03)
        faint = study({"ours": ours, "theirs": STEADY}, cell="air")
        (alone,) = verdicts(faint, "ours")
        assert 0.01 < alone.p_value < 0.05
        assert "| worse |" in to_markdown([alone], "ours")
        twice = [*faint, *(replace(r, cell={"data.name": "sea"}) for r in faint)]
        lines = to_markdown(verdicts([*clear, *twice], "ours"), "ours").splitlines()
        assert lines[2].endswith("| better |")
        for line in lines[3:5]:
            assert line.endswith("|  | 0.029 | 0.058 | worse by itself |")


class TestRefusals:
    def test_more_must_not_be_better(self):
        with pytest.raises(ExperimentError, match="less is better"):
            verdicts(
                study({"ours": STEADY, "theirs": STEADY}, metric="accuracy"),
                "ours",
                metric="accuracy",
            )

    def test_somebody_must_share_a_seed(self):
        records = [*study({"ours": (1.0,)}), record("theirs", 7, nll=1.0)]
        with pytest.raises(ExperimentError, match="shares no seed"):
            verdicts(records, "ours")
