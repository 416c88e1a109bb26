"""Any scikit-learn classifier or regressor as a local learner.

A forest or a gradient boosting machine has no posterior of its own, so a site refits it `size`
times by the bootstrap, which is the posterior under a prior that knows nothing (Rubin, 1981):

    Bayesian bootstrap    weights N w with w ~ Dirichlet(1, ..., 1), where fit takes sample_weight
    ordinary bootstrap    N rows drawn with replacement, where it does not

`size` 1 is one plain fit. The members are averaged as weight samples are:

    classifier    p(y = c | x) = (N mean_m p_m(c | x) + s / C) / (N + s), with a temperature to it
                  if it is to be ``calibrated`` (`learning.bagging`)
    regressor     mean = mean_m f_m(x),   variance = error(x) + (var_m f_m(x) - most)_+

A classifier's smoothing s is worth s rows spread over all C classes of the task: no class is
impossible, least of all one that the site has never seen. An estimator sees the site's own classes
numbered from 0 without a gap, as some want them. A regressor's error(x) is the expected square of a
residual on rows not trained on, learnt as a function of the input (`learning.noise`). It holds what
the members differ by; only what they differ by more than at any row of the site is added to it.

A variance can give the rows away. That of a linear model is a quadratic form in x. Whoever sees it
at enough x has the form's coefficients, and they are the site's column means and scatter matrix:
160 rows gave each mean to four decimals. A Gaussian process is surest amid its rows. So where
predictions leave a site, a regressor is ``discreet``: it is an ensemble, a linear one tells one
variance for every x (the cross-validated squared error), and no estimator's own deviation is taken.
Beside the members' spread the others tell one number, the mean error less the mean spread: where a
site errs is told to nobody.

scikit-learn is imported when an estimator is used, never with this module.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.learning.bagging import inverse_temperature
from predbayes.learning.likelihood import MIN_NOISE_VAR, LearnedNoise, Softmax
from predbayes.learning.local import GateLearner, Learner
from predbayes.learning.noise import ErrorVariance, learn_error, parts
from predbayes.learning.training import Rows, gather
from predbayes.optional import require
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.folds import numbered
from predbayes.progress import Event, tell
from predbayes.seeding import isolated, split

_MAX_DRAWS = 100  # bootstrap draws without all classes; then each class is drawn for itself

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SklearnClassifier(Learner):
    """A bootstrap ensemble of a scikit-learn classifier.

    Args:
        estimator: Unfitted, with `predict_proba`; a pipeline will do. It is cloned, never changed.
        num_classes: Classes of the task, C; a site need not have rows of all.
        size: How many members; 1 is one fit on all rows as they are.
        smoothing: How many rows the uniform distribution is worth, s.
        calibrated: Whether a temperature is learnt on rows that members were not fitted to; every
            member is then fitted to rows drawn with replacement.
    """

    estimator: Any
    num_classes: int
    size: int = 10
    smoothing: float = 1.0
    calibrated: bool = False

    keeps_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_estimator(self.estimator, self.size)
        if self.calibrated and self.size == 1:
            raise TrainingError("one member leaves no row out to calibrate on; give it more")
        if not self.smoothing > 0:
            raise TrainingError(f"smoothing must be positive, not {self.smoothing}")
        if not hasattr(self.estimator, "predict_proba"):
            raise TrainingError(
                f"{_name(self.estimator)} has no predict_proba; wrap it in scikit-learn's "
                "CalibratedClassifierCV, or choose a classifier with probabilities"
            )

    def fit(
        self, rows: Rows, *, rng: torch.Generator, groups: Tensor | None = None
    ) -> FittedClassifier:
        """Fit every member; a site with one class only gets a constant, which needs no fit.

        Rows of a group, as those of one patient, are drawn and left out together.
        """
        inputs, targets = gather(rows, rng=rng)
        Softmax(self.num_classes).check(targets)
        # Numbered without a gap: XGBoost refuses a site that lacks a class in between.
        classes, labels = np.unique(targets.numpy(), return_inverse=True)
        if len(classes) == 1:
            return self._of((_OneClass(labels[:1]),), classes, len(labels))
        table = _table(inputs)
        with _threads():
            if self.calibrated:
                return self._bagged(table, labels, classes, rng, groups)
            members = _members(self.estimator, table, labels, self.size, rng, groups)
        return self._of(members, classes, len(labels))

    def _of(self, members: tuple[Any, ...], classes: Array, num_rows: int) -> FittedClassifier:
        return FittedClassifier(members, classes, self.num_classes, self.smoothing / num_rows)

    def _bagged(
        self,
        table: Array,
        labels: Array,
        classes: Array,
        rng: torch.Generator,
        groups: Tensor | None,
    ) -> FittedClassifier:
        members, left_out = [], []
        for number, own in enumerate(split(rng, self.size), 1):
            drawn = _drawn_rows(labels, own, groups)
            members.append(_fitted(self.estimator, table[drawn], labels[drawn], rng=own))
            # Rows that were not drawn, and none of whose group was.
            units = numbered(len(labels), groups).numpy()
            left_out.append(np.flatnonzero(~np.isin(units, units[drawn])))
            tell(Event("member", epoch=number, num_epochs=self.size))
        fitted = self._of(tuple(members), classes, len(labels))
        # Of few patients a draw may leave nobody out.
        told = [(m, rows) for m, rows in zip(members, left_out, strict=True) if len(rows)]
        if not told:
            return fitted
        probs = [fitted.shares((member,), table[rows]) for member, rows in told]
        rows_told = [rows for _, rows in told]
        sharpness = inverse_temperature(probs, rows_told, classes[labels], fitted.uniform)
        return replace(fitted, inverse_temperature=sharpness)

    def gate_learner(self) -> GateLearner:
        """Return the learner of a gate: half the members."""
        size = max(2 if self.calibrated else 1, math.ceil(self.size / 2))
        return GateLearner(replace(self, num_classes=2, size=size))


@dataclass(frozen=True, slots=True)
class FittedClassifier:
    """The members, the site's classes, and the mass of the uniform against theirs of one."""

    members: tuple[Any, ...]
    classes: Array  # of the task, by the members' numbers
    num_classes: int
    uniform: float  # s / N
    inverse_temperature: float = 1.0

    def predict(self, inputs: Tensor) -> Categorical:
        """Average the members, with a column for every class of the task."""
        with _threads():
            shares = self.shares(self.members, _table(inputs))
        smoothed = Categorical.from_moments(_tensor(shares + self.uniform / self.num_classes))
        if self.inverse_temperature == 1:
            return smoothed
        return smoothed.from_natural(self.inverse_temperature * smoothed.natural())

    def shares(self, members: Sequence[Any], table: Array) -> Array:
        """Return what members say on average, with a column for every class of the task."""
        probs = np.zeros((len(table), self.num_classes))
        for member in members:
            probs[:, self.classes[member.classes_]] += member.predict_proba(table)
        mean: Array = probs / len(members)
        return mean


