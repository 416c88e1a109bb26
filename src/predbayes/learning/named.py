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


def _linear(kind: str, **settings: Any) -> Any:
    return getattr(require("sklearn.linear_model", _NEED), kind)(**settings)


def _forest(kind: str) -> Any:
    build = getattr(require("sklearn.ensemble", _NEED), f"RandomForest{kind}")
    # Leaves of several rows: a leaf of one row is certain of it.
    return build(n_estimators=200, min_samples_leaf=3)


def _process(kind: str) -> Any:
    processes = require("sklearn.gaussian_process", _NEED)
    kernels = require("sklearn.gaussian_process.kernels", _NEED)
    kernel = kernels.ConstantKernel() * kernels.RBF()
    if kind == "Classifier":
        return processes.GaussianProcessClassifier(kernel)
    return processes.GaussianProcessRegressor(kernel + kernels.WhiteKernel(), normalize_y=True)


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "logistic-regression": partial(_linear, "LogisticRegression", max_iter=1000),
    "random-forest": partial(_forest, "Classifier"),
    "gaussian-process": partial(_process, "Classifier"),
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    "linear-regression": partial(_linear, "BayesianRidge"),
    "random-forest": partial(_forest, "Regressor"),
    "gaussian-process": partial(_process, "Regressor"),
}
