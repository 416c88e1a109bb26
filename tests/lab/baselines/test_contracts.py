"""Baselines fulfil the contract of every method."""

from __future__ import annotations

import pytest

from predbayes.methods.distilled import Distilled
from predbayes.methods.pooled import Pooled
from predbayes_lab.baselines.ep_mcmc import EPMCMC
from predbayes_lab.baselines.fedavg import FedAvg
from predbayes_lab.baselines.fedbe import FedBE
from predbayes_lab.baselines.fedbens import FedBEns
from predbayes_lab.baselines.fedkt import FedKT
from predbayes_lab.baselines.fedpa import FedPA
from predbayes_lab.baselines.fedprox import FedProx
from predbayes_lab.baselines.fedyogi import FedYogi
from predbayes_lab.baselines.moments import head_for
from predbayes_lab.baselines.oneshot import OneShotFL
from predbayes_lab.baselines.server_only import ServerOnly
from predbayes_lab.baselines.sites_apart import BestSite
from predbayes_lab.baselines.with_head import auto_with_head
from predbayes_lab.released import beta
from tests.core.contracts.test_methods import (  # noqa: F401
    SHORT,
    STUDENTS,
    Case,
    TestMethodContract,
    again,
    as_params,
    cases_of,
    learner,
    point,
    sampler,
)

METHODS = {
    "best site": lambda family: Pooled(learner(family), BestSite()),
    "server only": lambda family: ServerOnly(learner(family)),
    "released beta": lambda family: Pooled(learner(family), beta("released")),
    "fedavg": lambda family: FedAvg(point(family)),
    "fedprox": lambda family: FedProx(point(family), proximal=0.1),
    "fedyogi": lambda family: FedYogi(point(family)),
    "fedpa": lambda family: FedPA(sampler(family)),
    "ep-mcmc": lambda family: EPMCMC(sampler(family)),
    "fedbe": lambda family: FedBE(point(family)),
    "fedbens": lambda family: FedBEns(point(family), num_starts=2),
    "oneshot": lambda family: OneShotFL(point(family)),
    "fedkt": lambda family: FedKT(point(family), num_parts=2),
    "moments": lambda family: head_for(point(family), num_features=10),
    "auto with a head": lambda family: auto_with_head(point(family), num_features=10),
    "distilled fedbe": lambda family: Distilled(FedBE(point(family)), STUDENTS[family], SHORT),
}
SEVERAL_ROUNDS = ("fedavg", "fedprox", "fedyogi", "fedpa")
NEW_INPUTS = {*SEVERAL_ROUNDS, "ep-mcmc", "fedbens", "fedkt", "moments", "distilled fedbe"}


@pytest.fixture(scope="module", **as_params(cases_of(METHODS)))
def case(request):
    name, family = request.param
    return Case.of(
        name, METHODS[name], family, new_inputs=NEW_INPUTS, several_rounds=SEVERAL_ROUNDS
    )