@dataclass(frozen=True, slots=True)
class SklearnRegressor(Learner):
    """A bootstrap ensemble of a scikit-learn regressor, with the noise estimated at the site.

    An estimator that has a predictive standard deviation of its own (`return_std`: Gaussian
    processes, Bayesian ridge regression) is fitted once and taken at its word, whatever the
    ``size``, unless it is to be ``discreet``. A Gaussian process knows of noise what its kernel
    does: add a `WhiteKernel`.

    Args:
        estimator: Unfitted; a pipeline will do. It is cloned, never changed.
        size: How many members; 1 is one fit on all rows as they are.
        discreet: Whether the variance must not tell where the site's rows lie.
    """

    estimator: Any
    size: int = 10
    discreet: bool = False

    keeps_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_estimator(self.estimator, self.size)
        if require("sklearn.base", "core[sklearn]").is_classifier(self.estimator):
            raise TrainingError(
                f"{_name(self.estimator)} is a classifier; use SklearnClassifier, or a regressor"
            )

    def fit(
        self, rows: Rows, *, rng: torch.Generator, groups: Tensor | None = None
    ) -> FittedRegressor:
        """Fit every member, then estimate the noise; rows of a group are left out together."""
        with _threads():
            return self._fit(*gather(rows, rng=rng), rng, groups)

    def _fit(
        self, inputs: Tensor, targets: Tensor, rng: torch.Generator, groups: Tensor | None
    ) -> FittedRegressor:
        LearnedNoise().check(targets)
        if len(targets) < 2:
            raise TrainingError("a regression needs at least two rows: one tells nothing of noise")
        table, numbers = _table(inputs), targets.double().numpy()
        # A hundredth of the targets' standard deviation; constant targets have no unit to give.
        floor_var = MIN_NOISE_VAR * (float(numbers.var()) or 1.0)
        if _has_std(self.estimator) and not self.discreet:
            members = _members(self.estimator, table, numbers, 1, rng)
            return FittedRegressor(members, ErrorVariance(floor_var), floor_var, "own")
        members = _members(self.estimator, table, numbers, self.size, rng, groups)
        # Target minus the prediction of a plain fit to the other folds, for every row once.
        held_out = np.empty(len(numbers))
        for out, others in parts(len(numbers), rng, groups):
            model = _fitted(self.estimator, table[others], numbers[others], rng=rng)
            with _explained(self.estimator):
                held_out[out] = numbers[out] - _means(model, table[out])
        error_var = float((held_out**2).mean())
        if self.discreet and hasattr(_last_step(members[0])[1], "coef_"):
            return FittedRegressor(members, ErrorVariance(error_var), floor_var, "one")
        spread_vars = np.var([_means(member, table) for member in members], axis=0)
        if self.discreet:
            rest = ErrorVariance(error_var - float(spread_vars.mean()))
            return FittedRegressor(members, rest, floor_var)
        error = learn_error(table, held_out, floor_var, rng, groups)
        return FittedRegressor(members, error, floor_var, most_spread_var=float(spread_vars.max()))

    def gate_learner(self) -> GateLearner:
        """Return the learner of a gate: the estimator's counterpart for classes, half the size."""
        classifier, size = _counterpart(self.estimator), math.ceil(self.size / 2)
        # A gate must be right about its odds, which boosting is not by itself.
        calibrated = size > 1 and _is_boosting(classifier)
        return GateLearner(SklearnClassifier(classifier, 2, size, calibrated=calibrated))


