"""The models that a plan names: the network that comes back, and what may be fitted at a site.

    network               the plan's network, sampled by cyclical SGHMC
    small-network         one hidden layer of 16, sampled likewise
    logistic-regression   linear, for classes
    linear-regression     Bayesian ridge, for numbers
    gradient-boosting     100 small trees, a bag of them, calibrated on out-of-bag rows
    lightgbm, xgboost     the same by these packages, where a site has them
    random-forest         200 trees, bootstrapped
    gaussian-process      with learnt length scale and noise
    package.module:Name   any estimator in the manner of scikit-learn, or a learner, of an installed
                          package; built without arguments
    auto                  a linear model, boosting or the small network: which, cross-validation
                          says (`choose_learner`)

The section of an extra may add a learner. A plan prescribes one of them, or leaves the choice to
the sites (`any`). All but the networks need scikit-learn. A class of a package is a site's own
choice, in its own command or configuration: no plan can name it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from predbayes.errors import PlanError, no_such
from predbayes.exchange.header import Spec
from predbayes.exchange.upload import spec_of
from predbayes.learning.local import Learner, Network, SGHMCLearner
from predbayes.learning.named import BY_TASK
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import PRESETS, SamplerSettings
from predbayes.predictive.families import Predictive
from predbayes_study.payload import payload_of
from predbayes_study.plan.networks import Build, Installed, require_agreed
from predbayes_study.plan.schema import FrozenNetwork, Plan, count_parameters
from predbayes_study.tasks import task_of
from predbayes_study.tasks.choice import Choice, choose

SMALL = (16,)
"""Hidden layers of the small network."""


def student_network(plan: Plan) -> Network:
    """Return the network for everybody; for a regression its variance depends on the input."""
    return payload_of(plan).network(plan) or _network(plan, per_input=True)


def site_network(plan: Plan) -> Network:
    """Return the network that a site trains; for a regression it learns one noise variance."""
    return _network(plan, per_input=False)


def site_arrays(plan: Plan) -> dict[str, Spec]:
    """Return the arrays of the network that sites train; nothing is imported for that."""
    if plan.frozen is not None and plan.frozen.network is not None:
        return {name: Spec(*form) for name, form in plan.frozen.network.arrays.items()}
    return _arrays(site_network(plan))


def freeze_network(plan: Plan) -> FrozenNetwork | None:
    """Import the network that a draft names, if any, and state what it is: all that is agreed on.

    Whoever freezes a plan has chosen its code; nobody else imports it before this is compared.
    """
    if not plan.model.module:
        return None
    found = Installed.find(plan.model.module)
    arrays = _arrays(_network(plan, per_input=False, build=found.load()))
    return FrozenNetwork(
        distribution=found.distribution,
        version=found.version,
        digest=found.digest,
        parameters=count_parameters(arrays),
        arrays=arrays,
    )


def sampler_settings(plan: Plan) -> SamplerSettings:
    """Return how the network is sampled at a site."""
    learner = plan.learner
    by_number = learner.preset == "tuned" and task_of(plan).is_scaled
    preset = PRESETS["tuned-regression" if by_number else learner.preset]
    return replace(
        preset,
        num_epochs=learner.num_epochs or preset.num_epochs,
        min_steps=learner.min_steps,
        max_samples=learner.max_samples,
    )


def upload_dtype(plan: Plan) -> torch.dtype:
    """Return the type in which predictions travel."""
    found: torch.dtype = getattr(torch, plan.upload.precision)
    return found


def standard_prior(plan: Plan) -> Predictive | None:
    """Return what a product divides out: the standard normal, for a number in standard units."""
    return task_of(plan).prior()


def choose_learner(
    plan: Plan,
    rows: tuple[torch.Tensor, torch.Tensor],
    *,
    allowed: Collection[str] = (),
    device: str = "cpu",
    groups: torch.Tensor | None = None,
    rng: torch.Generator,
) -> Choice:
    """Find what `auto` is for some rows; `allowed` are names that a site's policy has, or all."""
    names = [name for name in plan.tried if not allowed or name in allowed]
    learners = {name: make_learner(plan, name, device) for name in names}
    return choose(learners, rows, groups=groups, rng=rng)


def make_learner(plan: Plan, name: str, device: str = "cpu") -> Learner:
    """Build a learner by name, for the plan's task."""
    if name == "network":
        return SGHMCLearner(site_network(plan), sampler_settings(plan), device)
    if name == "small-network":
        small = Network.mlp(plan.num_inputs, task_of(plan).likelihood(plan), SMALL)
        return SGHMCLearner(small, sampler_settings(plan), device)
    for section in plan.sections.values():
        if (added := section.learner(plan, name)) is not None:
            return added
    known = BY_TASK[plan.target.task]
    if ":" in name:
        estimator = _load(name)()
        if not hasattr(estimator, "get_params"):
            learner: Learner = estimator
            return learner
    elif name in known:
        estimator = known[name]()
    else:
        raise PlanError(no_such(f"learner for a {plan.target.task}", name, plan.learner_names))
    return task_of(plan).learner(plan, name, estimator)


def _network(plan: Plan, *, per_input: bool, build: Build | None = None) -> Network:
    """The plan's network; one of the consortium's own is imported, unless `build` is given."""
    likelihood = task_of(plan).likelihood(plan, per_input=per_input)
    if build is None:
        build = _agreed(plan) if plan.model.module else partial(mlp, hidden=plan.model.hidden)
    return Network(partial(build, plan.num_inputs, likelihood.num_outputs), likelihood)


def _agreed(plan: Plan) -> Build:
    """Import the network that a frozen plan names; refuse one of another size than it states."""
    build = require_agreed(plan).load()
    if _arrays(_network(plan, per_input=False, build=build)) != site_arrays(plan):
        raise PlanError(f"network {plan.model.module!r} does not have the arrays of frozen.network")
    return build


def _arrays(network: Network) -> dict[str, Spec]:
    """Types and shapes of a network's arrays, however large: nothing of it is in memory."""
    with torch.device("meta"):
        module = network.likelihood.attach(network.build())
    kinds = {"parameter/": module.named_parameters(), "buffer/": module.named_buffers()}
    return {kind + name: spec_of(a) for kind, arrays in kinds.items() for name, a in arrays}


def _load(reference: str) -> Any:
    """Import what `package.module:name` names in an installed package."""
    module, _, name = reference.partition(":")
    package = module.partition(".")[0]
    if package not in importlib.metadata.packages_distributions():
        raise PlanError(f"{reference}: the package {package} is not installed here")
    try:
        named = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise PlanError(f"{reference}: {error}") from error
    if not callable(named):
        raise PlanError(f"{module} has nothing called {name!r} that can be called")
    return named
