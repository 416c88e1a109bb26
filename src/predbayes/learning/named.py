"""Estimators of scikit-learn by name, for plans and for whoever does not want to choose.

logistic-regression   linear, for classes
linear-regression     Bayesian ridge, for numbers
random-forest         200 trees
gaussian-process      with learnt length scale and noise
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from predbayes.optional import require

_NEED = "study"


def _logistic_regression() -> Any:
    return require("sklearn.linear_model", _NEED).LogisticRegression(max_iter=1000)


def _linear_regression() -> Any:
    return require("sklearn.linear_model", _NEED).BayesianRidge()


def _forest(kind: str) -> Any:
    build = getattr(require("sklearn.ensemble", _NEED), f"RandomForest{kind}")
    # Leaves of several rows: a leaf of one row is certain of it.
    return build(n_estimators=200, min_samples_leaf=3)


def _process_classifier() -> Any:
    processes = require("sklearn.gaussian_process", _NEED)
    kernels = require("sklearn.gaussian_process.kernels", _NEED)
    return processes.GaussianProcessClassifier(kernels.ConstantKernel() * kernels.RBF())


def _process_regressor() -> Any:
    processes = require("sklearn.gaussian_process", _NEED)
    kernels = require("sklearn.gaussian_process.kernels", _NEED)
    kernel = kernels.ConstantKernel() * kernels.RBF() + kernels.WhiteKernel()
    return processes.GaussianProcessRegressor(kernel, normalize_y=True)


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "logistic-regression": _logistic_regression,
    "random-forest": partial(_forest, "Classifier"),
    "gaussian-process": _process_classifier,
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    "linear-regression": _linear_regression,
    "random-forest": partial(_forest, "Regressor"),
    "gaussian-process": _process_regressor,
}
