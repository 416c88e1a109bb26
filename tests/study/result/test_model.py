from __future__ import annotations

import json
import math

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import safetensors.torch
import torch

import predbayes
from predbayes.errors import DataError, MissingPackageError, StudyError
from predbayes.learning.local import NetworkPredictor
from predbayes.posterior.samples import WeightSamples
from predbayes.seeding import generator
from predbayes_study.plan.models import student_network
from predbayes_study.result import model as model_module
from predbayes_study.result.model import CalibratedModel
from predbayes_study.tables.coding import code_table, encode
from tests.study.world import frozen

CLASSES = 'task = "classification"\nclasses = ["no", "yes", "perhaps"]'
NUMBER = 'task = "regression"\nunit = "days"\ncentre = 12.0\nscale = 4.0'
LOG = 'task = "regression"\nunit = "days"\ntransform = "log"\ncentre = 2.0\nscale = 0.5'
TARGETS = {"classes": CLASSES, "number": NUMBER, "log": LOG}


def make_plan(target):
    return frozen(f"""
format = 1
name = "model"

[target]
name = "outcome"
{target}

[columns]
age = {{ type = "number", unit = "years", range = [18, 100], centre = 60.0, scale = 10.0 }}
weight = {{ type = "number", missing = "impute", centre = 70.0, scale = 20.0 }}
pressure = {{ type = "number", missing = "flag", centre = 120.0, scale = 20.0 }}
ward = {{ type = "category", categories = ["1", "2"], missing = "flag" }}

[reference]
file = "/home/somebody/rows.csv"

[model]
hidden = [8, 8]
""")


def make_model(target, num_samples=2, inverse_temperature=0.7):
    plan = make_plan(target)
    network = student_network(plan)
    rng = generator(0, "model")
    samples = WeightSamples.concat(
        [WeightSamples.of(network.create(rng)) for _ in range(num_samples)]
    )
    predictor = NetworkPredictor(network, samples, inverse_temperature=inverse_temperature)
    return CalibratedModel(plan, predictor, number=3)


@pytest.fixture(params=TARGETS)
def model(request):
    return make_model(TARGETS[request.param])


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "age": ["20", "50", "99", "17", "700", "60", "61"],  # two are outside the range
            "weight": ["70", "", "90", "40", "160", "60", ""],
            "pressure": ["", "120", "150", "", "90", "111.5", "80"],
            "ward": ["1", "2", "", "burns", "2", "1.0", "1"],
        },
        index=[f"patient {n}" for n in range(7)],
    )


def numbers(predictions):
    return predictions.select_dtypes("number").to_numpy()


