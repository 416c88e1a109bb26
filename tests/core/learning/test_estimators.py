# ruff: noqa: TID253  (these are tests of what scikit-learn does here)
from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from torch.utils.data import DataLoader, TensorDataset

from predbayes.errors import PredbayesError, TrainingError
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.likelihood import MIN_NOISE_VAR
from predbayes.learning.named import CLASSIFIERS as NAMED
from predbayes.predictive.metrics import accuracy, nll
from predbayes.seeding import generator
from tests.core.oracles import FALSE_ALARM

CLASSIFIERS = {
    "logistic": LogisticRegression(),
    "forest": RandomForestClassifier(10, min_samples_leaf=5),
    "neighbours": KNeighborsClassifier(),
    "process": GaussianProcessClassifier(),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "calibrated": CalibratedClassifierCV(SVC(), cv=3),
}
REGRESSORS = {
    "ridge": Ridge(),
    "forest": RandomForestRegressor(10, min_samples_leaf=5),
    "neighbours": KNeighborsRegressor(),
    "process": GaussianProcessRegressor(RBF() + WhiteKernel()),
    "pipeline": make_pipeline(StandardScaler(), SVR()),
    "bayesian": make_pipeline(StandardScaler(), BayesianRidge()),
}
NOISE_STD = 0.3


@pytest.fixture
def blobs(rng):
    y = torch.randint(2, (120,), generator=rng)
    return torch.randn(120, 2, generator=rng) + 2.0 * (2 * y[:, None] - 1), y


@pytest.fixture
def line(rng):
    return line_of(200, rng)


def line_of(num_rows, rng):
    x = torch.randn(num_rows, 2, generator=rng)
    noise = NOISE_STD * torch.randn(num_rows, generator=rng)
    return x, x[:, 0] - 0.5 * x[:, 1] + noise


def halves_of(num_rows, rng):
    """A quiet half and a noisy one: standard deviation .2 left of 0, and 1 right of it."""
    x = 2 * torch.rand(num_rows, 3, generator=rng) - 1
    std = torch.where(x[:, 0] < 0, 0.2, 1.0)
    return x, x.sum(1) + std * torch.randn(num_rows, generator=rng)


def numpy_state():
    return repr(np.random.get_state())  # noqa: NPY002


class Recorder(ClassifierMixin, BaseEstimator):
    """Says the weighted share of every class, and remembers what it was fitted to."""

    def __init__(self, seen=None, random_state=None):
        self.seen, self.random_state = seen, random_state

    def fit(self, X, y, sample_weight=None):
        weights = np.ones(len(y)) if sample_weight is None else sample_weight
        self.classes_ = np.unique(y)
        self.shares_ = np.array([weights[y == c].sum() for c in self.classes_]) / weights.sum()
        self.weights_, self.rows_ = sample_weight, X[:, 0].copy()
        return self

    def predict_proba(self, X):
        return np.tile(self.shares_, (len(X), 1))


class Unweighted(ClassifierMixin, BaseEstimator):
    """The same without weights."""

    def fit(self, X, y):
        self.classes_, self.rows_ = np.unique(y), X[:, 0].copy()
        return self

    def predict_proba(self, X):
        return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))


class Strict(ClassifierMixin, BaseEstimator):
    """Refuses classes that are not numbered from 0 without a gap, as XGBoost does."""

    def fit(self, X, y):
        if np.unique(y).tolist() != list(range(len(np.unique(y)))):
            raise ValueError(f"Invalid classes inferred from unique values of `y`: {np.unique(y)}")
        self.model_ = LogisticRegression().fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X):
        return self.model_.predict_proba(X)


class Mean(RegressorMixin, BaseEstimator):
    """The weighted mean of the targets."""

    def fit(self, X, y, sample_weight=None):
        self.mean_ = np.average(y, weights=sample_weight)
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


