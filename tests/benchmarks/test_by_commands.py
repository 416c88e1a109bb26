"""Studies by the commands of predbayes alone: the parts, and one split of each from end to end."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
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
from predbayes.study.coordinator.study import Study
from predbayes.study.kit.kit import freeze
from predbayes.study.plan.schema import Plan
from predbayes.study.result.model import CalibratedModel
from predbayes.study.tables.cells import read_frame
from predbayes.study.tables.coding import code_table, code_targets
from predbayes.study.tables.mapping import read_site_table
from predbayes.study.tables.sitefile import SiteFile


def wines(num: int) -> pd.DataFrame:
    """Made-up rows with the publisher's columns."""
    rng = np.random.default_rng(0)
    names = ["fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides"]
    names += ["free sulfur dioxide", "total sulfur dioxide", "sulphates"]
    table = pd.DataFrame({name: rng.uniform(0, 2, num).round(2) for name in names})
    measured = {"density": (0.99, 1.0), "pH": (3.0, 4.0), "alcohol": (8.0, 15.0)}
    for name, (low, high) in measured.items():
        table[name] = rng.uniform(low, high, num).round(3)
    return table.assign(quality=rng.integers(3, 9, num))


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


class TestRegression:
    @pytest.fixture
    def out(self, tmp_path):
        regression.prepare(wines(900), tmp_path / "study", np.random.default_rng(0))
        return tmp_path / "study"

    def test_every_wine_has_one_place_and_the_strong_are_apart(self, out):
        parts = [read_frame(out / "coordinator" / "reference.csv")]
        previous = 0.0
        for site in regression.SITES:
            tables = [
                read_frame(out / site.folder / name) for name in ("wines.csv", "later-wines.csv")
            ]
            parts += tables
            strength = pd.concat(tables)["alcohol"].astype(float)
            assert strength.min() >= previous
            previous = strength.max()
        assert sum(map(len, parts)) == 900
        assert len(pd.concat([part["alcohol"] + part["pH"] for part in parts]).unique()) > 890

    def test_other_units_are_the_plans_when_the_site_file_has_read_them(self, tmp_path):
        plan, table, path = Plan.loads(regression.PLAN), wines(50), tmp_path / "wines.csv"
        assert plan.target.unit == regression.UNIT
        regression.in_other_units(table).to_csv(path, index=False)
        site = SiteFile.loads(f"format = 1\nname = 'Strong'\n{regression.OTHER_UNITS}")
        found = read_site_table(plan, site, path)
        torch.testing.assert_close(code_table(plan, found), code_table(plan, table))
        torch.testing.assert_close(code_targets(plan, found), code_targets(plan, table))

    def test_kits_repeat_where_secrets_do(self, out):
        digests = []
        for number, seed in enumerate((0, 0, 1)):
            with known_secrets(seed):
                kit = freeze(out / "coordinator" / "plan.toml", out / f"kit {number}")
            digests.append(kit.digest)
        assert digests[0] == digests[1] != digests[2]


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
def test_four_hospitals_by_commands_each_training_in_a_process_of_its_own(tmp_path):
    script, out = example(), tmp_path / "study"

    def run(folder, arguments):
        """Starting a process takes seconds, and there are 33 commands."""
        trains = arguments[:2] == ["site", "train"]
        (script.as_process if trains else run_quietly)(folder, arguments)

    with known_secrets(0):
        script.main(uci("heart", "heart"), out, run=run)
    study = Study(out / "coordinator" / "study")
    assert study.verify() == []
    assert {site.site for site in study.result(1).sites} == {h.name for h in script.HOSPITALS}
    split = {
        hospital.name: models_at_home(out, hospital, "patients.csv")
        for hospital in script.HOSPITALS
    }
    found = scores([split], list(split))
    assert found["adopted"]["accuracy"] > 0.7
    assert found["adopted"]["nll"] < 0.6
    # Nearly all patients there are ill: one model for all does not know that.
    swiss = scores([split], ["Zürich"])
    assert swiss["adopted"]["nll"] < swiss["global"]["nll"]
    for hospital in script.HOSPITALS:
        told = comparison(out, hospital)
        assert told.choice in told.scores
        assert (out / hospital.folder / "out" / "egress.html").is_file()


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
    assert plan.reference.synthetic.rows == plan.reference.num_rows == script.NUM_SYNTHETIC
    study = Study(coordinator / "study")
    assert study.verify() == []
    result = study.result(1)
    assert result.student.scores is None
    assert [site.name for site in result.table_one.sites] == sorted(h.name for h in script.ALIKE)
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
