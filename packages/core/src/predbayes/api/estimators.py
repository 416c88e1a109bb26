"""A federation as a scikit-learn estimator.

    fit(sites, reference)   sites: name -> (X, y); reference: X without labels, (X, y), or
                            (X, y, X without labels)
    fit(X, y)               one site that has everything, for pipelines and for comparison

Inside is `run` of a pool, distilled into one network: what `predict` asks. Classes may be of any
kind and are numbered; inputs are standardised by the reference rows, the target of a regression by
its labelled rows, or by the sums of the sites where no row is labelled. `result_` is the `Result`.
A saved estimator is a saved result and `estimator.json`, the names of classes and columns.

Importing this module needs scikit-learn.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from predbayes.api import saved
from predbayes.api.result import Result
from predbayes.api.run import run
from predbayes.api.scaling import Scaling
from predbayes.errors import DataError, TrainingError, no_such
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.strict import Strict
from predbayes.files import write_bytes
from predbayes.learning.distill import DISTILLATION
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.likelihood import LearnedNoise, Likelihood, Softmax
from predbayes.learning.local import Learner, Network, OptimizerSettings, SGHMCLearner
from predbayes.learning.named import CALIBRATED, CLASSIFIERS, REGRESSORS
from predbayes.methods.distilled import Distilled
from predbayes.methods.pooled import Pooled
from predbayes.optional import require
from predbayes.pools.auto import AutoPool
from predbayes.pools.terms import beta, mixture, product
from predbayes.posterior.cyclical import PRESETS
from predbayes.predictive.families import Gaussian
from predbayes.progress import Callback

_base = require("sklearn.base", "core[sklearn]")
_validation = require("sklearn.utils.validation", "core[sklearn]")
_multiclass = require("sklearn.utils.multiclass", "core[sklearn]")

Array = npt.NDArray[Any]
Build = Callable[[int, int], nn.Module]
"""(number of inputs, number of outputs) -> torch module."""

Pool = Literal["auto", "beta", "mixture", "product"]
_MIN_STEPS = 1000  # small sites pass over their rows more often
# Of standardised targets. Where they are nearly exact, noise that goes to 0 makes the loss so steep
# that the sampler's step is thrown off: R2 .25 instead of .99 for a linear law and three sites of
# 100 rows.
_LEAST_NOISE = 0.02
_ESTIMATOR_FILE = "estimator.json"
_REFERENCE = "reference rows"
_KINDS = {"b": "numbers", "i": "numbers", "u": "numbers", "f": "numbers", "U": "strings"}


class InputError(DataError, ValueError):
    """Rows that cannot be fitted; a ValueError, as scikit-learn's users expect."""