@pytest.mark.parametrize("name", CLASSIFIERS)
class TestEveryClassifier:
    def learner(self, name):
        return SklearnClassifier(CLASSIFIERS[name], 2, size=3)

    def test_learns_to_classify(self, name, blobs, rng):
        predictive = self.learner(name).fit(blobs, rng=rng).predict(blobs[0])
        assert accuracy(predictive, blobs[1]) > 0.97
        assert predictive.log_probs.dtype == torch.float32
        torch.testing.assert_close(predictive.moments().sum(-1), torch.ones(120))

    def test_same_seed_same_predictions(self, name, blobs):
        first, second, third = (
            self.learner(name).fit(blobs, rng=generator(seed)).predict(blobs[0]).log_probs
            for seed in (1, 1, 2)
        )
        assert torch.equal(first, second)
        assert not torch.equal(first, third)

    def test_leaves_rows_estimator_and_global_generators_alone(self, name, blobs, rng):
        before, parameters = [t.clone() for t in blobs], repr(CLASSIFIERS[name].get_params())
        numpys, torchs = numpy_state(), torch.get_rng_state()
        self.learner(name).fit(blobs, rng=rng).predict(blobs[0])
        assert all(torch.equal(a, b) for a, b in zip(before, blobs, strict=True))
        assert repr(CLASSIFIERS[name].get_params()) == parameters
        assert not hasattr(CLASSIFIERS[name], "classes_")
        assert numpy_state() == numpys
        assert torch.equal(torch.get_rng_state(), torchs)


@pytest.mark.parametrize("name", REGRESSORS)
def test_every_regressor_learns_a_function_and_its_noise(name, line, rng):
    x, y = line_of(400, rng)
    predictive = SklearnRegressor(REGRESSORS[name], size=3).fit(line, rng=rng).predict(x)
    best = 0.5 * math.log(2 * math.pi * math.e * NOISE_STD**2)  # NLL of the true law
    assert nll(predictive, y) == pytest.approx(best, abs=0.4)
    if predictive.epistemic_var is not None:
        assert bool((predictive.epistemic_var <= predictive.var).all())


class TestBootstrap:
    def fit(self, estimator, num_rows=40, size=4, num_classes=2):
        x = torch.arange(num_rows).float().unsqueeze(-1)
        y = torch.arange(num_rows) % num_classes
        learner = SklearnClassifier(estimator, num_classes, size=size)
        return learner.fit((x, y), rng=generator(3)).members

    def test_weights_are_uniform_on_the_simplex(self):
        """One coordinate of Dirichlet(1, ..., 1) is Beta(1, N - 1); members are independent."""
        members = self.fit(Recorder(), size=400)
        weights = np.stack([member.weights_ for member in members])
        assert (weights > 0).all()
        np.testing.assert_allclose(weights.sum(1), 40)
        for column in (0, 39):
            law = stats.beta(1, 39)
            assert stats.kstest(weights[:, column] / 40, law.cdf).pvalue > FALSE_ALARM

    def test_weights_are_passed_through_pipelines(self):
        members = self.fit(make_pipeline(StandardScaler(), make_pipeline(Recorder())))
        weights = [member[-1][-1].weights_ for member in members]
        assert all(len(w) == 40 for w in weights)
        assert not np.allclose(weights[0], weights[1])

    def test_rows_are_drawn_where_fit_takes_no_weights(self):
        members = self.fit(Unweighted())
        assert [len(member.rows_) for member in members] == [40] * 4
        # About 1 - 1/e of the rows are among those drawn.
        assert all(15 < len(np.unique(member.rows_)) < 35 for member in members)
        assert not np.array_equal(members[0].rows_, members[1].rows_)

    @pytest.mark.parametrize("num_classes", [4, 39])
    def test_no_draw_misses_a_class_of_the_site(self, num_classes):
        """Forty rows of 39 classes: a plain draw would have all of them once in millions."""
        for member in self.fit(Unweighted(), size=30, num_classes=num_classes):
            assert len(member.classes_) == num_classes

    def test_one_member_is_a_plain_fit(self):
        (member,) = self.fit(Recorder(), size=1)
        assert member.weights_ is None
        (member,) = self.fit(Unweighted(), size=1)
        assert member.rows_.tolist() == list(range(40))

    def test_every_random_state_is_set_however_deep(self):
        nested = make_pipeline(StandardScaler(), CalibratedClassifierCV(Recorder(), cv=2))
        seeds = [
            member.get_params()["calibratedclassifiercv__estimator__random_state"]
            for member in self.fit(nested)
        ]
        assert len(set(seeds)) == 4
        assert None not in seeds


