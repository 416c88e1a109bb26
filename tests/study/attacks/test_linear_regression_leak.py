"""A linear regression's variance is a quadratic form: it told every column's mean, and more.

One fit of Bayesian ridge regression is what version 0.1.0 sent; the attack is shown to work on that
first. Every learner that a plan can name is then inverted in the same way.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge  # noqa: TID253

from predbayes.exchange.upload import Upload
from tests.study.attacks.leaks import NUM_ROWS, make_hospitals, quadratic_centre

NUM_COLUMNS = 5
STANDARD_ERROR = NUM_ROWS**-0.5  # of a column's mean, in standard deviations
DRAWS = ((1, 0.0), (2, 0.0), (3, 0.7))  # seeds of sites, and how far their patients are chosen


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    return make_hospitals(tmp_path_factory.mktemp("regression"), "regression", NUM_COLUMNS)


@pytest.fixture(scope="module")
def classification(tmp_path_factory):
    return make_hospitals(tmp_path_factory.mktemp("classes"), "classification", NUM_COLUMNS)


def functions_of(upload: Upload):
    """All that an upload of predictions tells about the reference rows, by name."""
    arrays = {name: array.double().numpy() for name, array in upload.arrays.items()}
    if "log_probs" in arrays:
        log_probs = arrays["log_probs"]
        odds = log_probs[:, 1] - log_probs[:, 0]
        return {
            "log odds": odds,
            "their square": odds**2,
            "entropy": -(np.exp(log_probs) * log_probs).sum(1),
        }
    variance = arrays["epistemic_var"] + arrays["noise_var"]
    return {**arrays, "variance": variance, "square of the mean": arrays["mean"] ** 2}


def errors_of(hospitals, learner, seed, shift):
    """How far the inversion of each function is from the true column means, in deviations."""
    chosen = hospitals.draw(seed, shift)
    truth = hospitals.inputs[torch.as_tensor(chosen)].double().mean(0).numpy()
    inputs = hospitals.kit.inputs.double().numpy()
    told = functions_of(hospitals.upload(chosen, learner))
    # A constant tells of no column; float32 leaves a trace of the sum that it was taken from.
    found = {n: v for n, v in told.items() if np.ptp(v) > 1e-5 * np.abs(v).max()}
    assert found
    return {n: np.abs(quadratic_centre(inputs, v)[0] - truth) for n, v in found.items()}


def test_the_attack_works_on_what_was_sent(regression):
    """Every mean to three decimals, and the scatter matrix."""
    chosen = torch.as_tensor(regression.draw(1))
    rows = regression.inputs[chosen].double().numpy()
    model = BayesianRidge().fit(rows, regression.targets[chosen].numpy())
    inputs = regression.kit.inputs.double().numpy()
    variance = np.square(model.predict(inputs, return_std=True)[1]).astype(np.float32)
    means, scatter = quadratic_centre(inputs, variance.astype(np.float64))
    assert np.abs(means - rows.mean(0)).max() < 0.005
    centred = rows - rows.mean(0)
    off = np.linalg.norm(scatter - centred.T @ centred) / np.linalg.norm(centred.T @ centred)
    assert off < 0.25


def test_linear_regression_sends_one_variance(regression):
    upload = regression.upload(regression.draw(1), "linear-regression")
    assert len(upload.arrays["noise_var"].unique()) == 1
    assert not upload.arrays["epistemic_var"].any()


LINEAR = {"linear-regression", "logistic-regression"}
OTHERS = ("network", "random-forest", "gaussian-process", "gradient-boosting")
OTHERS += ("small-network", "lightgbm", "xgboost")
LEARNERS = [("regression", "linear-regression"), ("classification", "logistic-regression")]
LEARNERS += [(task, name) for task in ("regression", "classification") for name in OTHERS]


@pytest.mark.parametrize(
    ("task", "learner"),
    [
        pytest.param(*case, marks=[] if case[1] in LINEAR else pytest.mark.slow("three trainings"))
        for case in LEARNERS
    ],
)
def test_no_named_learners_upload_tells_column_means(task, learner, request):
    """No inversion is as near to a site's means as their standard error, in the median of sites."""
    hospitals = request.getfixturevalue(task)
    tried = [errors_of(hospitals, learner, *draw) for draw in DRAWS]
    for name in tried[0]:
        errors = np.concatenate([found[name] for found in tried])
        assert np.median(errors) > 2 * STANDARD_ERROR, name


def test_every_named_learner_is_inverted(regression, classification):
    """A learner that is added is added above, too."""
    for task, hospitals in (("regression", regression), ("classification", classification)):
        assert {name for of, name in LEARNERS if of == task} == set(
            hospitals.kit.plan.learner_names
        )
