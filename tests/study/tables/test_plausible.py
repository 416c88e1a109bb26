"""Tables that fit a plan to the letter, in another unit or with the target swapped."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predbayes_study.kit.draft import draft
from predbayes_study.kit.kit import freeze
from predbayes_study.plan.schema import Number, Plan
from predbayes_study.plan.text import dump
from predbayes_study.tables.check import site_problems
from predbayes_study.tables.plausible import target_doubts, unit_doubt
from predbayes_study.tables.reading import read_frame
from predbayes_study.tables.sitefile import SiteFile

EXAMPLE = Path(__file__).parents[3] / "examples" / "four-hospitals"
DOUBTS = ("another unit", "swapped", "wrong way round", "far from that of the reference rows")


def doubt(name, unit, centre, scale, values, *, theirs="x", is_log=False):
    column = Number(type="number", unit=unit, centre=centre, scale=scale)
    return unit_doubt(name, column, values, theirs=theirs, where="here", is_log=is_log)


def drawn(middle, spread, num=300):
    return np.random.default_rng(1).normal(middle, spread, num)


class TestUnits:
    @pytest.mark.parametrize(
        ("name", "unit", "centre", "scale", "by", "factor"),
        [
            ("glucose", "mg/dl", 110, 35, 1 / 18.016, "18.016"),
            ("glucose", "mmol/l", 6.1, 2.0, 18.016, "0.0555062"),
            ("creatinine", "umol/l", 97, 45, 1 / 88.42, "88.42"),
            ("creatinine", "mg/dl", 1.1, 0.5, 88.42, "0.0113097"),
            ("height", "cm", 171, 9, 1 / 2.54, "2.54"),
            ("weight", "kg", 76, 15, 1 / 0.45359237, "0.453592"),
            ("weight", "", 76, 15, 1000, "0.001"),
            ("length of stay", "h", 150, 60, 0.1, "10"),
        ],
    )
    def test_another_unit_is_named_with_its_factor(self, name, unit, centre, scale, by, factor):
        # A site is not the reference rows: its middle is elsewhere and its rows are less spread.
        values = drawn((centre + 0.3 * scale) * by, 0.8 * scale * by)
        assert f"write factor = {factor} here" in doubt(name, unit, centre, scale, values)
        assert not doubt(name, unit, centre, scale, values / by)

    def test_a_target_in_logarithms_has_a_factor(self):
        values = np.log(np.random.default_rng(0).lognormal(1.2, 0.7, 300))
        assert "write factor = 1000 here" in doubt("cost", "€", 8.1, 0.7, values, is_log=True)
        assert not doubt("cost", "€", 1.2, 0.7, values, is_log=True)

    def test_an_offset_is_named_and_a_column_far_off_asked_about(self):
        found = doubt("temperature", "c", 37.2, 0.8, drawn(99, 1.4))
        assert "write factor = 0.555556, offset = -17.7778 here" in found
        assert "is it the right column" in doubt("weight", "kg", 76, 2, drawn(62, 3))

    def test_skewed_columns_outliers_and_few_rows_are_no_reason(self):
        assert not doubt("height", "cm", 171, 9, drawn(67, 3, num=19))
        draw = np.random.default_rng(0)
        crp = draw.lognormal(2, 1.3, 4000)
        site = np.append(draw.lognormal(1.5, 1.3, 300), [9999.0])
        assert not doubt("crp", "mg/l", crp.mean(), crp.std(), site)


class TestTargets:
    def plan(self, share=None, trends=(None, None)):
        target = {"name": "ill", "task": "classification", "classes": ["no", "yes"], "share": share}
        columns = {
            name: {"type": "number", "trend": trend}
            for name, trend in zip("ab", trends, strict=True)
        }
        return Plan.model_validate(
            {"format": 1, "name": "p", "target": target, "columns": columns, "reference": {}}
        )

    @pytest.mark.parametrize(("plans", "here"), [(0.15, 0.82), (0.9, 0.14)])
    def test_a_share_near_one_minus_the_plans(self, plans, here):
        targets = (np.arange(400) < 400 * here).astype(float)
        codes = np.zeros((400, 2))
        [found] = target_doubts(self.plan(plans), codes, targets)
        assert "are they swapped?" in found
        assert not [*target_doubts(self.plan(plans), codes, 1 - targets)]

    @pytest.mark.parametrize(("plans", "here"), [(0.15, 0.45), (0.46, 0.93), (0.4, 0.6)])
    def test_other_patients_are_no_reason(self, plans, here):
        targets = (np.arange(400) < 400 * here).astype(float)
        assert not [*target_doubts(self.plan(plans), np.zeros((400, 2)), targets)]

    def test_numbers_that_point_the_other_way(self):
        draw = np.random.default_rng(0)
        targets = (draw.random(400) < 0.5).astype(float)
        codes = np.stack([targets, -targets], 1) + draw.normal(0, 1.5, (400, 2))
        plan = self.plan(trends=(0.3, -0.2))
        [found] = target_doubts(plan, codes, 1 - targets)
        assert "wrong way round" in found
        assert not [*target_doubts(plan, codes, targets)]
        assert not [*target_doubts(plan, draw.normal(size=(400, 2)), targets)]

    def test_plan_new_writes_what_it_rests_on(self):
        draw = np.random.default_rng(0)
        ill = draw.random(500) < 0.2
        age = draw.normal(55, 9, 500) + 6 * ill
        frame = pd.DataFrame({"age": age.round(1).astype(str), "ill": np.where(ill, "yes", "no")})
        plan = draft(frame, name="p", target="ill", file="f.csv").plan
        assert plan.target.share == pytest.approx(ill.mean(), abs=0.006)
        assert plan.columns["age"].trend == pytest.approx(np.corrcoef(age, ill)[0, 1], abs=0.051)
        few = draft(frame[:40], name="p", target="ill", file="f.csv").plan
        assert (few.target.share, few.columns["age"].trend) == (None, None)


class TestNoFalseAlarm:
    @pytest.mark.data
    def test_four_hospitals(self, tmp_path, monkeypatch):
        study = self.example(monkeypatch)
        data = Path(os.environ["PREDBAYES_DATA"]) / "uci" / "heart"
        study.prepare(data, tmp_path, 0)
        folder = tmp_path / "coordinator"
        agreed = Plan.load(folder / "plan.toml")
        # As `plan new` would have drafted it, with all that doubts rest on.
        drafted = draft(
            read_frame(folder / "reference.csv"), name="p", target="disease", file="reference.csv"
        ).plan
        assert drafted.target.share
        columns = {
            name: column.model_copy(update={"trend": getattr(drafted.columns[name], "trend", None)})
            if column.type == "number"
            else column
            for name, column in agreed.columns.items()
        }
        assert sum(bool(getattr(column, "trend", None)) for column in columns.values()) >= 3
        plan = agreed.model_copy(update={"target": drafted.target, "columns": columns})
        (folder / "plan.toml").write_text(dump(plan))
        kit = freeze(folder / "plan.toml", tmp_path / "kit")
        for hospital in study.HOSPITALS:
            at = tmp_path / hospital.folder
            own = SiteFile.load(at / "site.toml")
            found = site_problems(kit.plan, own, at / "patients.csv").findings
            assert not [f.text for f in found if any(word in f.text for word in DOUBTS)]
            self.swapped_is_found(kit.plan, own, at / "patients.csv", hospital.name)

    def swapped_is_found(self, plan, own, path, name):
        """The other way: Cleveland and Budapest with yes for no are noticed."""
        recode = {k: "no" if v == "yes" else "yes" for k, v in own.target.recode.items()}
        swapped = own.model_copy(
            update={"target": own.target.model_copy(update={"recode": recode})}
        )
        texts = " ".join(f.text for f in site_problems(plan, swapped, path).errors)
        assert ("swapped" in texts or "wrong way round" in texts) == (
            name in ("Cleveland", "Budapest")
        )

    def example(self, monkeypatch):
        spec = importlib.util.spec_from_file_location("four_hospitals", EXAMPLE / "study.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look
        spec.loader.exec_module(module)
        return module
