from __future__ import annotations

import math

import numpy as np
import pytest

from predbayes.errors import ExperimentError
from predbayes.experiments.records import Record
from predbayes.experiments.verdict import to_markdown, verdicts


def record(method, seed, cell="bike", **scores) -> Record:
    return Record(
        key=f"{method}-{seed}-{cell}",
        experiment="study",
        cell={"data.name": cell},
        method=method,
        seed=seed,
        scores=scores,
    )


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


class TestOutcome:
    def test_a_lower_mean_is_the_lowest(self):
        assert outcome({"ours": STEADY, "theirs": [v + 0.1 for v in STEADY]}) == "lowest"

    def test_up_to_the_tolerance_it_is_within(self):
        assert outcome({"ours": [v + 0.009 for v in STEADY], "theirs": STEADY}) == "within"

    def test_beyond_it_a_steady_difference_is_worse(self):
        values = {"ours": [v + 0.011 for v in STEADY], "theirs": STEADY}
        assert outcome(values) == "worse"
        assert outcome(values, tolerance=0.02) == "within"

    def test_beyond_it_a_difference_of_either_sign_is_level(self):
        ours = [v + d for v, d in zip(STEADY, (0.3, -0.2, 0.2, -0.15, 0.1, 0.0), strict=True)]
        assert outcome({"ours": ours, "theirs": STEADY}) == "level"

    def test_an_nll_below_zero_is_compared_by_its_size(self):
        below = [v - 2 for v in STEADY]
        assert outcome({"ours": [v + 0.005 for v in below], "theirs": below}) == "within"
        assert outcome({"ours": [v + 0.05 for v in below], "theirs": below}) == "worse"


class TestRival:
    def test_it_is_the_best_of_the_others(self):
        records = study({"ours": STEADY, "near": [v + 0.1 for v in STEADY], "far": [9.0] * 6})
        (found,) = verdicts(records, "ours")
        assert (found.rival, found.num) == ("near", 6)
        assert found.relative == pytest.approx(-0.1 / 1.1)
        assert found.interval[0] == pytest.approx(-0.1)

    def test_or_of_those_named(self):
        records = study({"ours": STEADY, "near": [v + 0.1 for v in STEADY], "far": [9.0] * 6})
        (found,) = verdicts(records, "ours", rivals=["far"])
        assert found.rival == "far"

    def test_only_seeds_that_both_have_count(self):
        records = study({"ours": (5.0, 1.0), "theirs": (1.0,)})
        (found,) = verdicts(records, "ours")
        assert (found.mean, found.rival_mean, found.num) == (5.0, 1.0, 1)
        records = study({"ours": (5.0,), "theirs": (1.0, 9.0)})
        (found,) = verdicts(records, "ours")
        assert (found.mean, found.rival_mean, found.num) == (5.0, 1.0, 1)

    def test_one_that_diverged_is_none(self):
        records = study({"ours": STEADY, "near": [math.nan] * 6, "far": [9.0] * 6})
        (found,) = verdicts(records, "ours")
        assert found.rival == "far"

    def test_cells_are_judged_apart(self):
        first = study({"ours": STEADY, "theirs": [v + 1 for v in STEADY]})
        second = study({"ours": STEADY, "theirs": [v - 0.5 for v in STEADY]}, cell="air")
        assert [v.outcome for v in verdicts([*first, *second], "ours")] == ["lowest", "worse"]

    def test_the_losses_of_test_rows_give_the_interval_where_they_are(self, tmp_path):
        records = study({"ours": (1.2,), "theirs": (1.0,)})
        rng = np.random.default_rng(0)
        theirs = rng.normal(1.0, 0.1, 400).astype(np.float32)
        noise = rng.normal(0.0, 30.0, 400).astype(np.float32)
        np.save(tmp_path / "theirs-0-bike.npy", theirs - theirs.mean() + 1.0)
        np.save(tmp_path / "ours-0-bike.npy", theirs + noise - (theirs + noise).mean() + 1.2)
        (found,) = verdicts(records, "ours", losses=tmp_path)
        assert found.interval[0] < 0 < found.interval[1]
        assert found.outcome == "level"


class TestRefusals:
    def test_more_must_not_be_better(self):
        with pytest.raises(ExperimentError, match="less is better"):
            verdicts(
                study({"ours": STEADY, "theirs": STEADY}, metric="accuracy"),
                "ours",
                metric="accuracy",
            )

    def test_rivals_must_have_records(self):
        with pytest.raises(ExperimentError, match="no method 'nobody'"):
            verdicts(study({"ours": STEADY, "theirs": STEADY}), "ours", rivals=["nobody"])

    def test_somebody_must_share_a_seed(self):
        records = [*study({"ours": (1.0,)}), record("theirs", 7, nll=1.0)]
        with pytest.raises(ExperimentError, match="shares no seed"):
            verdicts(records, "ours")


def test_markdown_says_who_against_whom():
    found = verdicts(study({"ours": STEADY, "theirs": [v + 0.1 for v in STEADY]}), "ours")
    text = to_markdown(found, "ours")
    assert (
        "| bike | 1.0000 | theirs | 1.1000 | -9.1 % | -0.1000 to -0.1000 | 0.031 | lowest |" in text
    )
    assert "ours minus its best rival" in text
    assert "6 seeds, paired" in text