class EstimatorRecord(Strict):
    """The content of estimator.json."""

    format_version: Literal[1] = 1
    estimator: str
    settings: dict[Literal["model", "pool", "student", "random_state"], str | int]
    num_features: int
    feature_names: list[str] | None
    classes: list[bool | int | float | str] | None


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
        random_state: int | None = 0,
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
        student = Network(
            _build("student", self.student, num_inputs, likelihoods[1]), likelihoods[1]
        )
        learner = self._learner(num_inputs, likelihoods[0])
        method = Distilled(
            self._pooled(learner), student, self.distillation or DISTILLATION, self.device
        )
        result: Result[Any] = run(
            method,
            given,
            ReferenceRows(inputs, targets, num_evaluate),
            seed=secrets.randbits(31) if self.random_state is None else int(self.random_state),
            progress=self.progress,
            callbacks=self.callbacks,
        )
        self.result_ = result.scaled_by(scaling)
        return self

    def save(self, folder: str | Path) -> None:
        """Write a folder that `load` reads: numbers and plain data, nothing pickled."""
        _validation.check_is_fitted(self)
        names, classes = getattr(self, "feature_names_in_", None), getattr(self, "classes_", None)
        given = {name: getattr(self, name) for name in ("model", "pool", "student", "random_state")}
        try:
            record = EstimatorRecord(
                estimator=type(self).__name__,
                settings={n: v for n, v in given.items() if isinstance(v, str | int)},  # type: ignore[misc]
                num_features=self.n_features_in_,
                feature_names=None if names is None else names.tolist(),
                classes=None if classes is None else classes.tolist(),
            )
        except ValidationError as error:
            raise DataError("only classes that are strings or numbers can be saved") from error
        self.result_.save(folder)
        text = f"{record.model_dump_json(indent=2)}\n"
        write_bytes(Path(folder) / _ESTIMATOR_FILE, text.encode())

    @classmethod
    def load(
        cls, folder: str | Path, network: Any = None, *, trust: bool = False, device: str = "cpu"
    ) -> Self:
        """Read an estimator that was saved; it predicts the same bits.

        Settings that are not plain text or numbers, such as a model of one's own, are the defaults.

        Args:
            folder: What `save` wrote.
            network: As in `pb.load`: the student, where it is one's own.
            trust: As in `pb.load`.
            device: Where to predict.
        """
        record = _read(Path(folder), cls.__name__)
        settings: Any = record.settings
        loaded = cls(**settings, device=device)
        loaded.n_features_in_ = record.num_features
        if record.feature_names is not None:
            loaded.feature_names_in_ = np.array(record.feature_names, dtype=object)
        if record.classes is not None:
            loaded.classes_ = np.array(record.classes)
        loaded.result_ = saved.load(folder, network, trust=trust, device=device)
        return loaded

    def _rows(self, sites: Any, reference: Any) -> _Rows:
        if not isinstance(sites, Mapping) or hasattr(sites, "shape"):  # some sparse tables are both
            x, y = self._checked(sites, reference, first=True)
            return _Rows({"all": (x, y)}, None, x)
        if reference is None or not sites:
            raise InputError("fit needs sites (name -> (X, y)) and reference rows (X, or (X, y))")
        checked: dict[str, tuple[Array, Array]] = {}
        for name, given in sites.items():
            with _at(f"site {name!r}"):
                if not isinstance(given, tuple | list) or len(given) != 2:
                    raise InputError("its rows are no pair (X, y)")
                checked[str(name)] = self._checked(*given, first=not checked)
        with _at(_REFERENCE):
            x, y, unlabelled, evaluate = _reference_parts(reference)
            return _Rows(
                checked,
                self._checked(x, y) if y is not None and len(y) else None,
                *(self._optional(part) for part in (unlabelled, evaluate)),
            )

    def _checked(self, x: Any, y: Any, *, first: bool = False) -> tuple[Array, Array]:
        """Inputs and labels as arrays; scikit-learn refuses what cannot be."""
        x, y = _plain(x), _plain(y)
        if not self._numeric:
            _refuse_mixed({"it has": y})
        inputs, labels = _validation.validate_data(
            self, x, y, reset=first, allow_nd=True, dtype=np.float64,
            y_numeric=self._numeric, ensure_min_samples=1 + self._numeric, ensure_all_finite=False,
        )  # fmt: skip
        return _finite(inputs), labels

    def _optional(self, x: Any) -> Array | None:
        return None if x is None or not len(x) else self._inputs(x)

    def _inputs(self, x: Any) -> Array:
        return _finite(
            _validation.validate_data(
                self, _plain(x), reset=False, allow_nd=True, dtype=np.float64,
                ensure_all_finite=False,
            )
        )  # fmt: skip

    def _scaling(self, rows: _Rows) -> Scaling:
        """Means and scales of tables; images and the like are taken as they are."""
        inputs = rows.reference_inputs()
        if inputs.ndim != 2:
            return Scaling()
        std = inputs.std(0)
        # Of a constant column nothing but rounding is left.
        constant = std <= 1e-10 * np.abs(inputs).max(0, initial=0)
        scales = np.where(constant, 1.0, std)
        return Scaling(tuple(inputs.mean(0).tolist()), tuple(scales.tolist()))

    def _learner(self, num_inputs: int, likelihood: Likelihood) -> Learner:
        model, known = self.model, self._known()
        if isinstance(model, str) and model != "mlp":
            if model not in known:
                raise TrainingError(no_such("model", model, ["mlp", *known]))
            model = known[model]()
        if hasattr(model, "get_params"):
            return self._of_estimator(model, likelihood)
        network = Network(_build("model", model, num_inputs, likelihood), likelihood)
        preset = "tuned" if isinstance(likelihood, Softmax) else "tuned-regression"
        settings = replace(PRESETS[preset], min_steps=_MIN_STEPS)
        return SGHMCLearner(network, settings, self.device)

    def _pooled(self, learner: Learner) -> Any:
        prior: Any = Gaussian(torch.zeros(1), torch.ones(1)) if self._numeric else "default"
        if self.pool == "auto":
            return Pooled(learner, AutoPool(prior=prior), send="predictions")
        pools: dict[str, Any] = {"beta": beta, "mixture": mixture, "product": product}
        if self.pool not in pools:
            raise TrainingError(no_such("pool", str(self.pool), ["auto", *pools]))
        return Pooled(learner, pools[self.pool](prior=prior), send="predictions")

    def _predictive(self, x: Any) -> Any:
        _validation.check_is_fitted(self)
        return self.result_.predict(self._inputs(x))

    _numeric: bool

    def _known(self) -> Mapping[str, Callable[[], Any]]:
        raise NotImplementedError

    def _of_estimator(self, estimator: Any, likelihood: Likelihood) -> Learner:
        raise NotImplementedError

    def _prepared(
        self, rows: _Rows
    ) -> tuple[Callable[[Array], Tensor], tuple[Likelihood, Likelihood]]:
        """How labels become targets; the likelihoods of the sites' networks and the student."""
        raise NotImplementedError