class TestClasses:
    def test_columns_do_not_shift_when_a_class_is_missing(self, rng):
        """Classes 1 and 3 of five: the others get the smoothed mass, and only that."""
        x, y = torch.randn(30, 1, generator=rng), torch.tensor([1, 3, 3] * 10)
        probs = SklearnClassifier(Recorder(), 5, size=1, smoothing=2.0).fit((x, y), rng=rng)
        shares = torch.tensor([0, 1 / 3, 0, 2 / 3, 0])
        expected = (30 * shares + 2 / 5) / 32
        torch.testing.assert_close(probs.predict(x[:1]).moments()[0], expected)

    @pytest.mark.parametrize("size", [1, 4])
    def test_estimators_see_classes_without_a_gap(self, size, blobs, rng):
        x, y = blobs
        learner = SklearnClassifier(Strict(), 6, size=size)
        predictive = learner.fit((x, 2 + 3 * y), rng=rng).predict(x)
        assert accuracy(predictive, 2 + 3 * y) > 0.97

    @pytest.mark.parametrize("size", [1, 2])
    def test_a_class_of_one_row_may_be_held_out_to_stop_early(self, size, rng):
        """Histogram boosting holds out rows of every class above 10,000 rows."""
        y = torch.randint(2, (10_050,), generator=rng)
        x = torch.randn(10_050, 2, generator=rng) + 4.0 * y[:, None]
        y[0], x[0] = 2, torch.tensor([20.0, -20.0])
        learner = SklearnClassifier(HistGradientBoostingClassifier(max_iter=5), 3, size=size)
        predictive = learner.fit((x, y), rng=rng).predict(x)
        assert accuracy(predictive, y) > 0.97
        assert float(predictive.probs[1:, 2].mean()) < 0.01

    def test_a_row_that_counts_as_two_halves_counts_as_one(self):
        class Splits(Recorder):
            def fit(self, X, y, sample_weight=None):
                if np.unique(y, return_counts=True)[1].min() < 2:
                    raise ValueError("The least populated class in y has only 1 member")
                return super().fit(X, y, sample_weight)

        x, y = torch.arange(5.0).unsqueeze(-1), torch.tensor([0, 0, 1, 0, 0])
        for member in SklearnClassifier(Splits(), 2, size=3).fit((x, y), rng=generator(0)).members:
            assert member.rows_.tolist() == [0, 1, 2, 3, 4, 2]
            assert member.weights_[2] == member.weights_[5]
            assert member.weights_.sum() == pytest.approx(5)

    @pytest.mark.parametrize("estimator", CLASSIFIERS.values(), ids=CLASSIFIERS)
    def test_a_site_with_one_class_says_so_with_smoothing(self, estimator, rng):
        x, y = torch.randn(9, 2, generator=rng), torch.full((9,), 2)
        predictor = SklearnClassifier(estimator, 4).fit((x, y), rng=rng)
        expected = torch.tensor([0.025, 0.025, 0.925, 0.025]).expand(9, 4)
        torch.testing.assert_close(predictor.predict(x).moments(), expected)


