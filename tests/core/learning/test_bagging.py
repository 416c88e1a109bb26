"""Bags of classifiers: the temperature on out-of-bag rows, and boosting by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: TID253

from predbayes.errors import TrainingError
from predbayes.learning.bagging import inverse_temperature
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.gate import log_density_ratio
from predbayes.learning.named import CALIBRATED, CLASSIFIERS, REGRESSORS
from predbayes.predictive.metrics import nll
from predbayes.seeding import generator


class Sure(ClassifierMixin, BaseEstimator):
    """Says of a row that it was fitted to what it saw; of others the sign, with 99 %."""

    def fit(self, X, y):
        self.classes_, self.seen_ = np.unique(y), dict(zip(X[:, 0], y, strict=True))
        return self

    def predict_proba(self, X):
        right = np.array([self.seen_.get(x, x > 0) for x in X[:, 0]])
        yes = np.where(right, 0.99, 0.01)
        return np.stack([1 - yes, yes], 1)


def rows_of(num, seed, noise=0.0):
    """Yes above 0, but for a share of the rows."""
    rng = generator(seed, "rows")
    x = torch.randn(num, 1, generator=rng)
    flipped = torch.rand(num, generator=rng) < noise
    return x, ((x[:, 0] > 0) ^ flipped).long()


def boosting(name):
    return SklearnClassifier(CLASSIFIERS[name](), 2, 10, calibrated=True)


class TestTemperature:
    @pytest.mark.parametrize("power", [0.5, 3.0])
    def test_undoes_a_power(self, power):
        rng = np.random.default_rng(0)
        yes = rng.uniform(0.05, 0.95, 20_000)
        labels = (rng.random(20_000) < yes).astype(int)
        told = np.stack([1 - yes, yes], 1) ** power
        found = inverse_temperature(
            [told / told.sum(1, keepdims=True)], [np.arange(20_000)], labels, 1e-9
        )
        assert found == pytest.approx(1 / power, rel=0.08)

    def test_members_are_averaged_over_the_rows_that_they_left_out(self):
        """Two members, of which each is wrong about the other's rows alone."""
        sure = np.array([[0.9, 0.1]])
        labels = np.zeros(2, dtype=int)
        found = inverse_temperature([sure, sure], [np.array([0]), np.array([1])], labels, 1e-9)
        assert found > 1  # both rows are as their only member says
        assert inverse_temperature([sure], [np.array([], dtype=int)], labels, 1e-9) == 1.0

    def test_is_learnt_on_rows_that_a_member_has_not_seen(self):
        """On seen rows `Sure` is always right; on others it errs in one of five."""
        rows = rows_of(2000, 0, noise=0.2)
        fitted = SklearnClassifier(Sure(), 2, calibrated=True).fit(rows, rng=generator(1))
        fresh = rows_of(2000, 1, noise=0.2)
        plain = SklearnClassifier(Sure(), 2).fit(rows, rng=generator(1))
        assert fitted.inverse_temperature < 0.6
        assert (
            nll(fitted.predict(fresh[0]), fresh[1]) < nll(plain.predict(fresh[0]), fresh[1]) - 0.1
        )
        assert float(fitted.predict(fresh[0]).probs.amax(1).mean()) == pytest.approx(0.8, abs=0.05)

    def test_needs_members_that_leave_rows_out(self):
        with pytest.raises(TrainingError, match="one member leaves no row out"):
            SklearnClassifier(Sure(), 2, size=1, calibrated=True)


EVERY = [
    pytest.param(
        name,
        marks=[] if name == "gradient-boosting" else [pytest.mark.slow("trees of other packages")],
    )
    for name in sorted(CALIBRATED)
]


class TestBoosting:
    @pytest.mark.parametrize("name", sorted(CALIBRATED))
    def test_learns_what_a_line_cannot(self, name):
        """Yes in two opposite quadrants, told with one label in ten wrong."""
        rng = generator(0, "quadrants")
        x = torch.randn(1500, 3, generator=rng)
        y = ((x[:, 0] * x[:, 1] > 0) ^ (torch.rand(1500, generator=rng) < 0.1)).long()
        fitted = boosting(name).fit((x[:1000], y[:1000]), rng=generator(0))
        line = SklearnClassifier(CLASSIFIERS["logistic-regression"](), 2)
        straight = line.fit((x[:1000], y[:1000]), rng=generator(0))
        assert nll(fitted.predict(x[1000:]), y[1000:]) < 0.5
        assert nll(straight.predict(x[1000:]), y[1000:]) > 0.65

    @pytest.mark.parametrize("name", EVERY)
    def test_is_calibrated_where_there_is_nothing_to_learn(self, name):
        """Coin flips: a few hundredths of a nat above the best, where it is .2 without."""
        rng = generator(0, "coins")
        x, y = torch.randn(300, 8, generator=rng), torch.randint(2, (300,), generator=rng)
        fresh = torch.randn(2000, 8, generator=rng), torch.randint(2, (2000,), generator=rng)
        plain = SklearnClassifier(CLASSIFIERS[name](), 2, size=1)
        losses = [
            nll(learner.fit((x, y), rng=generator(0)).predict(fresh[0]), fresh[1])
            for learner in (boosting(name), plain)
        ]
        assert losses[0] < 0.72
        assert losses[1] > losses[0] + 0.05

    @pytest.mark.parametrize("task", ["classes", "numbers"])
    @pytest.mark.parametrize("name", EVERY)
    def test_teaches_a_gate(self, task, name):
        """Near the known ratio of two normals, where no gate errs by .9; 1 where rows are alike."""
        learner = boosting(name) if task == "classes" else SklearnRegressor(REGRESSORS[name]())
        gate_learner = learner.gate_learner()
        assert gate_learner.learner.calibrated
        assert gate_learner.learner.size == 5
        noise = torch.randn(2000, 2, generator=generator(0, "gate"))
        own, reference = noise[:1000] + torch.tensor([1.0, 0.0]), noise[1000:]
        found = log_density_ratio(gate_learner, (own, own[:, 0]), reference, rng=generator(0))
        assert float((found - (reference[:, 0] - 0.5)).abs().mean()) < 0.5
        alike = log_density_ratio(
            gate_learner, (noise[:1000], noise[:1000, 0]), reference, rng=generator(0)
        )
        assert float(alike.abs().mean()) < 0.1
