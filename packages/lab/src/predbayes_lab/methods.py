"""The methods of a table by name, and how one is built from settings.

A method is a callable that takes a `learner` and options; a pool takes options only, and is made a
method by `Pooled`, with predictions sent. Those of the paper have short names here; one of your own
is named by where it is, "package.module:Name", and needs no other registration.

Every method and learner here has a *results version*. It is part of the key of a record, in place
of the code: code that is moved, renamed or made faster leaves the records as they are, and a change
of numbers raises the version. `tests/lab/test_repeats.py` repeats records to find out.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from predbayes.errors import ExperimentError, no_such
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.likelihood import FixedNoise, LearnedNoise, Likelihood, Softmax
from predbayes.learning.local import DeepEnsemble, Network, SGDLearner, SGHMCLearner
from predbayes.learning.named import CALIBRATED, CLASSIFIERS, REGRESSORS
from predbayes.learning.nets import cnn, mlp
from predbayes.methods.pooled import Pooled
from predbayes_lab.config import MethodSettings, NetworkSettings, Settings
from predbayes_lab.data.dataset import Dataset
from predbayes_lab.decode import require_known


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """The place of a method or a pool, and its arguments unless a config says otherwise."""

    target: str  # import string of a callable (learner, **options) -> Method, or -> Pool
    learner: str = "sampler"
    options: Mapping[str, Any] = field(default_factory=dict)
    from_sampler: Mapping[str, str] = field(default_factory=dict)  # option: sampler's setting
    version: int = 1  # of its results: raised when the same settings give other numbers


METHODS: dict[str, MethodSpec] = {
    "mixture": MethodSpec("predbayes.pools.terms:mixture"),
    "product": MethodSpec("predbayes.pools.terms:product"),
    "rbcm": MethodSpec("predbayes.pools.terms:rbcm"),
    "gpoe": MethodSpec("predbayes.pools.terms:gpoe"),
    "beta": MethodSpec("predbayes_lab.released:beta"),
    "gated": MethodSpec("predbayes.pools.terms:gated"),
    "gated-log": MethodSpec("predbayes.pools.terms:gated", options={"pool": "log"}),
    "auto": MethodSpec("predbayes.pools.auto:AutoPool", options={"gates": False}, version=3),
    "auto-gated": MethodSpec("predbayes.pools.auto:AutoPool", version=4),
    "tempered-mixture": MethodSpec(
        "predbayes.pools.terms:tempered", options={"component": "mixture"}
    ),
    "tempered-product": MethodSpec(
        "predbayes.pools.terms:tempered", options={"component": "product"}
    ),
    "best-site": MethodSpec("predbayes_lab.baselines.sites_apart:BestSite"),
    "log-pool": MethodSpec("predbayes.pools.terms:log_pool"),
    "simplex-stacking": MethodSpec("predbayes_lab.baselines.sites_apart:SimplexStacking"),
    "ridge-stacker": MethodSpec("predbayes_lab.baselines.sites_apart:RidgeStacker"),
    "server-only": MethodSpec("predbayes_lab.baselines.server_only:ServerOnly"),
    "own-bag": MethodSpec("predbayes_lab.baselines.server_only:ServerOnly", options={"bag": True}),
    "ep-mcmc": MethodSpec(
        "predbayes_lab.baselines.ep_mcmc:EPMCMC", from_sampler={"prior_std": "prior_std"}
    ),
    "fedpa": MethodSpec("predbayes_lab.baselines.fedpa:FedPA"),
    "fedavg": MethodSpec("predbayes_lab.baselines.fedavg:FedAvg", "optimizer"),
    "fedprox": MethodSpec("predbayes_lab.baselines.fedprox:FedProx", "optimizer"),
    "fedyogi": MethodSpec("predbayes_lab.baselines.fedyogi:FedYogi", "optimizer"),
    "fedbe": MethodSpec("predbayes_lab.baselines.fedbe:FedBE", "optimizer"),
    "fedbens": MethodSpec("predbayes_lab.baselines.fedbens:FedBEns", "optimizer"),
    "oneshot": MethodSpec("predbayes_lab.baselines.oneshot:OneShotFL", "optimizer"),
    "moments": MethodSpec("predbayes_lab.baselines.moments:head_for"),
    "auto-moments": MethodSpec("predbayes_lab.baselines.with_head:auto_with_head"),
    "fedkt": MethodSpec("predbayes_lab.baselines.fedkt:FedKT", "optimizer"),
}


_ESTIMATORS = {*CLASSIFIERS, *REGRESSORS}

LEARNERS = {"sampler": 1, "optimizer": 1, "ensemble": 1, **dict.fromkeys(sorted(_ESTIMATORS), 1)}
"""Results versions of the learners and of what they learn gates with: raised when the same settings
give other fits."""


def find_method(name: str) -> MethodSpec:
    """Find a method by name or import string."""
    if ":" in name:
        return MethodSpec(name)
    require_known("method", [name], METHODS)
    return METHODS[name]


def import_object(target: str) -> Any:
    """Import the object that "package.module:name" names."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ExperimentError(f"cannot import {module_name!r}: {error}") from error
    if not hasattr(module, name):
        raise ExperimentError(f"{module_name}: {no_such('name', name, vars(module))}")
    return getattr(module, name)


