"""Taking the model home: the adjustment, the comparison, and what is advised."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

from predbayes.errors import StudyError
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import nll
from predbayes.seeding import generator
from predbayes_study.result.model import OWN_FILE, CalibratedModel, halved
from predbayes_study.site import simple
from predbayes_study.site.adopt import (
    MIN_TO_COMPARE,
    adopt,
    advise,
    cross_adjusted,
    evaluated_rows,
    losses,
    own_network,
)
from predbayes_study.site.rows import SiteRows, split_rows
from predbayes_study.site.training import Holdout
from predbayes_study.tables.coding import code_table
from predbayes_study.tasks import task_for
from predbayes_study.tasks.classes import Intercept
from predbayes_study.tasks.numbers import ShiftScale
from tests.study.world import home_plan, untrained

TARGETS = {
    "classes": 'task = "classification", classes = ["no", "yes", "perhaps"]',
    "number": 'task = "regression", unit = "days", centre = 12.0, scale = 4.0',
    "log": 'task = "regression", unit = "days", transform = "log", centre = 2.0, scale = 0.5',
}
SHIFTS = {"classes": Intercept(shifts=(1.0, -0.5, -0.5))}
SHIFTS |= dict.fromkeys(("number", "log"), ShiftScale(shift=0.4, var_factor=2.0))


@pytest.fixture(autouse=True)
def _without_trees(monkeypatch):
    """Boosting costs seconds for each adoption; `test_simple` has it."""

    def few(plan):
        learners = dict(learners_of(plan))
        del learners["gradient-boosting"]
        return learners

    learners_of = simple.simple_learners
    monkeypatch.setattr(simple, "simple_learners", few)


def make_model(kind="classes"):
    return untrained(home_plan(TARGETS[kind]), temperature=0.9)


def make_rows(model, num_rows=200, truth=None):
    """Rows whose targets are drawn from the model, adjusted as a site's may be."""
    rng = generator(1, "rows")
    inputs = torch.randn(num_rows, model.plan.num_inputs, generator=rng)
    predictive = model.predictive(inputs)
    predictive = predictive if truth is None else truth.apply(predictive)
    if isinstance(predictive, Categorical):
        targets = torch.multinomial(predictive.moments(), 1, generator=rng)[:, 0]
    else:
        noise = torch.randn(num_rows, generator=rng)
        targets = predictive.mean + predictive.var.sqrt() * noise
    return SiteRows(inputs, targets)


def make_own(model, rows, predictive=None, site="Basel"):
    """What a site's own model says of its held-out rows; by default what the global one says."""
    held_out = split_rows(model.plan, site, len(rows.targets))[1]
    said = model.predictive(rows.inputs) if predictive is None else predictive
    return Holdout(held_out, said[held_out], rows.digest(), model.plan.digest())


def interval(value, half):
    return Estimate(value=value, low=value - half, high=value + half)


class TestCrossFitting:
    @pytest.mark.parametrize("kind", TARGETS)
    def test_a_rows_own_target_has_no_part_in_its_prediction(self, kind):
        model = make_model(kind)
        rows = make_rows(model, 30)
        predictive = model.predictive(rows.inputs)
        changed = rows.targets.clone()
        changed[7] = (changed[7] + 1) % 3
        before = cross_adjusted(predictive, rows.targets, rng=generator(0, "parts"))
        after = cross_adjusted(predictive, changed, rng=generator(0, "parts"))
        same = [torch.equal(before[i].natural(), after[i].natural()) for i in _each(30)]
        assert same[7]
        assert 1 <= sum(same) <= 3 + 1  # its part alone
        fitted = task_for(predictive).adjust(predictive, rows.targets).apply(predictive)
        assert nll(before, rows.targets) > nll(fitted, rows.targets)

    @pytest.mark.parametrize("kind", TARGETS)
    def test_nor_have_rows_of_the_same_patient(self, kind):
        model = make_model(kind)
        rows = make_rows(model, 30)
        predictive, patients = model.predictive(rows.inputs), torch.arange(30) // 3
        changed = rows.targets.clone()
        changed[7] = (changed[7] + 1) % 3
        made = {"rng": generator(0, "parts"), "groups": patients}
        before = cross_adjusted(predictive, rows.targets, **made)
        after = cross_adjusted(predictive, changed, **made | {"rng": generator(0, "parts")})
        same = [torch.equal(before[i].natural(), after[i].natural()) for i in _each(30)]
        assert all(same[6:9])
        assert sum(same) < 30

    def test_rows_keep_their_order(self):
        predictive = Gaussian(torch.arange(25.0), torch.ones(25))
        adjusted = cross_adjusted(predictive, torch.arange(25.0), rng=generator(0, "parts"))
        assert adjusted.mean.tolist() == pytest.approx(range(25))