class TestPredict:
    def test_keeps_the_order_and_the_index(self, model, frame):
        shuffled = frame.iloc[::-1]
        pd.testing.assert_frame_equal(model.predict(shuffled), model.predict(frame).iloc[::-1])
        assert list(model.predict(frame).index) == list(frame.index)

    def test_probabilities_are_the_predictors_at_its_temperature(self, frame):
        model = make_model(CLASSES)
        predictions = model.predict(frame)
        inputs = encode(model.plan, frame, outside="clip")
        expected = model.predictor.predict(inputs).moments()
        assert list(predictions)[:3] == ["probability_no", "probability_yes", "probability_perhaps"]
        assert numbers(predictions) == pytest.approx(expected.numpy(), abs=1e-6)
        assert numbers(predictions).sum(1) == pytest.approx(1.0, abs=1e-12)
        names = np.array(["no", "yes", "perhaps"])
        assert list(predictions["predicted"]) == list(names[numbers(predictions).argmax(1)])

    def test_numbers_are_in_the_targets_unit(self, frame):
        model = make_model(NUMBER)
        predictions = model.predict(frame, level=0.5)
        law = model.predictor.predict(encode(model.plan, frame, outside="clip"))
        assert list(predictions) == ["mean", "median", "std", "low", "high"]
        assert predictions["mean"].to_numpy() == pytest.approx(12 + 4 * law.mean.numpy())
        assert predictions["std"].to_numpy() == pytest.approx(4 * law.var.sqrt().numpy())
        assert (predictions["median"] == predictions["mean"]).all()
        half_width = 0.6744898 * predictions["std"]  # quartile of a standard normal
        assert (predictions["high"] - predictions["mean"]).to_numpy() == pytest.approx(half_width)
        assert (predictions["mean"] - predictions["low"]).to_numpy() == pytest.approx(half_width)

    def test_a_log_target_has_a_lognormals_moments_and_quantiles(self, frame):
        model = make_model(LOG)
        predictions = model.predict(frame, level=0.8)
        law = model.predictor.predict(encode(model.plan, frame, outside="clip"))
        rng = np.random.default_rng(0)
        for row in range(len(frame)):
            mean, std = 2 + 0.5 * float(law.mean[row]), 0.5 * math.sqrt(float(law.var[row]))
            draws = np.exp(mean + std * rng.standard_normal(200_000))
            said = predictions.iloc[row]
            assert said["mean"] == pytest.approx(draws.mean(), rel=0.01)
            assert said["std"] == pytest.approx(draws.std(), rel=0.05)
            quantiles = np.quantile(draws, [0.1, 0.5, 0.9])
            assert said[["low", "median", "high"]].to_numpy() == pytest.approx(quantiles, rel=0.01)

    def test_a_value_outside_its_range_counts_as_the_end_of_it(self, model, frame):
        ends = frame.assign(age=["20", "50", "99", "18", "100", "60", "61"])
        pd.testing.assert_frame_equal(model.predict(frame), model.predict(ends))

    @pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan])
    def test_a_level_that_is_no_probability_is_refused(self, model, frame, level):
        with pytest.raises(DataError, match="level must be between 0 and 1"):
            model.predict(frame, level)


