"""The models that a plan names: the network that comes back, and what may be fitted at a site.

    network               the plan's network, sampled by cyclical SGHMC
    logistic-regression   linear, for classes
    linear-regression     Bayesian ridge, for numbers
    random-forest         200 trees, bootstrapped
    gaussian-process      with learnt length scale and noise
    package.module:Name   any estimator in the manner of scikit-learn, or a learner, of an installed
                          package; built without arguments

Sites that send predictions may fit any of them; all but the network need scikit-learn.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from predbayes.errors import PlanError, no_such
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.likelihood import LearnedNoise, Likelihood, Softmax
from predbayes.learning.local import LocalLearner, Network, SGHMCLearner
from predbayes.learning.named import CLASSIFIERS, REGRESSORS
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import PRESETS, SamplerSettings
from predbayes.predictive.families import Gaussian, Predictive
from predbayes.study.plan.modules import load_module, load_object
from predbayes.study.plan.schema import Plan


def student_network(plan: Plan) -> Network:
    """Return the network for everybody; for a regression its variance depends on the input."""
    return _network(plan, per_input=True)


def site_network(plan: Plan) -> Network:
    """Return the network that a site trains; for a regression it learns one noise variance."""
    return _network(plan, per_input=False)


def sampler_settings(plan: Plan) -> SamplerSettings:
    """Return how the network is sampled at a site."""
    learner = plan.learner
    by_number = learner.preset == "tuned" and not plan.classification
    preset = PRESETS["tuned-regression" if by_number else learner.preset]
    return replace(
        preset,
        num_epochs=learner.num_epochs or preset.num_epochs,
        min_steps=learner.min_steps,
        max_samples=learner.max_samples,
    )


def upload_dtype(plan: Plan) -> torch.dtype:
    """Return the type in which predictions travel."""
    return torch.float16 if plan.upload.precision == "float16" else torch.float32


def standard_prior(plan: Plan) -> Predictive | None:
    """Return what a product divides out: the standard normal, for a number in standard units."""
    return None if plan.classification else Gaussian(torch.zeros(1), torch.ones(1))


def make_learner(plan: Plan, name: str, device: str = "cpu") -> LocalLearner:
    """Build a learner by name, for the plan's task."""
    if name == "network":
        return SGHMCLearner(site_network(plan), sampler_settings(plan), device)
    known = CLASSIFIERS if plan.classification else REGRESSORS
    if ":" in name:
        estimator = load_object(name)()
        if not hasattr(estimator, "get_params"):
            learner: LocalLearner = estimator
            return learner
    elif name in known:
        estimator = known[name]()
    else:
        raise PlanError(no_such(f"learner for a {plan.target.task}", name, learner_names(plan)))
    if plan.classification:
        return SklearnClassifier(estimator, plan.num_outputs)
    return SklearnRegressor(estimator)


def learner_names(plan: Plan) -> list[str]:
    """Return the names that `make_learner` knows for a plan's task."""
    return ["network", *(CLASSIFIERS if plan.classification else REGRESSORS)]


def _network(plan: Plan, *, per_input: bool) -> Network:
    likelihood: Likelihood
    if plan.classification:
        likelihood = Softmax(plan.num_outputs)
    else:
        likelihood = LearnedNoise(per_input=per_input)
    sizes = plan.num_inputs, likelihood.num_outputs
    if plan.model.module:
        return Network(partial(load_module(plan), *sizes), likelihood)
    return Network(partial(mlp, *sizes, plan.model.hidden), likelihood)