def _each(num_rows):
    return [torch.tensor([index]) for index in range(num_rows)]


BETTER, SAME, WORSE = interval(-0.1, 0.05), interval(0.01, 0.05), interval(0.1, 0.05)


class TestAdvice:
    def minus(self, nll, error=None):
        found = {"nll": nll, "error": error or SAME}
        return {"adopted": found, "global": found}

    @pytest.mark.parametrize(
        ("nll", "error", "change", "choice"),
        [
            (BETTER, SAME, SAME, "adopted"),
            (SAME, SAME, SAME, "adopted"),
            *((WORSE, SAME, change, "own") for change in (BETTER, SAME, WORSE)),
            (SAME, WORSE, SAME, "own"),  # it errs more
            (SAME, SAME, WORSE, "global"),
            (None, None, WORSE, "global"),  # without a model of their own
            *((None, None, change, "adopted") for change in (BETTER, SAME)),
        ],
    )
    def test_it_follows_from_the_intervals(self, nll, error, change, choice):
        minus = None if nll is None else self.minus(nll, error)
        found, words = advise(40, minus, change)
        assert found == choice
        assert "\n" not in words
        assert ("was not compared" in words) is (minus is None)
        assert advise(MIN_TO_COMPARE - 1, self.minus(BETTER), change)[0] == "own"

    def test_half_of_each_is_advised_where_its_mean_is_lower(self):
        minus = {**self.minus(SAME), "half": {"nll": BETTER, "error": SAME}}
        choice, words = advise(40, minus, SAME, interval(-0.001, 0.1))
        assert choice == "half"
        assert "half adopted, half own" in words
        assert advise(40, minus, SAME, interval(0.001, 0.1))[0] == "adopted"
        assert advise(40, minus, WORSE, interval(-0.001, 0.1))[0] == "global"

    def test_half_of_each_is_not_advised_where_alone_is_better(self):
        minus = {**self.minus(SAME), "half": {"nll": WORSE, "error": SAME}}
        assert advise(40, minus, SAME, BETTER)[0] == "own"


def disagreeing(kind):
    """A model, rows of which it and the site's own model each know half, and that one."""
    model, rng = make_model(kind), generator(3, "half")
    inputs = torch.randn(160, model.plan.num_inputs, generator=rng)
    came = model.predictive(inputs)
    shift = torch.zeros_like(came.natural())
    shift[:, 1] = 4 * inputs[:, 0].abs()
    own = type(came).from_natural(came.natural() + (shift if kind == "classes" else 0))
    truth = halved(came, own).moments()
    targets = torch.multinomial(truth, 1, generator=rng)[:, 0] if kind == "classes" else truth[:, 0]
    rows = SiteRows(inputs, targets)
    return model, rows, dataclasses.replace(make_own(model, rows, own), taught=(inputs, own))


@pytest.fixture(scope="module", params=["classes", "number"])
def by_half(request):
    model, _, own = disagreeing(request.param)
    half = own_network(model.plan, "Basel", own)
    return dataclasses.replace(model, adjustment=SHIFTS[request.param], own=half)


