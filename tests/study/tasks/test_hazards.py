"""Hazards by a classifier of trials."""

from __future__ import annotations

import json

import pytest
import torch

from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.local import kept_together
from predbayes.learning.named import HAZARDS
from predbayes.predictive.survival import concordance_rows
from predbayes.seeding import generator
from predbayes_study.tasks.hazards import HazardLearner
from tests.core.predictive.survival_oracle import FILE


def test_logistic_hazards_are_about_a_cox_model():
    told = {name: torch.tensor(v).double() for name, v in json.loads(FILE.read_text()).items()}
    learner = HazardLearner(SklearnClassifier(HAZARDS["logistic-regression"](), 2, size=1), 5)
    rows = told["inputs"].float(), told["targets"].float()
    fitted = learner.fit(rows, rng=generator(0))
    own = concordance_rows(fitted.predict(told["later"].float()), told["held_out"].float()).mean()
    assert float(own) == pytest.approx(float(told["cox_c_index"]), abs=0.01)


class Recorder(SklearnClassifier):
    """Keeps what it is told of groups."""

    def fit(self, rows, *, rng, groups=None):
        TOLD.append(groups)
        return super().fit(rows, rng=rng, groups=groups)


TOLD = []


def test_trials_of_a_row_and_of_a_patient_stay_together():
    learner = HazardLearner(Recorder(HAZARDS["logistic-regression"](), 2, size=1), 3)
    rows = torch.randn(4, 2, generator=generator(0)), torch.tensor([2.5, -3.0, 0.5, -1.0])
    patients, kept = torch.tensor([9, 7, 7, 7, 8]), torch.tensor([1, 2, 3, 4])
    assert kept_together(learner, patients, kept)["groups"].tolist() == [7, 7, 7, 8]
    learner.fit(rows, rng=generator(0))
    learner.fit(rows, rng=generator(0), **kept_together(learner, patients, kept))
    assert [told.tolist() for told in TOLD] == [
        [0, 0, 0, 1, 1, 1, 2, 3],
        [7, 7, 7, 7, 7, 7, 7, 8],
    ]