class TestNoise:
    @pytest.mark.parametrize("size", [1, 10])
    def test_variance_on_the_sites_rows_is_the_cross_validated_error(self, size, rng):
        """Of the mean as a model, where leaving one of four rows out has a closed form."""
        x, y = line_of(4, rng)
        predictor = SklearnRegressor(Mean(), size).fit((x, y), rng=rng)
        predictive = predictor.predict(x)
        left_out = (y - y.mean()) * 4 / 3
        torch.testing.assert_close(predictive.var.mean(), left_out.square().mean())
        spread = np.var([member.mean_ for member in predictor.members])
        np.testing.assert_allclose(predictive.epistemic_var.numpy(), spread, rtol=1e-4)

    @pytest.mark.parametrize(
        "estimator",
        [Ridge(), RandomForestRegressor(30, min_samples_leaf=5), KNeighborsRegressor(20)],
        ids=["ridge", "forest", "neighbours"],
    )
    def test_intervals_cover_a_quiet_half_and_a_noisy_one(self, estimator, rng):
        learner = SklearnRegressor(estimator, 4)
        predictor, (x, y) = learner.fit(halves_of(1000, rng), rng=rng), halves_of(8000, rng)
        predictive, quiet = predictor.predict(x), x[:, 0] < 0
        inside = (predictive.residuals(y).abs() < 1.96 * predictive.std).float()
        assert float(inside[quiet].mean()) == pytest.approx(0.95, abs=0.035)
        assert float(inside[~quiet].mean()) == pytest.approx(0.95, abs=0.035)
        assert predictive.std[~quiet].median() > 3 * predictive.std[quiet].median()

    def test_far_from_the_rows_the_members_spread_is_added(self, line, rng):
        far = torch.tensor([[50.0, 50.0]])
        predictor = SklearnRegressor(Ridge(), 5).fit(line, rng=rng)
        predictive = predictor.predict(far)
        spread = float(predictive.epistemic_var)
        assert spread > 10 * predictor.most_spread_var
        expected = predictor.error.at(far.numpy()) + spread - predictor.most_spread_var
        assert float(predictive.var) == pytest.approx(expected[0], rel=1e-5)

    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
    def test_noise_is_in_the_units_of_the_target_and_has_a_floor(self, scale, rng):
        x = torch.randn(100, 2, generator=rng)
        y = scale * x[:, 0]
        predictive = SklearnRegressor(Ridge(1e-9), 3).fit((x, y), rng=rng).predict(x)
        noise_var = float((predictive.var - predictive.epistemic_var).mean())
        floor = MIN_NOISE_VAR * float(y.double().var(correction=0))
        assert noise_var == pytest.approx(floor, rel=1e-5)

    def test_a_standard_deviation_of_ones_own_is_taken(self, line, rng):
        model = GaussianProcessRegressor(RBF() + WhiteKernel(0.09), optimizer=None)
        predictor = SklearnRegressor(model, size=10).fit(line, rng=rng)
        far = torch.tensor([[50.0, 50.0]])
        _, std = predictor.members[0].predict(far.numpy(), return_std=True)
        assert len(predictor.members) == 1
        assert float(predictor.predict(far).var) == pytest.approx(std[0] ** 2, rel=1e-5)
        assert float(predictor.predict(far).var) == pytest.approx(1.09, rel=1e-3)


class TestDiscreet:
    """What leaves a site must not tell where its rows lie."""

    @pytest.mark.parametrize("model", ["ridge", "bayesian"])
    def test_a_linear_model_tells_one_variance(self, model, line, rng):
        learner = SklearnRegressor(REGRESSORS[model], discreet=True)
        predictive = learner.fit(line, rng=rng).predict(line[0])
        assert len(predictive.var.unique()) == 1
        assert predictive.epistemic_var is None

    def test_a_process_is_an_ensemble_and_not_taken_at_its_word(self, line, rng):
        learner = SklearnRegressor(REGRESSORS["process"], size=4, discreet=True)
        predictor = learner.fit(line, rng=rng)
        means = np.stack([member.predict(line[0].numpy()) for member in predictor.members])
        assert len(predictor.members) == 4
        expected = means.var(0) + predictor.error.scale
        np.testing.assert_allclose(predictor.predict(line[0]).var.numpy(), expected, rtol=1e-4)

    def test_where_a_site_errs_is_told_to_nobody(self, rng):
        """Beside the spread there is one number, whatever the noise."""
        rows, (x, _) = halves_of(400, rng), halves_of(50, rng)
        forest = RandomForestRegressor(20, min_samples_leaf=3)
        predictive = SklearnRegressor(forest, 3, discreet=True).fit(rows, rng=rng).predict(x)
        noise_var = predictive.var - predictive.epistemic_var
        torch.testing.assert_close(noise_var, noise_var[:1].expand(50))

    def test_a_process_sees_no_row_twice(self, rng):
        """Copies would tell it that there is no noise."""
        rows = line_of(100, rng)
        predictor = SklearnRegressor(REGRESSORS["process"], size=4, discreet=True).fit(
            rows, rng=rng
        )
        for member in predictor.members:
            assert len(np.unique(member.X_train_, axis=0)) == len(member.X_train_) < 80
            assert member.kernel_.k2.noise_level == pytest.approx(NOISE_STD**2, rel=0.6)