@dataclass(frozen=True, slots=True)
class FittedRegressor:
    """The members, and what the variance is beside their spread, or in its place."""

    members: tuple[Any, ...]
    error: ErrorVariance
    floor_var: float  # the least noise; with "own" the least variance
    variance: Literal["spread", "own", "one"] = "spread"
    most_spread_var: float = 0.0  # what the error has of the spread already

    def predict(self, inputs: Tensor) -> Gaussian:
        """Return the moments of the members' mixture, in the units of the targets."""
        with _threads():
            return self._predict(_table(inputs))

    def _predict(self, table: Array) -> Gaussian:
        if self.variance == "own":
            mean, std = self.members[0].predict(table, return_std=True)
            # What of it is noise, the estimator does not say.
            return Gaussian(_tensor(mean), _tensor(std**2).clamp_min(self.floor_var))
        means = np.stack([_means(member, table) for member in self.members])
        spread_var, error = means.var(0), self.error.at(table)
        if self.variance == "one":
            return Gaussian(_tensor(means.mean(0)), _tensor(error.clip(self.floor_var)))
        noise_var = error - spread_var.clip(max=self.most_spread_var)
        epistemic_var = _tensor(spread_var)
        var = epistemic_var + _tensor(noise_var.clip(self.floor_var))
        return Gaussian(_tensor(means.mean(0)), var, epistemic_var)


class _OneClass:
    """What a site with one class only has learnt; most classifiers refuse to be fitted to it."""

    def __init__(self, classes: Array) -> None:
        self.classes_ = classes

    def predict_proba(self, table: Array) -> Array:
        return np.ones((len(table), 1))