class FederatedClassifier(_base.ClassifierMixin, _Federated):  # type: ignore[misc, name-defined]
    """A classifier that sites make together, each from its own rows.

    A Pipeline of scikit-learn transforms one X, so inside it only ``fit(X, y)`` works.

    Args:
        model: What each site fits: ``"mlp"``, ``"logistic-regression"``, ``"gradient-boosting"``,
            ``"random-forest"``, ``"gaussian-process"``, an estimator of scikit-learn, or a function
            (number of inputs, number of outputs) -> torch module.
        pool: How predictions are pooled: ``"auto"``, ``"beta"``, ``"mixture"`` or ``"product"``.
        student: The network that comes of it: ``"mlp"``, or a function as above.
        distillation: How the student is trained; None is as for `distill`.
        random_state: The seed; None draws one.
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

    def _of_estimator(self, estimator: Any, likelihood: Likelihood) -> Learner:
        calibrated = isinstance(self.model, str) and self.model in CALIBRATED
        return SklearnClassifier(estimator, likelihood.num_outputs, calibrated=calibrated)

    def _prepared(
        self, rows: _Rows
    ) -> tuple[Callable[[Array], Tensor], tuple[Likelihood, Likelihood]]:
        _compare_labels(rows)
        labels = rows.labels()
        _multiclass.check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise InputError(f"all rows are of one class, {labels[0]!r}; a classifier needs two")
        softmax = Softmax(len(self.classes_))
        classes = self.classes_

        def numbered(labels: Array) -> Tensor:
            return torch.as_tensor(np.searchsorted(classes, labels))

        return numbered, (softmax, softmax)


class FederatedRegressor(_base.RegressorMixin, _Federated):  # type: ignore[misc, name-defined]
    """A regressor that sites make together, each from its own rows.

    Targets may be in any unit: they are standardised inside, and predictions come back in it.
    A Pipeline of scikit-learn transforms one X, so inside it only ``fit(X, y)`` works.

    Args:
        model: What each site fits: ``"mlp"``, ``"linear-regression"``, ``"gradient-boosting"``,
            ``"random-forest"``, ``"gaussian-process"``, an estimator of scikit-learn, or a function
            (number of inputs, number of outputs) -> torch module.
        pool: How predictions are pooled: ``"auto"``, ``"beta"``, ``"mixture"`` or ``"product"``.
        student: The network that comes of it, with a second output for its variance: ``"mlp"``,
            or a function as above.
        distillation: How the student is trained; None is as for `distill`.
        random_state: The seed; None draws one.
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

    def _of_estimator(self, estimator: Any, likelihood: Likelihood) -> Learner:  # noqa: ARG002
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

        return standardised, (
            LearnedNoise(least_var=_LEAST_NOISE),
            LearnedNoise(per_input=True),
        )


