"""A federation as a scikit-learn estimator.

    fit(sites, reference)   sites: name -> (X, y); reference: X without labels, (X, y), or
                            (X, y, X without labels)
    fit(X, y)               one site that has everything, for pipelines and for comparison

Inside is `run` of a pool, distilled into one network: what `predict` asks. Classes may be of any
kind and are numbered; inputs are standardised by the reference rows, the target of a regression by
its labelled rows, or by the sums of the sites where no row is labelled. `result_` is the `Result`.

Importing this module needs scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from predbayes.api.result import Result
from predbayes.api.run import run
from predbayes.api.scaling import Scaling
from predbayes.errors import DataError, TrainingError, no_such
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.distill import DISTILLATION
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.likelihood import LearnedNoise, Likelihood, Softmax
from predbayes.learning.local import LocalLearner, Network, OptimizerSettings, SGHMCLearner
from predbayes.learning.named import CLASSIFIERS, REGRESSORS
from predbayes.methods.distilled import Distilled
from predbayes.methods.pooled import Pooled
from predbayes.optional import require
from predbayes.pools.auto import AutoPool
from predbayes.pools.beta import BetaPool
from predbayes.posterior.cyclical import PRESETS
from predbayes.predictive.families import Gaussian
from predbayes.progress import Callback

_base = require("sklearn.base", "study")
_validation = require("sklearn.utils.validation", "study")
_multiclass = require("sklearn.utils.multiclass", "study")

Array = npt.NDArray[Any]
Build = Callable[[int, int], nn.Module]
"""(number of inputs, number of outputs) -> torch module."""

Pool = Literal["auto", "beta", "mixture", "product"]
_MIN_STEPS = 1000  # small sites pass over their rows more often


class InputError(DataError, ValueError):
    """Rows that cannot be fitted; a ValueError, as scikit-learn's users expect."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Everybody's rows as arrays: labels as they are."""

    sites: dict[str, tuple[Array, Array]]
    labelled: tuple[Array, Array] | None
    unlabelled: Array | None
    evaluate: Array | None = None

    def labels(self) -> Array:
        """All labels, those of the reference rows last."""
        own = [] if self.labelled is None else [self.labelled[1]]
        return np.concatenate([*(y for _, y in self.sites.values()), *own])

    def reference_inputs(self) -> Array:
        """All reference inputs, in order."""
        first = None if self.labelled is None else self.labelled[0]
        parts = [part for part in (first, self.unlabelled, self.evaluate) if part is not None]
        return np.concatenate(parts)


class _Federated(_base.BaseEstimator):  # type: ignore[misc, name-defined]
    """What the two estimators share."""

    def __init__(
        self,
        model: Any = "mlp",
        *,
        pool: Pool = "auto",
        student: Build | Literal["mlp"] = "mlp",
        distillation: OptimizerSettings | None = None,
        random_state: int = 0,
        device: str = "cpu",
        progress: bool | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.model = model
        self.pool = pool
        self.student = student
        self.distillation = distillation
        self.random_state = random_state
        self.device = device
        self.progress = progress
        self.callbacks = callbacks

    def fit(self, sites: Any, reference: Any = None) -> Self:
        """Fit every site's model, pool them on the reference rows, distil the pool.

        Args:
            sites: Name -> (X, y); or X alone, and then ``reference`` is its y.
            reference: X without labels, (X, y), (X, y, X without labels), or `ReferenceRows`.
        """
        rows = self._rows(sites, reference)
        encode, likelihoods = self._prepared(rows)
        scaling = self._scaling(rows)
        given = {name: (scaling.scaled(x), encode(y)) for name, (x, y) in rows.sites.items()}
        targets = encode(rows.labels()[:0] if rows.labelled is None else rows.labelled[1])
        num_evaluate = 0 if rows.evaluate is None else len(rows.evaluate)
        inputs = scaling.scaled(rows.reference_inputs())
        num_inputs = int(np.prod(inputs.shape[1:]))
        student = Network(_build(self.student, num_inputs, likelihoods[1]), likelihoods[1])
        learner = self._learner(num_inputs, likelihoods[0])
        method = Distilled(
            self._pooled(learner), student, self.distillation or DISTILLATION, self.device
        )
        result: Result[Any] = run(
            method,
            given,
            ReferenceRows(inputs, targets, num_evaluate),
            seed=int(self.random_state),
            progress=self.progress,
            callbacks=self.callbacks,
        )
        self.result_ = result.scaled_by(scaling)
        return self

    def _rows(self, sites: Any, reference: Any) -> _Rows:
        if not isinstance(sites, Mapping) or hasattr(sites, "shape"):  # some sparse tables are both
            x, y = self._checked(sites, reference, first=True)
            return _Rows({"all": (x, y)}, None, x)
        if reference is None or not sites:
            raise InputError("fit needs sites (name -> (X, y)) and reference rows (X, or (X, y))")
        checked = {
            str(name): self._checked(*_pair(name, rows), first=index == 0)
            for index, (name, rows) in enumerate(sites.items())
        }
        x, y, unlabelled, evaluate = _reference_parts(reference)
        return _Rows(
            checked,
            self._checked(x, y) if y is not None and len(y) else None,
            *(self._inputs(part) for part in (unlabelled, evaluate)),
        )

    def _checked(self, x: Any, y: Any, *, first: bool = False) -> tuple[Array, Array]:
        """Inputs and labels as arrays; scikit-learn refuses what cannot be."""
        inputs, labels = _validation.validate_data(
            self, _plain(x), _plain(y), reset=first, allow_nd=True, dtype=np.float64,
            y_numeric=self._numeric, ensure_min_samples=1 + self._numeric,
        )  # fmt: skip
        return inputs, labels

    def _inputs(self, x: Any) -> Array | None:
        if x is None or not len(x):
            return None
        checked: Array = _validation.validate_data(
            self, _plain(x), reset=False, allow_nd=True, dtype=np.float64
        )
        return checked

    def _scaling(self, rows: _Rows) -> Scaling:
        """Means and scales of tables; images and the like are taken as they are."""
        inputs = rows.reference_inputs()
        if inputs.ndim != 2:
            return Scaling()
        return Scaling(tuple(inputs.mean(0).tolist()), tuple(_scales(inputs).tolist()))

    def _learner(self, num_inputs: int, likelihood: Likelihood) -> LocalLearner:
        model, known = self.model, self._known()
        if isinstance(model, str) and model != "mlp":
            if model not in known:
                raise TrainingError(no_such("model", model, ["mlp", *known]))
            model = known[model]()
        if hasattr(model, "get_params"):
            return self._of_estimator(model, likelihood)
        network = Network(_build(model, num_inputs, likelihood), likelihood)
        preset = "tuned" if isinstance(likelihood, Softmax) else "tuned-regression"
        settings = replace(PRESETS[preset], min_steps=_MIN_STEPS)
        return SGHMCLearner(network, settings, self.device)

    def _pooled(self, learner: LocalLearner) -> Any:
        prior: Any = Gaussian(torch.zeros(1), torch.ones(1)) if self._numeric else "default"
        if self.pool == "auto":
            return Pooled(learner, AutoPool(prior=prior), send="predictions")
        betas: dict[str, Any] = {"beta": "tuned", "mixture": 0.0, "product": 1.0}
        if self.pool not in betas:
            raise TrainingError(no_such("pool", str(self.pool), ["auto", *betas]))
        return Pooled(learner, BetaPool(betas[self.pool], prior=prior), send="predictions")

    def _predictive(self, x: Any) -> Any:
        _validation.check_is_fitted(self)
        checked = _validation.validate_data(
            self, _plain(x), reset=False, allow_nd=True, dtype=np.float64
        )
        return self.result_.predict(checked)

    _numeric: bool

    def _known(self) -> Mapping[str, Callable[[], Any]]:
        raise NotImplementedError

    def _of_estimator(self, estimator: Any, likelihood: Likelihood) -> LocalLearner:
        raise NotImplementedError

    def _prepared(
        self, rows: _Rows
    ) -> tuple[Callable[[Array], Tensor], tuple[Likelihood, Likelihood]]:
        """How labels become targets; the likelihoods of the sites' networks and the student."""
        raise NotImplementedError