def _members(
    estimator: Any,
    table: Array,
    targets: Array,
    size: int,
    rng: torch.Generator,
    groups: Tensor | None = None,
) -> tuple[Any, ...]:
    """One plain fit, or ``size`` fits by the bootstrap that the estimator can take."""
    if size == 1:
        return (_fitted(estimator, table, targets, rng=rng),)
    prefix, last = _last_step(estimator)
    validation = require("sklearn.utils.validation", "core[sklearn]")
    is_weighted = validation.has_fit_parameter(last, "sample_weight")
    members = []
    for number, own in enumerate(split(rng, size), 1):
        if is_weighted:
            weights = {f"{prefix}sample_weight": _dirichlet_weights(len(targets), own, groups)}
            members.append(_fitted(estimator, table, targets, weights, rng=own))
        else:
            drawn = _drawn_rows(targets, own, groups)
            if _has_std(estimator) or is_process(estimator):
                drawn = np.unique(drawn)  # two copies of a row would tell it that nothing is noise
            members.append(_fitted(estimator, table[drawn], targets[drawn], rng=own))
        tell(Event("member", epoch=number, num_epochs=size))
    return tuple(members)


def _fitted(
    estimator: Any,
    table: Array,
    targets: Array,
    arguments: dict[str, Array] | None = None,
    *,
    rng: torch.Generator,
) -> Any:
    """A fitted clone; every `random_state` in it, however deep, comes from ``rng``."""
    model = require("sklearn.base", "core[sklearn]").clone(estimator)
    names = [name for name in model.get_params() if name.split("__")[-1] == "random_state"]
    seeds = torch.randint(2**32 - 1, (len(names),), generator=rng).tolist()
    model.set_params(**dict(zip(sorted(names), seeds, strict=True)))
    converged = require("sklearn.exceptions", "core[sklearn]").ConvergenceWarning
    with isolated(rng), _explained(estimator), warnings.catch_warnings():
        warnings.simplefilter("ignore", converged)  # a bound that is reached; users cannot act
        return _fit(model, table, targets, arguments or {})


def _fit(model: Any, table: Array, targets: Array, arguments: dict[str, Array]) -> Any:
    """Fit; a class's only row counts as two halves where the estimator refuses it otherwise.

    Some hold out rows of every class to stop early, as histogram boosting does above 10,000 rows.
    """
    alone = np.empty(0, dtype=np.intp)  # rows that are the only one of their class
    if np.issubdtype(targets.dtype, np.integer):  # numbers are no classes
        _, first, counts = np.unique(targets, return_index=True, return_counts=True)
        alone = first[counts == 1]
    try:
        return model.fit(table, targets, **arguments)
    except ValueError:
        if not len(alone):
            raise
    rows = np.concatenate([np.arange(len(targets)), alone])
    share = np.where(np.isin(rows, alone), 0.5, 1.0)
    halves = {name: share * weights[rows] for name, weights in arguments.items()}
    return model.fit(table[rows], targets[rows], **halves)


def _dirichlet_weights(num_rows: int, rng: torch.Generator, groups: Tensor | None) -> Array:
    """Weights of sum N, uniform over the simplex: exponentials divided by their sum.

    Rows of a group have one weight.
    """
    units = numbered(num_rows, groups)
    num_units = int(units.max()) + 1
    draws = torch.empty(num_units, dtype=torch.float64).exponential_(generator=rng)[units]
    weights: Array = (num_rows * draws / draws.sum()).numpy()
    return weights


def _drawn_rows(targets: Array, rng: torch.Generator, groups: Tensor | None) -> Array:
    """Indices drawn with replacement, of every class if the targets are classes.

    Groups are drawn whole.
    """
    classes = np.unique(targets) if np.issubdtype(targets.dtype, np.integer) else None
    for _ in range(_MAX_DRAWS):
        drawn = _drawn_groups(len(targets), rng, groups)
        if classes is None or len(np.unique(targets[drawn])) == len(classes):
            return drawn
    assert classes is not None
    own_rows = [np.flatnonzero(targets == label) for label in classes]
    return np.concatenate(
        [own[torch.randint(len(own), (len(own),), generator=rng).numpy()] for own in own_rows]
    )