def _moments(rows: _Rows) -> tuple[float, float]:
    """Mean and spread of the labelled targets, or of all sites' where those do not tell."""
    if rows.labelled is not None and len(rows.labelled[1]) > 1 and np.ptp(rows.labelled[1]) > 0:
        known = rows.labelled[1]
    else:
        known = rows.labels()
    return float(known.mean()), float(known.std()) or 1.0


def _build(role: str, model: Any, num_inputs: int, likelihood: Likelihood) -> Any:
    if model == "mlp":
        return Network.mlp(num_inputs, likelihood).build
    if isinstance(model, str):
        raise TrainingError(no_such(role, model, ["mlp"]))
    if not callable(model):
        raise TrainingError(
            f"{role} {model!r} is neither a name, an estimator, nor a function "
            "(number of inputs, number of outputs) -> torch module"
        )
    return partial(model, num_inputs, likelihood.num_outputs)


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Begin what is wrong with some rows with whose they are, in one line."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"{place}: {' '.join(str(error).split())}") from error


def _finite(inputs: Array) -> Array:
    wrong = np.flatnonzero(~np.isfinite(inputs).reshape(len(inputs), -1).all(1))
    if len(wrong):
        raise InputError(
            f"row {wrong[0]} has a missing or infinite value (NaN or inf); impute first"
        )
    return inputs


def _compare_labels(rows: _Rows) -> None:
    """Refuse labels of several types; warn of classes that no site has."""
    by_place = {f"site {name!r} has": y for name, (_, y) in rows.sites.items()}
    known = np.concatenate(list(by_place.values()))
    own = known[:0] if rows.labelled is None else rows.labelled[1]
    _refuse_mixed(by_place if rows.labelled is None else by_place | {f"{_REFERENCE} have": own})
    for label in np.setdiff1d(own, known).tolist():
        warnings.warn(
            f"only the reference rows have the class {label!r}; is it spelt as at the sites?",
            UserWarning,
            stacklevel=4,
        )


def _refuse_mixed(labels: Mapping[str, Any]) -> None:
    kinds = {}
    for place, values in labels.items():
        array = np.array(values, dtype=object) if isinstance(values, list) else np.asarray(values)
        types = set(map(type, array.ravel())) if array.dtype == object else {array.dtype}
        kinds[place] = {_KINDS.get(np.dtype(of).kind, "objects") for of in types}
    if len(set().union(*kinds.values())) > 1:
        told = ", ".join(f"{at} {' and '.join(sorted(of))}" for at, of in kinds.items())
        raise InputError(f"labels are of mixed types: {told}; write them alike everywhere")


def _read(folder: Path, estimator: str) -> EstimatorRecord:
    path = folder / _ESTIMATOR_FILE
    try:
        record = EstimatorRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no {_ESTIMATOR_FILE}; give a folder that an estimator was saved in, or "
            "read a result with pb.load"
        ) from None
    except ValidationError as error:
        raise DataError(f"{path} is not a saved estimator: {error.errors()[0]['msg']}") from error
    if record.estimator != estimator:
        raise DataError(f"{folder} holds a {record.estimator}, not a {estimator}")
    return record


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


def _plain(values: Any) -> Any:
    """Tensors as arrays, the rest as it is; rows of unequal length are refused."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, list | tuple):
        try:
            np.asarray(values)
        except (ValueError, TypeError, RuntimeError):
            raise InputError(
                "rows of unequal length; as sites give a dict name -> (X, y), as reference rows X "
                "or a tuple (X, y)"
            ) from None
    return values
