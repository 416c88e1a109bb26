"""Estimators by name, for plans and for whoever does not want to choose.

logistic-regression   linear, for classes; of the hazards of a survival likewise
linear-regression     Bayesian ridge, for numbers
gradient-boosting     100 small trees on histograms; a bag of them, calibrated on out-of-bag rows
lightgbm, xgboost     the same trees by these packages, each an extra of its own
random-forest         200 trees, with leaves of at least five rows
gaussian-process      with learnt length scale and noise
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from predbayes.optional import require

_NEED = "core[sklearn]"
_LEAF_ROWS = 30
"""Least rows of a leaf of boosting: smaller ones tell who was trained on, and predict no better
(`python -m benchmarks membership --leaves`)."""


def _linear(kind: str, **settings: Any) -> Any:
    return getattr(require("sklearn.linear_model", _NEED), kind)(**settings)


def _boosting(kind: str) -> Any:
    build = getattr(require("sklearn.ensemble", _NEED), f"HistGradientBoosting{kind}")
    # Small trees and small steps: tables of a few hundred noisy rows are the rule, and the larger
    # trees that scikit-learn grows by default learn their noise.
    # Not stopped early: rows drawn twice would be on both sides of what it is stopped by.
    return build(
        learning_rate=0.07, max_iter=100, max_leaf_nodes=6, l2_regularization=1.0,
        min_samples_leaf=_LEAF_ROWS, early_stopping=False,
    )  # fmt: skip


def _lightgbm(kind: str) -> Any:
    # One thread and its slower, exact way of summing: the same bits wherever it runs.
    return getattr(require("lightgbm", "core[lightgbm]"), f"LGBM{kind}")(
        learning_rate=0.07, n_estimators=100, num_leaves=6, reg_lambda=1.0,
        min_child_samples=_LEAF_ROWS, n_jobs=1, deterministic=True, force_row_wise=True,
        verbosity=-1,
    )  # fmt: skip


def _xgboost(kind: str) -> Any:
    # Trees that grow leaf by leaf, as those of the others do. A row of two classes weighs a quarter
    # at the most, p (1 - p); one of numbers weighs 1.
    return getattr(require("xgboost", "core[xgboost]"), f"XGB{kind}")(
        learning_rate=0.07, n_estimators=100, max_leaves=6, max_depth=0, grow_policy="lossguide",
        reg_lambda=1.0, min_child_weight=_LEAF_ROWS / 4, tree_method="hist", n_jobs=1, verbosity=0,
    )  # fmt: skip


def _forest(kind: str) -> Any:
    build = getattr(require("sklearn.ensemble", _NEED), f"RandomForest{kind}")
    # Leaves of several rows: a leaf of one row is certain of it, and tells who was trained on.
    # Five cost .005 of NLL against three (`python -m benchmarks membership --leaves`), ten .022.
    return build(n_estimators=200, min_samples_leaf=5)


def _process(kind: str) -> Any:
    processes = require("sklearn.gaussian_process", _NEED)
    kernels = require("sklearn.gaussian_process.kernels", _NEED)
    # From a length of 1 the search ends at a constant where many columns put all rows far apart.
    kernel = kernels.ConstantKernel() * kernels.RBF(4.0)
    if kind == "Classifier":
        return processes.GaussianProcessClassifier(kernel)
    return processes.GaussianProcessRegressor(kernel + kernels.WhiteKernel(), normalize_y=True)


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "logistic-regression": partial(_linear, "LogisticRegression", max_iter=1000),
    "gradient-boosting": partial(_boosting, "Classifier"),
    "lightgbm": partial(_lightgbm, "Classifier"),
    "xgboost": partial(_xgboost, "Classifier"),
    "random-forest": partial(_forest, "Classifier"),
    "gaussian-process": partial(_process, "Classifier"),
}
HAZARDS: dict[str, Callable[[], Any]] = {
    "logistic-regression": CLASSIFIERS["logistic-regression"],
}
"""Of the event in an interval, for those who reached it (`predbayes_study.tasks.hazards`)."""

REGRESSORS: dict[str, Callable[[], Any]] = {
    "linear-regression": partial(_linear, "BayesianRidge"),
    "gradient-boosting": partial(_boosting, "Regressor"),
    "lightgbm": partial(_lightgbm, "Regressor"),
    "xgboost": partial(_xgboost, "Regressor"),
    "random-forest": partial(_forest, "Regressor"),
    "gaussian-process": partial(_process, "Regressor"),
}

BY_TASK = {"classification": CLASSIFIERS, "regression": REGRESSORS, "survival": HAZARDS}
"""What a plan's task can be learnt by."""

PRIVATE = "dp-logistic"
"""The learner of plans that promise differential privacy (`predbayes_study`)."""

AUTO = "auto"
"""The name under which a site chooses a learner by cross-validation."""

MAX_BOOSTED = 10
"""Most classes for which boosting is tried, as it grows trees for each of them."""


_TRIED = {
    "classification": ("logistic-regression", "gradient-boosting"),
    "regression": ("linear-regression", "gradient-boosting"),
    "survival": ("logistic-regression",),
}


def tried_by_auto(task: str, num_outputs: int) -> tuple[str, ...]:
    """Return the learners that `auto` chooses from, simplest first."""
    too_many = {"gradient-boosting"} if num_outputs > MAX_BOOSTED else set[str]()
    return (*(name for name in _TRIED[task] if name not in too_many), "small-network")


CALIBRATED = frozenset({"gradient-boosting", "lightgbm", "xgboost"})
"""Classifiers that are surer than they are right, and get a temperature on out-of-bag rows."""
