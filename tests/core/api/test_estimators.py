"""The estimators: what they take, what they give, and scikit-learn's own checks."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import predbayes as pb

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

QUICK = pb.OptimizerSettings("adam", lr=0.02, num_epochs=5, min_steps=300, decay="cosine")

QUICKER = replace(QUICK, min_steps=100)


def rows(num=360, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, 2)) * [1, 100] + [0, 1000]
    z = x[:, 0] + (x[:, 1] - 1000) / 100
    return x, z, 5000 + 800 * z + 80 * rng.normal(size=num)


@pytest.fixture(scope="module")
def classified():
    x, z, _ = rows()
    y = np.array(["high", "low", "mid"])[np.where(z > 0.7, 0, np.where(z < -0.7, 1, 2))]
    sites = {f"site {k}": (x[k * 60 :][:60], y[k * 60 :][:60]) for k in range(3)}
    there = sites["site 0"][1] != "mid"
    sites["site 0"] = (sites["site 0"][0][there], sites["site 0"][1][there])  # lacks a class
    reference = (x[180:230], y[180:230], x[230:280])
    model = pb.FederatedClassifier("logistic-regression", distillation=QUICK)
    return model.fit(sites, reference), sites, reference, (x[280:], y[280:])


class TestClassifier:
    def test_it_learns_classes_of_any_kind_also_where_a_site_lacks_one(self, classified):
        model, _, _, (x, y) = classified
        assert model.classes_.tolist() == ["high", "low", "mid"]
        assert model.score(x, y) > 0.8
        assert set(model.predict(x)) <= {"high", "low", "mid"}

    def test_tensors_and_tables_are_arrays(self, classified):
        model, sites, reference, (x, _) = classified
        codes = {name: np.searchsorted(model.classes_, y) for name, (_, y) in sites.items()}
        given = {n: (torch.tensor(sites[n][0]), torch.tensor(codes[n])) for n in sites}
        given["site 1"] = (pd.DataFrame(sites["site 1"][0]), pd.Series(codes["site 1"]))
        coded = (reference[0], np.searchsorted(model.classes_, reference[1]), reference[2])
        again = clone(model).fit(given, coded)
        np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))

    def test_reference_rows_without_labels_and_as_an_object(self, classified):
        model, sites, (x, y, more), _ = classified
        unlabelled = clone(model).fit(sites, x)
        assert "none of 50 reference rows has a label" in repr(unlabelled.result_)
        codes = np.searchsorted(model.classes_, y)
        numbered = {n: (x, np.searchsorted(model.classes_, y)) for n, (x, y) in sites.items()}
        made = pb.ReferenceRows.of((x, codes), unlabelled=more)
        again = clone(model).fit(numbered, made)
        np.testing.assert_allclose(again.predict_proba(x), model.predict_proba(x), atol=1e-4)


def module(num_inputs, num_outputs):
    return nn.Sequential(nn.Linear(num_inputs, 16), nn.Tanh(), nn.Linear(16, num_outputs))


FOREST = pytest.param("random-forest", marks=pytest.mark.slow("forests of three sites"))


@pytest.mark.parametrize("model", [FOREST, LogisticRegression(), module])
def test_models_are_names_estimators_or_modules(model, classified):
    _, sites, reference, (x, y) = classified
    fitted = pb.FederatedClassifier(model, pool="mixture", student=module, distillation=QUICK)
    assert fitted.fit(sites, reference).score(x, y) > 0.5


@pytest.fixture(scope="module")
def measured():
    x, _, y = rows()
    sites = {f"site {k}": (x[k * 60 :][:60], y[k * 60 :][:60]) for k in range(3)}
    model = pb.FederatedRegressor("linear-regression", distillation=QUICK)
    return model.fit(sites, (x[180:230], y[180:230], x[230:280])), (x[280:], y[280:])


class TestRegressor:
    def test_targets_come_back_in_their_unit(self, measured):
        model, (x, y) = measured
        assert model.score(x, y) > 0.9
        mean, std = model.predict(x, return_std=True)
        assert np.abs(mean - y).mean() < 250
        assert 40 < std.mean() < 300

    def test_the_result_is_in_the_same_unit(self, measured, tmp_path):
        model, (x, _) = measured
        predictive = model.result_.predict(x)
        np.testing.assert_array_equal(predictive.mean, model.predict(x))
        assert model.result_.account.nll > 5  # nats of numbers in the thousands
        model.result_.save(tmp_path)
        again = pb.load(tmp_path)
        np.testing.assert_array_equal(again.predict(x).std, predictive.std)
        assert torch.equal(again.predictive.mean, model.result_.predictive.mean)
        assert float(again.predictive.mean.mean()) > 1000

    @pytest.mark.slow("networks of three sites")
    def test_networks_fit_small_sites_whose_targets_are_nearly_exact(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(600, 3))
        y = x @ [1, 2, 3] + 0.1 * rng.normal(size=600)
        sites = {f"site {k}": (x[k * 100 :][:100], y[k * 100 :][:100]) for k in range(3)}
        model = pb.FederatedRegressor("mlp", pool="mixture", distillation=QUICK)
        assert model.fit(sites, x[300:400]).score(x[400:], y[400:]) > 0.97


def test_without_scikit_learn_it_is_one_line():
    code = (
        "import sys; sys.modules['sklearn'] = None; import predbayes as pb\n"
        "try: pb.FederatedClassifier\n"
        "except pb.PredbayesError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    how = "pip install './packages/core[sklearn]' in a clone of predbayes"
    assert done.stdout == f"this needs the package sklearn: {how}\n"


BAD = np.array([[0, 1], [np.nan, 0]])


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "sites", "reference", "message"),
        [
            ({}, {}, np.zeros((2, 2)), "fit needs sites"),
            ({}, {"a": (np.zeros((2, 2)), [0, 1])}, None, "fit needs sites"),
            ({}, {"a": np.zeros((2, 2))}, np.zeros((2, 2)), "site 'a': its rows are no pair"),
            ({}, {"a": (np.zeros((2, 2)), [1, 1])}, np.zeros((2, 2)), "of one class"),
            ({}, {"a": (np.zeros((2, 2)), [0, 1])}, (1, 2, 3, 4), "reference rows are"),
            ({"model": "forrest"}, None, None, "no model 'forrest'"),
            ({"model": 3}, None, None, "neither a name"),
            ({"pool": "means"}, None, None, "no pool 'means'"),
            ({"student": "mpl"}, None, None, "no student 'mpl'; did you mean 'mlp'"),
            ({"student": 3}, None, None, "student 3 is neither"),
            ({}, [(np.eye(2), [0, 1])], np.eye(2), "give a dict name -> "),
            ({}, [(np.eye(2), [0, 1])] * 2, (np.eye(2), [0, 1]), "give a dict name -> "),
            ({}, {"a": (np.eye(2), [0, 1])}, [[1, 2], [3]], "^reference rows: rows of unequal"),
            ({}, {"a": (np.eye(2), [0, 1])}, BAD, "^reference rows: row 1 has a missing or inf"),
            ({}, {"a": (np.eye(2), [0, 1]), "B": (BAD, [0, 1])}, BAD, "^site 'B': row 1 has a"),
            ({}, {"a": (np.eye(2), [0, 1]), "B": (np.eye(3), [0, 1, 0])}, BAD, "^site 'B': X has"),
            ({}, {"B": (np.eye(2), [0])}, BAD, "^site 'B': Found input"),
            ({}, {"B": (np.eye(2), ["a", 1])}, BAD, "^site 'B': labels are of mixed types"),
            (
                {},
                {"A": (np.eye(2), [0, 1]), "B": (np.eye(2), ["a", "b"])},
                np.eye(2),
                "mixed types: site 'A' has numbers, site 'B' has strings",
            ),
            (
                {},
                {"A": (np.eye(2), [0, 1])},
                (np.eye(2), ["0", "1"]),
                "site 'A' has numbers, reference rows have strings",
            ),
        ],
    )
    def test_in_one_line(self, arguments, sites, reference, message):
        if sites is None:
            sites, reference = {"a": (np.eye(2), [0, 1])}, np.eye(2)
        with pytest.raises(pb.PredbayesError, match=message) as error:
            pb.FederatedClassifier(**arguments).fit(sites, reference)
        assert "\n" not in str(error.value)

    def test_missing_values_also_where_it_predicts(self, classified):
        model, _, _, (x, _) = classified
        with pytest.raises(ValueError, match=r"^row 1 has a missing or infinite value") as error:
            model.predict(np.stack([x[0], [np.inf, 0]]))
        assert "\n" not in str(error.value)


def test_a_class_that_only_the_reference_rows_have_is_warned_of():
    x, y = np.eye(4), np.array(["blue", "red"] * 2)
    model = pb.FederatedClassifier("logistic-regression", pool="mixture", distillation=QUICK)
    with pytest.warns(UserWarning, match="only the reference rows have the class 'Red'"):
        model.fit({"a": (x, y)}, (x, ["blue", "Red"] * 2))


READ_AGAIN = """
import sys, numpy as np, predbayes as pb
model = getattr(pb, sys.argv[1]).load(sys.argv[2])
x = np.load(sys.argv[3])
probs = model.predict_proba(x) if hasattr(model, "classes_") else model.predict(x)
np.savez(sys.argv[4], values=probs, labels=model.predict(x))
"""


def read_again(model, x, folder):
    model.save(folder)
    np.save(folder / "x.npy", x)
    arguments = [type(model).__name__, folder, folder / "x.npy", folder / "out.npz"]
    subprocess.run([sys.executable, "-c", READ_AGAIN, *map(str, arguments)], check=True)
    return np.load(folder / "out.npz")


class TestSaved:
    def test_a_classifier_keeps_its_bits_and_labels_in_a_new_process(self, classified, tmp_path):
        model, _, _, (x, _) = classified
        again = read_again(model, x, tmp_path)
        np.testing.assert_array_equal(again["values"], model.predict_proba(x))
        np.testing.assert_array_equal(again["labels"], model.predict(x))

    @pytest.mark.parametrize("classes", [[3, 7, 9], [0.5, 1.0, 2.0], [False, True, True]])
    def test_labels_of_any_plain_kind(self, classes, classified, tmp_path):
        model = copy.copy(classified[0])
        model.classes_ = np.array(classes)
        model.save(tmp_path)
        again = pb.FederatedClassifier.load(tmp_path)
        np.testing.assert_array_equal(again.classes_, classes)
        assert again.classes_.dtype == model.classes_.dtype
        assert (again.n_features_in_, again.model) == (2, "logistic-regression")

    def test_what_cannot_be_saved_or_read_is_one_line(self, classified, measured, tmp_path):
        with pytest.raises(pb.PredbayesError, match=r"has no estimator\.json"):
            pb.FederatedClassifier.load(tmp_path)
        measured[0].save(tmp_path)
        with pytest.raises(pb.PredbayesError, match="holds a FederatedRegressor, not a"):
            pb.FederatedClassifier.load(tmp_path)
        (tmp_path / "estimator.json").write_text("{}")
        with pytest.raises(pb.PredbayesError, match="is not a saved estimator"):
            pb.FederatedRegressor.load(tmp_path)
        model = copy.copy(classified[0])
        model.classes_ = np.array([(1,), None], dtype=object)
        with pytest.raises(pb.PredbayesError, match="only classes that are strings or numbers"):
            model.save(tmp_path)


NOT_APPLICABLE = {
    "check_fit_score_takes_y": "fit takes sites and reference rows; y is the second of two roles",
}
BY_REGRESSOR = {
    "check_methods_subset_invariance": "the network is float32: its last digits go by the batch",
}


def expected(estimator):
    return NOT_APPLICABLE | (BY_REGRESSOR if isinstance(estimator, pb.FederatedRegressor) else {})


@parametrize_with_checks(
    [
        pb.FederatedClassifier("logistic-regression", pool="mixture", distillation=QUICKER),
        pb.FederatedRegressor("linear-regression", pool="mixture", distillation=QUICKER),
    ],
    expected_failed_checks=expected,
)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)