class TestRows:
    def test_a_shuffling_dataloader_repeats_and_leaves_torch_alone(self, blobs):
        loader = DataLoader(TensorDataset(*blobs), batch_size=50, shuffle=True)
        learner, before = SklearnClassifier(KNeighborsClassifier(), 2, 3), torch.get_rng_state()
        first, second = (
            learner.fit(loader, rng=generator(0)).predict(blobs[0]).log_probs for _ in range(2)
        )
        assert torch.equal(first, second)
        assert torch.equal(torch.get_rng_state(), before)

    def test_images_and_single_features_become_tables(self, rng):
        y = torch.tensor([0, 1] * 10)
        for x in (torch.randn(20, 1, 4, 4, generator=rng), torch.randn(20, generator=rng)):
            predictor = SklearnClassifier(LogisticRegression(), 2, 2).fit((x, y), rng=rng)
            assert len(predictor.predict(x[:5])) == 5
            assert predictor.members[0].n_features_in_ == x[0].numel()


class TestRefusals:
    def test_classifiers_without_probabilities(self):
        for bad in (SVC(), make_pipeline(StandardScaler(), SVC()), Ridge()):
            with pytest.raises(TrainingError, match="CalibratedClassifierCV"):
                SklearnClassifier(bad, 3)

    @pytest.mark.parametrize("bad", [LogisticRegression, "forest"])
    def test_what_is_no_estimator(self, bad):
        with pytest.raises(TrainingError, match="give an instance"):
            SklearnClassifier(bad, 3)

    @pytest.mark.parametrize("bad", [{"size": 0}, {"smoothing": 0.0}, {"smoothing": math.nan}])
    def test_settings_that_make_no_sense(self, bad):
        with pytest.raises(TrainingError):
            SklearnClassifier(LogisticRegression(), 3, **bad)

    @pytest.mark.parametrize(
        "change",
        [
            lambda x, y: (x, y.float()),
            lambda x, y: (x, y + 5),
            lambda x, y: (x, y[:-1]),
            lambda x, y: (x[:0], y[:0]),
            lambda x, y: (x * math.nan, y),
            lambda x, y: DataLoader(TensorDataset(x[:0], y[:0])),
        ],
    )
    def test_rows_that_cannot_be_learnt(self, change, blobs, rng):
        with pytest.raises(PredbayesError) as caught:
            SklearnClassifier(LogisticRegression(), 2).fit(change(*blobs), rng=rng)
        assert "\n" not in str(caught.value)

    def test_regressions_of_classes_or_of_one_row(self, blobs, line, rng):
        with pytest.raises(PredbayesError, match="convert with"):
            SklearnRegressor(Ridge()).fit(blobs, rng=rng)
        with pytest.raises(TrainingError, match="two rows"):
            SklearnRegressor(Ridge()).fit((line[0][:1], line[1][:1]), rng=rng)


@pytest.mark.parametrize("columns", [2, 5, 12, 60])
def test_the_named_gaussian_process_learns_whatever_the_number_of_columns(columns):
    rng = generator(0, "process")
    inputs = torch.randn(250, columns, generator=rng)
    targets = (2 * inputs[:, 0] + torch.randn(250, generator=rng) > 0).long()
    learner = SklearnClassifier(NAMED["gaussian-process"](), 2)
    said = learner.fit((inputs[:150], targets[:150]), rng=rng).predict(inputs[150:])
    assert nll(said, targets[150:]) < 0.6  # a constant has .69
