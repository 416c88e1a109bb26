"""The benchmarks reach what the docs claim of them; minutes each, so slow.

Ratios are measured on machines that others use, too: the bounds are those of the claims, and a
busy machine can break them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow("whole benchmarks")
ROOT = Path(__file__).parents[2]


def figures(name: str, folder: Path) -> dict:
    """Run a benchmark in a folder of its own, so that no old record is read."""
    import os

    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks", name],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(finished.stdout.splitlines()[-1])


def test_memory_is_flat_and_folding_fast(tmp_path):
    result = figures("streaming", tmp_path)
    assert result["rss_ratio"] <= 1.1
    assert result["throughput_ratio"] >= 0.5


def test_a_resnet_18_fits_into_two_gigabytes(tmp_path):
    for name, found in figures("resnet", tmp_path).items():
        assert found["parameters"] == 11_181_642
        assert found["as_read"]
        assert found["peak_bytes"] < 2e9, name


def test_a_thousand_sites_over_flower_cost_little_more_than_their_bytes(tmp_path):
    result = figures("flower", tmp_path)
    assert result["clients"] == 1000
    assert result["rss_ratio"] <= 1.2
    assert result["rss_ratio_finished"] <= 1.2
    assert result["wall_ratio"] <= 1.25


def test_a_mixed_federation_is_as_good_as_one_of_most_kinds(tmp_path):
    result = figures("mixed", tmp_path)
    nll = {name: scores["nll"] for name, scores in result["scores"].items()}
    alone = [value for name, value in nll.items() if name.startswith("all ")]
    assert result["same_bits"]
    assert len(alone) == 5
    for way in ("mixed, in Python", "mixed, by files"):
        assert sum(nll[way] < value + 0.02 for value in alone) >= 4


@pytest.mark.data
def test_promised_coverage_holds(tmp_path):
    found = figures("coverage", tmp_path)
    assert found["reached"]  # with counts of any size
    for name, lines in found["lines"].items():
        for level in (0.8, 0.9, 0.95):
            small, usual, rows = (
                lines[f"{level:g} {line} coverage"] for line in ("min_cell 1", "min_cell 5", "rows")
            )
            assert level - 0.005 <= small <= level + 0.02, name
            # No small count follows from what is told, and docs/intervals.md says what that costs.
            assert small <= usual <= level + 0.065, name
            assert rows <= small


@pytest.mark.data
def test_the_released_run_takes_a_fifteenth_of_its_time_and_is_no_worse(tmp_path):
    result = figures("endtoend", tmp_path)
    assert result["speedup"] >= 15
    for name in ("beta", "student"):
        ours = result[result["headline"]][name]["nll"]
        assert ours <= result["released"]["nll"][name]


@pytest.mark.data
def test_four_hospitals_together_beat_the_labels_alone(tmp_path):
    result = figures("hospitals", tmp_path)
    assert result["accuracy"] >= 0.785
    assert result["nll"] <= 0.455
    assert result["minus"]["labels alone"]["auto"]["nll"]["mean"] < 0


@pytest.mark.data
def test_four_hospitals_that_begin_with_nothing_are_near_all_rows(tmp_path):
    result = figures("nothing", tmp_path)
    assert result["reached"], result
    assert result["nll"] <= 0.455
    assert result["accuracy"] >= 0.79
    assert result["adopted_nll"] <= 0.44


@pytest.mark.data
def test_what_a_site_takes_home_marks_wines_better_than_its_own_model(tmp_path):
    result = figures("regression", tmp_path)
    adopted, own = result["lines"]["adopted"], result["lines"]["own"]
    for metric in ("rmse", "crps", "nll"):
        assert adopted[metric] < own[metric]
    assert abs(adopted["coverage_95"] - 0.95) < abs(own["coverage_95"] - 0.95)
    assert result["advised_worse_beyond_interval"] == 0


@pytest.mark.data
def test_poisoned_sites_are_named_and_cost_little_and_honest_ones_stay(tmp_path):
    result = figures("screening", tmp_path)
    assert result["all_named"]
    assert result["worst"]["poisoned"] <= 1.05
    assert result["worst"]["honest"] <= 1.01


def test_the_default_plan_wins_in_the_clinic(tmp_path):
    result = figures("clinic", tmp_path)
    assert result["auroc"] >= result["auroc_centralised"] - 0.005
    assert result["auroc"] > result["auroc_best_site"]
