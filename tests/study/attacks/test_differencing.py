"""Two uploads of one site, with and without one person who objected: their difference.

Without a holdout the two differ by that person alone. Of two plain fits the difference is one
Newton step, which is the person's row but for a factor; a bootstrap that is drawn anew whenever the
rows change hides it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge  # noqa: TID253

from tests.study.attacks.leaks import NUM_ROWS, linear_difference, make_hospitals

NUM_PEOPLE = 20


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    return make_hospitals(tmp_path_factory.mktemp("regression"), "regression", 8)


@pytest.fixture(scope="module")
def classification(tmp_path_factory):
    return make_hospitals(tmp_path_factory.mktemp("classes"), "classification", 8)


def plain(hospitals, chosen, estimator):
    """The linear function that one fit tells of the reference rows."""
    rows = torch.as_tensor(chosen)
    model = estimator.fit(hospitals.inputs[rows].numpy(), hospitals.targets[rows].numpy())
    inputs = hospitals.kit.inputs.numpy()
    told = getattr(model, "decision_function", model.predict)(inputs)
    return np.asarray(told, dtype=np.float64)


def sent(hospitals, chosen, learner):
    """The same of what a site sends."""
    arrays = hospitals.upload(chosen, learner).arrays
    told = arrays["mean"] if "mean" in arrays else arrays["log_probs"].diff(dim=1)[:, 0]
    return told.double().numpy()


def ranks(hospitals, function):
    """The person's place among all patients, by nearness to what the difference tells; 0 is best.

    The person is the site's last row, so that a generator of the same seed would draw the same for
    all the others.
    """
    inputs, patients = hospitals.kit.inputs.double().numpy(), hospitals.inputs.double().numpy()
    found = []
    for seed in range(NUM_PEOPLE):
        chosen = hospitals.draw(seed)
        before, after = function(chosen), function(chosen[:-1])
        row = linear_difference(inputs, before, after)
        far = 1 - patients @ row / np.linalg.norm(patients, axis=1) / np.linalg.norm(row)
        found.append(int((far < far[chosen[-1]]).sum()))
    return np.array(found)


@pytest.mark.parametrize(
    ("task", "learner", "estimator"),
    [
        ("regression", "linear-regression", Ridge()),
        pytest.param(
            *("classification", "logistic-regression", LogisticRegression()),
            marks=pytest.mark.slow("fits forty sites twice"),
        ),
    ],
)
def test_a_person_who_was_taken_out_is_not_found(task, learner, estimator, request):
    hospitals = request.getfixturevalue(task)
    exposed = ranks(hospitals, lambda chosen: plain(hospitals, chosen, estimator))
    assert np.median(exposed) < 10  # of 1,200: the attack works on a plain fit
    hidden = ranks(hospitals, lambda chosen: sent(hospitals, chosen, learner))
    assert (hidden == 0).sum() <= 1
    assert np.median(hidden) > 10 * (np.median(exposed) + 1)
    assert np.median(hidden) > NUM_ROWS
