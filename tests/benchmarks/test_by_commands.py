"""Studies by the commands of predbayes alone: the parts, and one split of each from end to end."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks import regression
from benchmarks.by_commands import (
    ADVISED,
    COMPARISON_FILE,
    comparison,
    example,
    known_secrets,
    models_at_home,
    run_quietly,
    scores,
    uci,
    worse_beyond_interval,
)
from predbayes.errors import DataError
from predbayes_study.coordinator.study import Study
from predbayes_study.plan.schema import Plan
from predbayes_study.result.model import CalibratedModel
from predbayes_study.tables.reading import read_frame


class TestScores:
    @staticmethod
    def rows(*squares: float):
        return {"rmse": torch.tensor(squares, dtype=torch.float64)}

    def test_of_all_sites_is_of_their_rows_together_and_the_mean_over_splits(self):
        first = {"A": {"own": self.rows(1.0, 1.0, 1.0)}, "B": {"own": self.rows(13.0)}}
        second = {"A": {"own": self.rows(9.0)}, "B": {"own": self.rows(9.0)}}
        found = scores([first, second], ["A", "B"])
        assert found == {"own": {"rmse": pytest.approx((2.0 + 3.0) / 2)}}
        assert scores([first], ["B"])["own"]["rmse"] == pytest.approx(math.sqrt(13))

    @pytest.mark.parametrize(
        ("advised", "worse"),
        [([1.1, 2.1, 3.0], True), ([1.1, 1.5, 3.1], False), ([0.9, 1.9, 2.8], False)],
    )
    def test_worse_is_beyond_two_standard_errors_of_paired_rows(self, advised, worse):
        def nll(values):
            return {"nll": torch.tensor(values, dtype=torch.float64)}

        assert (
            worse_beyond_interval({"own": nll([1.0, 2.0, 2.8]), "advised": nll(advised)}) == worse
        )


def test_data_that_is_not_there_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PREDBAYES_DATA", str(tmp_path))
    with pytest.raises(DataError, match="run `predbayes data fetch wine`"):
        uci("winequality-red.csv", "wine")


@pytest.mark.slow("a whole study, by commands")
@pytest.mark.data
def test_a_regression_by_commands_comes_home_in_the_targets_unit(tmp_path):
    """Marks are whole points from 3 to 8; also where a site writes them in percent."""
    out = tmp_path / "study"
    with known_secrets(0):
        regression.conduct(out, 0)
    study = Study(out / "coordinator" / "study")
    assert study.verify() == []
    assert study.result(1).student.scores.metrics["rmse"].value < 0.8
    of_spread = []
    for site in regression.SITES:
        at = out / site.folder
        later = read_frame(at / f"later-{regression.TABLE}")
        marks = later["quality"].astype(float)
        predicted = CalibratedModel.load(at / "adopted").predict(later)
        assert predicted["mean"].mean() == pytest.approx(marks.mean(), abs=0.3)
        models = models_at_home(out, site, regression.TABLE)
        found = scores([{site.name: models}], [site.name])["adopted"]
        errors = predicted["mean"].to_numpy() - marks.to_numpy()
        assert found["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-5)
        of_spread.append(found["rmse"] / marks.std())
        assert of_spread[-1] < 1.1  # of one cellar, where marks hardly differ
        assert found["width_95"] == pytest.approx((predicted["high"] - predicted["low"]).mean())
        assert found["coverage_95"] > 0.8
        assert comparison(out, site).choice in models
    assert np.mean(of_spread) < 0.95


@pytest.mark.slow("a whole study, by commands")
@pytest.mark.data
def test_four_hospitals_from_nothing_by_commands(tmp_path):
    """No reference row and no label; yet no hospital's patients are told worse than by chance."""
    script, out = example(), tmp_path / "study"
    with known_secrets(0):
        script.from_nothing(uci("heart", "heart"), out, run=run_quietly)
    coordinator = out / "coordinator"
    assert not (coordinator / "reference.csv").exists()
    plan = Plan.load(coordinator / "kit" / "plan.toml")
    assert plan.sections["survey"].synthetic.rows == plan.reference.num_rows == script.NUM_SYNTHETIC
    study = Study(coordinator / "study")
    assert study.verify() == []
    result = study.result(1)
    assert result.student.scores is None
    sites = result.extras["survey"]["sites"]
    assert [site["name"] for site in sites] == sorted(h.name for h in script.ALIKE)
    models = {site.name: models_at_home(out, site, "patients.csv") for site in script.ALIKE}
    found = scores([models], [site.name for site in script.ALIKE])
    assert found["global"]["nll"] < 0.48
    assert found["adopted"]["nll"] < 0.48
    # Whatever is advised is scored, also what is in no folder.
    first = script.ALIKE[0]
    path = out / first.folder / "adopted" / COMPARISON_FILE
    for choice, same in (("half", "adopted"), ("simple", None)):
        told = comparison(out, first).model_copy(
            update={"choice": choice, "simple": "logistic-regression"}
        )
        path.write_text(told.model_dump_json())
        again = models_at_home(out, first, "patients.csv")
        alike = [n for n in ("own", "adopted", "global") if same_rows(again[n], again[ADVISED])]
        assert alike == ([same] if same else [])


def same_rows(one, two):
    return torch.equal(one["nll"], two["nll"])