class FederatedClassifier(_base.ClassifierMixin, _Federated):  # type: ignore[misc, name-defined]
    """A classifier that sites make together, each from its own rows.

    Args:
        model: What each site fits: ``"mlp"``, ``"logistic-regression"``, ``"random-forest"``,
            ``"gaussian-process"``, an estimator of scikit-learn, or a function (number of inputs,
            number of outputs) -> torch module.
        pool: How predictions are pooled: ``"auto"``, ``"beta"``, ``"mixture"`` or ``"product"``.
        student: The network that comes of it: ``"mlp"``, or a function as above.
        distillation: How the student is trained; None is as for `distill`.
        random_state: The seed.
        device: Where networks are trained: ``"cpu"``, ``"cuda"``, ``"auto"``.
        progress: As in `run`.
        callbacks: As in `run`.
    """

    _numeric = False

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        chosen = self._predictive(X).classes().numpy()
        labels: Array = self.classes_[chosen]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of `classes_`, (B, C)."""
        probs: Array = self._predictive(X).log_probs.double().softmax(-1).numpy()
        return probs

    def _known(self) -> Mapping[str, Callable[[], Any]]:
        return CLASSIFIERS

    def _of_estimator(self, estimator: Any, likelihood: Likelihood) -> LocalLearner:
        return SklearnClassifier(estimator, likelihood.num_outputs)

    def _prepared(
        self, rows: _Rows
    ) -> tuple[Callable[[Array], Tensor], tuple[Likelihood, Likelihood]]:
        labels = rows.labels()
        _multiclass.check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise InputError(f"all rows are of one class, {labels[0]!r}; a classifier needs two")
        softmax = Softmax(len(self.classes_))
        return partial(_numbered, self.classes_), (softmax, softmax)


class FederatedRegressor(_base.RegressorMixin, _Federated):  # type: ignore[misc, name-defined]
    """A regressor that sites make together, each from its own rows.

    Targets may be in any unit: they are standardised inside, and predictions come back in it.

    Args:
        model: What each site fits: ``"mlp"``, ``"linear-regression"``, ``"random-forest"``,
            ``"gaussian-process"``, an estimator of scikit-learn, or a function (number of inputs,
            number of outputs) -> torch module.
        pool: How predictions are pooled: ``"auto"``, ``"beta"``, ``"mixture"`` or ``"product"``.
        student: The network that comes of it, with a second output for its variance: ``"mlp"``,
            or a function as above.
        distillation: How the student is trained; None is as for `distill`.
        random_state: The seed.
        device: Where networks are trained: ``"cpu"``, ``"cuda"``, ``"auto"``.
        progress: As in `run`.
        callbacks: As in `run`.
    """

    _numeric = True

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the mean of each row, with its standard deviation if that is asked for."""
        predictive = self._predictive(X)
        mean: Array = predictive.mean.numpy()
        return (mean, predictive.std.numpy()) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Array, Array]:
        """Return the low and high end of the central interval with this probability."""
        low, high = self._predictive(X).interval(level)
        return low.numpy(), high.numpy()

    def _known(self) -> Mapping[str, Callable[[], Any]]:
        return REGRESSORS

    def _of_estimator(self, estimator: Any, likelihood: Likelihood) -> LocalLearner:  # noqa: ARG002
        return SklearnRegressor(estimator)

    def _scaling(self, rows: _Rows) -> Scaling:
        mean, scale = _moments(rows)
        return replace(super()._scaling(rows), target_mean=mean, target_scale=scale)

    def _prepared(
        self, rows: _Rows
    ) -> tuple[Callable[[Array], Tensor], tuple[Likelihood, Likelihood]]:
        mean, scale = _moments(rows)
        scaling = Scaling(target_mean=mean, target_scale=scale)

        def standardised(labels: Array) -> Tensor:
            return scaling.scaled_targets(torch.as_tensor(labels.astype(np.float64)))

        return standardised, (LearnedNoise(), LearnedNoise(per_input=True))