class TestFiles:
    def test_a_round_trip_predicts_the_same_bits(self, model, frame, tmp_path):
        model.save(tmp_path)
        loaded = CalibratedModel.load(tmp_path)
        pd.testing.assert_frame_equal(loaded.predict(frame), model.predict(frame), check_exact=True)
        assert loaded.plan.digest() == model.plan.digest()
        assert loaded.number == 3

    def test_equal_models_give_equal_bytes(self, model, tmp_path):
        model.save(tmp_path / "a")
        model.save(tmp_path / "b")
        CalibratedModel.load(tmp_path / "a").save(tmp_path / "c")
        for name in ("model.json", "model.safetensors"):
            contents = {(tmp_path / folder / name).read_bytes() for folder in "abc"}
            assert len(contents) == 1
            assert b"somebody" not in contents.pop()  # no path of the coordinator's disk

    def test_a_flipped_bit_anywhere_in_the_weights_is_refused(self, model, tmp_path):
        model.save(tmp_path)
        path = tmp_path / "model.safetensors"
        whole = path.read_bytes()
        for position in range(0, len(whole), 397):
            altered = bytearray(whole)
            altered[position] ^= 1 << position % 8
            path.write_bytes(altered)
            with pytest.raises(StudyError, match=r"model\.safetensors was altered"):
                CalibratedModel.load(tmp_path)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"format": 2, "predbayes": "9.1"}, "format 2, .* install predbayes 9.1 or newer"),
            ({"inverse_temperature": 0}, "altered: inverse_temperature: "),
            ({"inverse_temperature": "1"}, "altered: inverse_temperature: "),
            ({"code": "import os"}, "altered: code: "),
            ({"plan_digest": "00"}, "its plan does not have the digest"),
            ({"weights_digest": "00"}, "was altered"),
            ({"plan": {}}, "altered: plan.format: "),
            ({"format": "one"}, "does not describe a model"),
        ],
    )
    def test_an_altered_header_is_refused_in_one_line(self, tmp_path, change, says):
        make_model(CLASSES).save(tmp_path)
        path = tmp_path / "model.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(StudyError, match=says) as caught:
            CalibratedModel.load(tmp_path)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}'])
    def test_a_header_that_is_none_is_refused(self, tmp_path, content):
        make_model(CLASSES).save(tmp_path)
        (tmp_path / "model.json").write_bytes(content)
        with pytest.raises(StudyError, match="does not describe a model of predbayes"):
            CalibratedModel.load(tmp_path)

    @pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
    def test_a_missing_file_is_named(self, tmp_path, name):
        make_model(CLASSES).save(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(StudyError, match=f"cannot read .*{name}: No such file"):
            CalibratedModel.load(tmp_path)

    @pytest.mark.parametrize("fault", ["other network", "not finite", "stray array", "no weights"])
    def test_weights_that_are_not_the_networks_are_refused(self, tmp_path, monkeypatch, fault):
        arrays = dict(make_model(CLASSES).predictor.samples.arrays())
        if fault == "other network":
            arrays["parameter/1.weight"] = arrays["parameter/1.weight"][:, :-1].contiguous()
        elif fault == "not finite":
            arrays["parameter/1.bias"] = torch.full_like(arrays["parameter/1.bias"], torch.nan)
        elif fault == "stray array":
            arrays["other"] = torch.zeros(2)
        else:
            arrays = {}
        content = safetensors.torch.save(arrays)
        # With the digest of these weights, so that it is not what refuses them.
        monkeypatch.setattr(safetensors.torch, "save", lambda _: content)
        make_model(CLASSES).save(tmp_path)
        with pytest.raises(StudyError, match=r"model\.safetensors (has weights|does not hold)"):
            CalibratedModel.load(tmp_path)

    def test_a_network_too_large_for_memory_is_refused_by_its_shapes(self, tmp_path):
        model = make_model(CLASSES)
        huge = model.plan.model.model_copy(update={"hidden": (10_000_000, 10_000_000)})
        plan = model.plan.model_copy(update={"model": huge})
        CalibratedModel(plan, model.predictor).save(tmp_path)
        with pytest.raises(StudyError, match="does not hold the plan's network"):
            CalibratedModel.load(tmp_path)


@pytest.fixture(scope="module", params=["classes", "log"])
def exported(request, tmp_path_factory):
    model = make_model(TARGETS[request.param])
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    model.export_onnx(path, level=0.9)
    return model, path


class TestOnnx:
    @pytest.mark.parametrize("num_rows", [1, 7])
    def test_says_what_predict_says(self, exported, frame, num_rows):
        model, path = exported
        session = onnxruntime.InferenceSession(path)
        rows = frame.iloc[-num_rows:]
        # As a deployer would: numbers as they are, the range is the model's business.
        codes = code_table(model.plan, rows, outside="clip").numpy()
        codes[:, 0] = rows["age"].astype(float)
        outputs = session.run(None, {"codes": codes})
        expected = numbers(model.predict(rows, level=0.9))
        assert np.column_stack(outputs) == pytest.approx(expected, rel=1e-5, abs=1e-5)

    def test_is_valid_and_says_what_its_columns_mean(self, exported):
        model, path = exported
        proto = onnx.load(path)
        onnx.checker.check_model(proto, full_check=True)
        notes = {entry.key: entry.value for entry in proto.metadata_props}
        columns = json.loads(notes["columns"])
        assert list(columns) == ["age", "weight", "pressure", "ward"]
        assert columns["age"]["unit"] == "years"
        assert columns["ward"]["categories"] == ["1", "2"]
        assert json.loads(notes["target"]) == json.loads(model.plan.target.model_dump_json())
        assert notes["plan_digest"] == model.plan.digest()
        assert notes["predbayes"] == predbayes.__version__
        assert (notes.get("level") == "0.9") == (not model.plan.target.classes)
        assert not [word for word in (b".py", b"somebody") if word in path.read_bytes()]

    def test_needs_the_extra(self, tmp_path, monkeypatch):
        def missing(module, extra):
            raise MissingPackageError(f"{module} {extra}")

        monkeypatch.setattr(model_module, "require", missing)
        with pytest.raises(MissingPackageError, match=r"onnxscript core\[onnx\]"):
            make_model(CLASSES).export_onnx(tmp_path / "model.onnx")
        assert not list(tmp_path.iterdir())