class TestHalf:
    def test_it_is_taken_where_each_knows_half(self, tmp_path):
        model, rows, own = disagreeing("classes")
        found = adopt(model, "Basel", rows, own)
        scores = found.comparison.scores
        rest = (scores[name].metrics["nll"].value for name in ("own", "adopted", "global"))
        assert scores["half"].metrics["nll"].value < min(rest)
        assert found.comparison.choice == "half"
        assert found.comparison.half_minus_adopted.value < 0
        found.save(tmp_path)
        assert CalibratedModel.load(tmp_path).own is not None

    def test_natural_parameters_are_half_of_each_also_after_saving(self, by_half, tmp_path):
        inputs = torch.randn(20, by_half.plan.num_inputs, generator=generator(4, "half"))
        came = dataclasses.replace(by_half, adjustment=None, own=None)
        said = by_half.adjustment.apply(came.predictive(inputs)).natural()
        said = said + by_half.own.predict(inputs).natural()
        expected = type(came.predictive(inputs)).from_natural(said / 2).moments()
        by_half.save(tmp_path)
        for model in (by_half, CalibratedModel.load(tmp_path)):
            torch.testing.assert_close(model.predictive(inputs).moments(), expected)

    def test_onnx_says_the_same(self, by_half, tmp_path):
        model = by_half
        frame = pd.DataFrame({"age": ["61", "70", "45"], "ward": ["1", "2", ""]}, dtype="string")
        model.export_onnx(tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        told = session.run(None, {"codes": code_table(model.plan, frame).numpy()})[0]
        said = model.predict(frame)
        columns = [name for name in said if name.startswith("probability")] or ["mean"]
        np.testing.assert_allclose(told.reshape(3, -1), said[columns], rtol=1e-4, atol=1e-5)

    def test_an_own_half_that_was_altered_is_refused(self, by_half, tmp_path):
        by_half.save(tmp_path)
        path = tmp_path / OWN_FILE
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(StudyError, match=r"own\.safetensors was altered"):
            CalibratedModel.load(tmp_path)
        path.unlink()
        with pytest.raises(StudyError, match=r"cannot read .*own\.safetensors"):
            CalibratedModel.load(tmp_path)

    def test_without_an_adjustment_there_is_no_half(self, by_half):
        with pytest.raises(StudyError, match="no adjustment of hers"):
            dataclasses.replace(by_half, adjustment=None)

    def test_a_home_that_says_nothing_of_reference_rows_has_no_half(self):
        model, _, own = disagreeing("classes")
        assert own_network(model.plan, "Basel", dataclasses.replace(own, taught=None)) is None


class TestAdopting:
    @pytest.mark.parametrize("kind", TARGETS)
    def test_a_site_that_differs_gets_its_difference_back(self, kind):
        model = make_model(kind)
        rows = make_rows(model, 2000, SHIFTS[kind])
        found = adopt(model, "Basel", rows, make_own(model, rows))
        fitted = found.model.adjustment
        if kind == "classes":
            assert fitted.shifts == pytest.approx(SHIFTS[kind].shifts, abs=0.1)
        else:
            assert fitted.shift == pytest.approx(0.4, abs=0.1)
            assert fitted.var_factor == pytest.approx(2.0, rel=0.1)
        comparison = found.comparison
        assert comparison.adopted_minus_global.high < 0
        assert comparison.choice == "adopted"
        assert comparison.minus_own["global"]["nll"] == interval(0.0, 0.0)
        assert comparison.minus_own["adopted"]["nll"].high < 0
        scores = {name: s.metrics["nll"].value for name, s in comparison.scores.items()}
        assert scores["adopted"] < scores["global"] == scores["own"]

    @pytest.mark.parametrize("kind", TARGETS)
    def test_where_alone_is_better_alone_is_advised(self, kind):
        model = make_model(kind)
        rows = make_rows(model, 400)
        if kind == "classes":
            sure = torch.nn.functional.one_hot(rows.targets, 3).double() + 0.1
            own = Categorical.from_moments(sure)
        else:
            own = Gaussian(rows.targets, torch.full_like(rows.targets, 0.01))
        found = adopt(model, "Basel", rows, make_own(model, rows, own)).comparison
        assert found.choice == "own"
        assert found.minus_own["adopted"]["nll"].low > 0

    def test_the_held_out_rows_of_the_comparison_are_those_of_training(self):
        model = make_model()
        rows = make_rows(model, 100)
        found = adopt(model, "Basel", rows, make_own(model, rows)).comparison
        held_out = split_rows(model.plan, "Basel", 100)[1]
        assert (found.num_rows, found.num_held_out) == (100, 20)
        told = losses(model.plan, model.predictive(rows.inputs)[held_out], rows.targets[held_out])
        assert found.scores["global"].metrics["nll"].value == pytest.approx(
            float(told["nll"].mean())
        )
        assert found.scores["global"].num_rows == 20

    def test_two_rows_are_enough_to_be_told_that_they_are_too_few(self):
        model = make_model()
        rows = make_rows(model, 2)
        found = adopt(model, "Basel", rows, make_own(model, rows)).comparison
        assert (found.num_held_out, found.scores, found.choice) == (0, {}, "own")

    def test_what_was_adopted_is_not_adopted_again(self):
        model = make_model()
        rows = make_rows(model, 50)
        adopted = adopt(model, "Basel", rows, None).model
        with pytest.raises(StudyError, match="was adopted before"):
            adopt(adopted, "Basel", rows, None)

    def test_other_rows_than_were_trained_on_are_refused(self):
        model = make_model()
        rows = make_rows(model, 50)
        own = make_own(model, rows)
        other = SiteRows(rows.inputs + 1, rows.targets)
        with pytest.raises(StudyError, match="not those that `predbayes site train` saw"):
            adopt(model, "Basel", other, own)
        with pytest.raises(StudyError, match="not those that `predbayes site train` saw"):
            adopt(model, "Bern", rows, own)  # who holds out other rows
        with pytest.raises(StudyError, match="of another plan"):
            adopt(model, "Basel", rows, dataclasses.replace(own, plan_digest="0" * 64))

    def test_rows_to_evaluate_on_are_those_held_out_or_all(self):
        model = make_model()
        rows = make_rows(model, 50)
        held_out = split_rows(model.plan, "Basel", 50)[1]
        places = evaluated_rows(model.plan, "Basel", rows, make_own(model, rows))
        assert torch.equal(places, held_out)
        assert len(evaluated_rows(model.plan, "Basel", rows, None, everything=True)) == 50
        with pytest.raises(StudyError, match="holds no row out"):
            evaluated_rows(model.plan, "Basel", make_rows(model, 4), None)


class TestAdoptedModel:
    @pytest.fixture
    def frame(self):
        return pd.DataFrame({"age": ["50", "61", "72.5"], "ward": ["1", "", "2"]})

    @pytest.fixture(params=TARGETS)
    def adopted(self, request):
        return dataclasses.replace(make_model(request.param), adjustment=SHIFTS[request.param])

    def test_it_predicts_the_same_after_saving(self, adopted, frame, tmp_path):
        adopted.save(tmp_path)
        loaded = CalibratedModel.load(tmp_path)
        assert loaded.adjustment == adopted.adjustment
        pd.testing.assert_frame_equal(loaded.predict(frame), adopted.predict(frame))

    def test_its_predictions_are_the_adjusted_ones(self, adopted, frame):
        came = dataclasses.replace(adopted, adjustment=None).predict(frame)
        told = adopted.predict(frame)
        if adopted.plan.target.classes:
            odds = came.iloc[:, :3].to_numpy() * np.exp(adopted.adjustment.shifts)
            expected = odds / odds.sum(1, keepdims=True)
            np.testing.assert_allclose(told.iloc[:, :3].to_numpy(), expected, rtol=1e-5)
            return
        log = adopted.plan.target.transform == "log"
        medians = [np.log(f["median"]) if log else f["median"] for f in (came, told)]
        widths = [
            np.log(f["high"]) - m if log else f["high"] - m
            for f, m in zip((came, told), medians, strict=True)
        ]
        np.testing.assert_allclose(
            medians[1] - medians[0], 0.4 * adopted.plan.target.scale, rtol=1e-4
        )
        np.testing.assert_allclose(widths[1] / widths[0], math.sqrt(2.0), rtol=1e-4)

    @pytest.mark.slow("exports three models")
    def test_onnx_says_the_same(self, adopted, frame, tmp_path):
        adopted.export_onnx(tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        codes = code_table(adopted.plan, frame).numpy()
        outputs = session.run(None, {"codes": codes})
        told = adopted.predict(frame)
        if adopted.plan.target.classes:
            np.testing.assert_allclose(outputs[0], told.iloc[:, :3].to_numpy(), atol=1e-5)
        else:
            np.testing.assert_allclose(np.stack(outputs, 1), told.to_numpy(), rtol=1e-4)
        described = session.get_modelmeta().custom_metadata_map
        assert json.loads(described["adjustment"])["kind"] == adopted.adjustment.kind

    def test_it_has_the_weights_of_the_model_as_it_came(self, adopted, tmp_path):
        came = dataclasses.replace(adopted, adjustment=None)
        assert adopted.weights_digest() == came.weights_digest()
        came.save(tmp_path)
        header = json.loads((tmp_path / "model.json").read_text())
        assert header["weights_digest"] == came.weights_digest()
        assert "adjustment" not in header  # so that older versions read it

    def test_an_adjustment_of_another_target_is_refused(self, tmp_path):
        for kind, wrong in (
            ("classes", ShiftScale(shift=0.0, var_factor=1.0)),
            ("classes", Intercept(shifts=(0.5, -0.5))),
            ("number", Intercept(shifts=(0.0,))),
        ):
            with pytest.raises(StudyError, match="not of the plan's target"):
                dataclasses.replace(make_model(kind), adjustment=wrong)

    def test_a_file_with_a_wrong_adjustment_is_refused_in_one_line(self, tmp_path):
        model = dataclasses.replace(make_model(), adjustment=SHIFTS["classes"])
        model.save(tmp_path)
        path = tmp_path / "model.json"
        good = json.loads(path.read_text())
        for wrong in (
            {"kind": "intercept", "shifts": [0.0, 0.0]},
            {"kind": "intercept", "shifts": [0.0, 0.0, "1"]},
            {"kind": "shift-scale", "shift": 0.0, "var_factor": -1.0},
            {"kind": "code"},
        ):
            path.write_text(json.dumps(good | {"adjustment": wrong}))
            with pytest.raises(StudyError) as refused:
                CalibratedModel.load(tmp_path)
            assert "\n" not in str(refused.value)