def _moments(rows: _Rows) -> tuple[float, float]:
    """Mean and spread of the labelled targets, or of all sites' where those do not tell."""
    if rows.labelled is not None and len(rows.labelled[1]) > 1 and np.ptp(rows.labelled[1]) > 0:
        known = rows.labelled[1]
    else:
        known = rows.labels()
    return float(known.mean()), float(known.std()) or 1.0


def _numbered(classes: Array, labels: Array) -> Tensor:
    return torch.as_tensor(np.searchsorted(classes, labels))


def _scales(inputs: Array) -> Array:
    std = inputs.std(0)
    # Of a constant column nothing but rounding is left.
    constant = std <= 1e-10 * np.abs(inputs).max(0, initial=0)
    return np.where(constant, 1.0, std)


def _build(model: Any, num_inputs: int, likelihood: Likelihood) -> Any:
    if isinstance(model, str):
        return Network.mlp(num_inputs, likelihood).build
    if not callable(model):
        raise TrainingError(
            f"model {model!r} is neither a name, an estimator, nor a function "
            "(number of inputs, number of outputs) -> torch module"
        )
    return partial(model, num_inputs, likelihood.num_outputs)


def _reference_parts(reference: Any) -> tuple[Any, Any, Any, Any]:
    """Labelled inputs, their labels, inputs without labels, inputs to evaluate on."""
    if isinstance(reference, ReferenceRows):
        inputs, labels, stop = reference.inputs, reference.labelled, reference.distillation.stop
        return inputs[labels], reference.targets, inputs[labels.stop : stop], inputs[stop:]
    if not isinstance(reference, tuple):
        return None, None, reference, None
    if len(reference) not in (2, 3):
        raise InputError("reference rows are X, (X, y) or (X, y, X without labels)")
    return reference[0], reference[1], reference[2] if len(reference) == 3 else None, None


def _pair(name: Any, rows: Any) -> tuple[Any, Any]:
    if not isinstance(rows, tuple | list) or len(rows) != 2:
        raise InputError(f"the rows of site {name!r} are no pair (X, y)")
    return rows[0], rows[1]


def _plain(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