def _drawn_groups(num_rows: int, rng: torch.Generator, groups: Tensor | None) -> Array:
    """Rows, or all rows of groups, drawn as often as there are such."""
    if groups is None:
        drawn: Array = torch.randint(num_rows, (num_rows,), generator=rng).numpy()
        return drawn
    numbers = numbered(num_rows, groups).numpy()
    num_groups = int(numbers.max()) + 1
    rows_of = np.split(np.argsort(numbers, kind="stable"), np.bincount(numbers).cumsum()[:-1])
    own = torch.randint(num_groups, (num_groups,), generator=rng).tolist()
    return np.concatenate([rows_of[one] for one in own])


def _means(member: Any, table: Array) -> Array:
    return np.asarray(member.predict(table), dtype=np.float64).reshape(len(table))


def _last_step(estimator: Any) -> tuple[str, Any]:
    """What predicts in the end, and how a pipeline calls its arguments."""
    if not hasattr(estimator, "steps"):
        return "", estimator
    name, step = estimator.steps[-1]
    prefix, last = _last_step(step)
    return f"{name}__{prefix}", last


def _counterpart(estimator: Any) -> Any:
    """The classifier that goes with a regressor: a forest with a forest, a linear one otherwise."""
    last = type(_last_step(estimator)[1])
    name = last.__name__.replace("Regressor", "Classifier")
    if "Forest" in name or "Trees" in name:
        return getattr(require("sklearn.ensemble", "core[sklearn]"), name)(min_samples_leaf=3)
    if _is_boosting(estimator):  # of the same size; what is minimised goes with the targets
        classifier = getattr(sys.modules[last.__module__], name)()
        own = _last_step(estimator)[1].get_params()
        for_targets = {"loss", "criterion", "objective", "alpha", "quantile"}
        return classifier.set_params(**{k: v for k, v in own.items() if k not in for_targets})
    scaler = require("sklearn.preprocessing", "core[sklearn]").StandardScaler()
    linear = require("sklearn.linear_model", "core[sklearn]").LogisticRegression(max_iter=1000)
    return require("sklearn.pipeline", "core[sklearn]").make_pipeline(scaler, linear)


def _is_boosting(estimator: Any) -> bool:
    """Of scikit-learn, LightGBM or XGBoost, which have the classifier beside the regressor."""
    name = type(_last_step(estimator)[1]).__name__
    return "GradientBoosting" in name or name.startswith(("LGBM", "XGB"))


def _has_std(estimator: Any) -> bool:
    predict = getattr(_last_step(estimator)[1], "predict", None)
    return predict is not None and "return_std" in inspect.signature(predict).parameters


def is_process(estimator: Any) -> bool:
    """Return whether an estimator, or what a pipeline ends in, is a Gaussian process."""
    last = _last_step(estimator)[1]
    return hasattr(last, "kernel") and hasattr(last, "optimizer")


def _table(inputs: Tensor) -> Array:
    """Inputs of any shape as the rows of a table."""
    table: Array = inputs.detach().cpu().reshape(len(inputs), math.prod(inputs.shape[1:])).numpy()
    return table


def _tensor(values: Array) -> Tensor:
    return torch.as_tensor(values, dtype=torch.get_default_dtype())


def _require_estimator(estimator: Any, size: int) -> None:
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise TrainingError(
            f"{_name(estimator)} is no scikit-learn estimator; give an instance, as in "
            "RandomForestClassifier()"
        )
    if size < 1:
        raise TrainingError(f"an ensemble needs at least one member, not {size}")


def _name(estimator: Any) -> str:
    return estimator.__name__ if isinstance(estimator, type) else type(estimator).__name__


def _threads() -> Any:
    """As many threads as torch has, for estimators that would take all processors."""
    limits = require("threadpoolctl", "core[sklearn]").threadpool_limits
    return limits(torch.get_num_threads(), user_api="openmp")


@contextmanager
def _explained(estimator: Any) -> Iterator[None]:
    """What an estimator refuses, as one line."""
    try:
        yield
    except ValueError as error:
        reason = str(error).strip().split("\n")[0]
        raise TrainingError(f"{_name(estimator)} refuses the site's rows: {reason}") from error