def results_version(target: str) -> str:
    """Return the entry of a record's key for the code at an import string of one's own.

    Its attribute ``results_version`` where it has one; otherwise a digest of its source file, so
    that a method that is still being written is run anew after every change.
    """
    found = import_object(target)
    version = getattr(found, "results_version", None)
    return str(version) if version is not None else _source_digest(found, target)


def _source_digest(found: Any, target: str) -> str:
    try:
        path = inspect.getsourcefile(inspect.unwrap(found))
    except TypeError:
        path = None
    if path is None:
        raise ExperimentError(f"{target} is neither a class nor a function with a source file")
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def build_method(spec: MethodSpec, entry: MethodSettings, settings: Settings, learner: Any) -> Any:
    """Build the method with its options, which for a pool are those of `Pooled`, too."""
    target, options = import_object(spec.target), method_options(spec, entry, settings)
    if not is_pool(target):
        return target(learner, **options)
    sending = {name: options.pop(name) for name in _OF_POOLED if name in options}
    return Pooled(learner, target(**options), **sending)


_OF_POOLED = ("send", "own", "gate")


def is_pool(target: Any) -> bool:
    """Return whether a callable makes a pool: it takes no learner."""
    return "learner" not in inspect.signature(target).parameters


def method_options(spec: MethodSpec, entry: MethodSettings, settings: Settings) -> dict[str, Any]:
    """Return a method's arguments besides the learner; refuse unknown ones."""
    options, target = dict(spec.options), import_object(spec.target)
    known = list(inspect.signature(target).parameters)
    if is_pool(target):
        options |= {"send": "predictions"}
        known += [name for name in _OF_POOLED if name not in known]
    if learner_kind(spec, entry) == "sampler":
        options |= {o: getattr(settings.sampler, name) for o, name in spec.from_sampler.items()}
    options |= {name.replace("-", "_"): value for name, value in entry.options.items()}
    for name in options:
        if name not in known or name == "learner":
            raise ExperimentError(f"{spec.target}: {no_such('option', name, known)}")
    return options


def learner_kind(spec: MethodSpec, entry: MethodSettings) -> str:
    """Return the kind of learner that a method gets."""
    kind = entry.learner or spec.learner
    if ":" not in kind:
        require_known("learner", [kind], LEARNERS)
    return kind


def build_learner(kind: str, settings: Settings, dataset: Dataset, device: str) -> Any:
    """Build a learner for a dataset by kind."""
    if ":" in kind or kind in _ESTIMATORS:
        return _of_estimator(kind, dataset.num_classes)
    network = build_network(settings.network, dataset)
    point = SGDLearner(network, settings.optimizer, device)
    if kind == "sampler":
        return SGHMCLearner(network, settings.sampler, device)
    return DeepEnsemble(point, settings.ensemble.size) if kind == "ensemble" else point


def _of_estimator(kind: str, num_classes: int | None) -> Any:
    """An estimator by import string; or by name, as a plan has it."""
    if ":" not in kind:
        known = REGRESSORS if num_classes is None else CLASSIFIERS
        require_known("learner of these targets", [kind], known)
        estimator = known[kind]()
    else:
        estimator = import_object(kind)()
    if num_classes is None:
        return SklearnRegressor(estimator, discreet=":" not in kind)
    return SklearnClassifier(estimator, num_classes, calibrated=kind in CALIBRATED)


def learner_version(kind: str, settings: Settings) -> str:
    """Return the results version of a learner with its network."""
    if ":" in kind:
        return results_version(kind)
    version = str(LEARNERS[kind])
    own = ":" in settings.network.kind
    # Networks of one's own may have normalisation layers, which version 2 treats otherwise.
    return f"{version} 2 {results_version(settings.network.kind)}" if own else version


def learner_settings(kind: str, settings: Settings) -> Any:
    """Return the part of the settings that a learner depends on."""
    if kind == "sampler":
        return settings.sampler
    return (settings.optimizer, settings.ensemble) if kind == "ensemble" else settings.optimizer


def build_network(settings: NetworkSettings, dataset: Dataset, *, student: bool = False) -> Network:
    """Build the sites' network, or the student's, which in a regression has a variance head."""
    likelihood: Likelihood
    if dataset.num_classes is not None:
        likelihood = Softmax(dataset.num_classes, settings.balanced and not student)
    elif student:
        likelihood = LearnedNoise(per_input=True)
    else:
        likelihood = LearnedNoise() if settings.noise == "learned" else FixedNoise.released()
    shape = tuple(dataset.train_inputs.shape[1:])
    return Network(partial(_build, settings, shape, likelihood.num_outputs), likelihood)


def _build(settings: NetworkSettings, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    if settings.kind == "mlp":
        return mlp(math.prod(shape), num_outputs, settings.hidden)
    if settings.kind == "cnn":
        if len(shape) != 3:
            raise ExperimentError("network.kind = 'cnn' is for images; use 'mlp'")
        return cnn((shape[0], shape[1], shape[2]), num_outputs)
    if ":" not in settings.kind:
        raise ExperimentError(no_such("network", settings.kind, ("mlp", "cnn")))
    module: nn.Module = import_object(settings.kind)(shape, num_outputs)
    return module
