"""Attack the upload that would leave, at the site, before it leaves.

What the site would train is fitted to sixteen shadow halves of the rows that it would train on.
Each half's predictions are made as the upload's are: on the reference rows, in the plan's
precision, with the gate if the plan asks for one. Two attackers then guess who was in which half
(`predbayes_study.extras.audit.shadows`), one of them with the model
itself. Rows of one patient, and copies of a row, are one person.

A half has half of the rows, so the figures are those of a site half as large: an upload of all rows
tells less of each of them. Who attacks a site has no halves of its table, but needs tables like it.

An audit is a function of plan, rows and learner: the same ones give the same figures, so
nobody can repeat it until they please. Nothing of it leaves.

Learners that take long are *shortened*, by as much as the number of rows asks for:

    ensembles          fewer members; forests fewer trees as well
    networks           fewer cycles of the same length each, so what one cycle learns by heart stays
    gaussian-process   one member, whose kernel is learnt once, on a part of the rows, from two
                       starts: from one alone it may be a constant, which tells of nobody. Its
                       fits take the third power of the rows, so of many people some are attacked,
                       with halves of these: a site of fewer rows, of which more is told
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predbayes.errors import DataError, PlanError
from predbayes.exchange.upload import Upload
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor, is_process
from predbayes.learning.gate import GateBounds
from predbayes.learning.local import Learner, SGHMCLearner
from predbayes.learning.named import AUTO
from predbayes.predictive.families import Predictive
from predbayes.seeding import generator
from predbayes.threads import threads
from predbayes_study.extras.audit.leakage import AttackResult
from predbayes_study.extras.audit.membership import Leak, attack
from predbayes_study.extras.audit.shadows import GateOf, Shadows, fit_shadows
from predbayes_study.kit.kit import Kit
from predbayes_study.payload import payload_of
from predbayes_study.payloads.predictions import gate_learner_of
from predbayes_study.plan.models import make_learner, upload_dtype
from predbayes_study.plan.networks import IN_SITE_FILE, require_allowed
from predbayes_study.plan.schema import Plan
from predbayes_study.site.fitting import choose_at_site, require_learner
from predbayes_study.site.holdout import connected
from predbayes_study.site.policy import SitePolicy
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import audit_identity
from predbayes_study.tasks.hazards import HazardLearner

NUM_PAIRS = 8
LEAST_PEOPLE = 20
NUM_EXPOSED = 5
"""Rows that are named, of the most exposed people."""

_SECONDS = 5.0  # that a half may take, for two minutes in all
_GATE_SHARE = 0.4  # of them that are the model's, where there is a gate as well
_STEP_SECONDS = 1.2e-3  # of a network, roughly
_KERNEL_ROWS = 1000  # of a Gaussian process
_PROCESS_SECONDS = 1.1e-9  # of a half, times the third power of its rows


def audit(
    kit: Kit,
    site: str,
    rows: SiteRows,
    learner: str,
    *,
    policy: SitePolicy,
    device: str = "cpu",
    allow_networks: Collection[str] = (),
) -> AttackResult:
    """Attack what a site would send.

    Args:
        kit: The kit of the study.
        site: Its name.
        rows: All of its rows; those held out have no part in it.
        learner: What it would train, by name.
        policy: The site's, which says what `auto` may fit.
        device: Where a network is trained.
        allow_networks: Of the consortium's own, by their names.
    """
    plan = kit.plan
    require_learner(plan, learner)
    if not payload_of(plan).predicts:
        raise PlanError(
            "the plan asks for sums of moments, which no model is fitted for: there is nothing to "
            "audit; the egress page says what sums tell"
        )
    kept = rows.split_for(kit, site)[0]
    people = connected([rows.alike[kept]])
    if int(people.max()) + 1 < LEAST_PEOPLE:
        raise DataError(f"fewer than {LEAST_PEOPLE} people are trained on: too few for an audit")
    name = learner
    if learner == AUTO:
        name = choose_at_site(kit, site, rows, policy.learners(plan), device).name
    if name == "network":
        require_allowed(plan, allow_networks, IN_SITE_FILE)
    rng = generator(plan.seed, "audit", site, rows.digest())
    with threads(plan.learner.threads):
        seconds = _SECONDS if plan.gate is None else _GATE_SHARE * _SECONDS
        whole = make_learner(plan, name, device)
        some, fewer = fewer_people(whole, people, seconds, rng=rng)
        kept, people = kept[some], connected([people[some]])
        inputs, targets = rows[kept]
        fitted, shortened = in_short(whole, (inputs, targets), seconds, rng=rng)
        gate = _gate(plan, fitted, device, allow_networks)
        shadows = fit_shadows(
            fitted,
            (inputs, targets),
            people,
            kit.inputs,
            num_pairs=NUM_PAIRS,
            gate=gate,
            bound=partial(_sent, upload_dtype(plan)),
            rng=rng,
        )
    target, reference, exposure = _attacked(shadows, rng)
    return AttackResult(
        identity=audit_identity(kit, site, learner, rows),
        learner=name,
        shortened=", ".join(filter(None, (shortened, fewer))),
        people=len(exposure),
        runs=2 * NUM_PAIRS,
        target=target,
        reference=reference,
        lines=_lines(rows, kept, people, exposure),
    )


def _gate(
    plan: Plan, learner: Learner, device: str, allow_networks: Collection[str]
) -> GateOf | None:
    if plan.gate is None:
        return None
    gate_learner = gate_learner_of(plan, learner, device, allow_networks)
    return GateOf(gate_learner, GateBounds(plan.gate.floor, plan.gate.ceiling))


def _attacked(shadows: Shadows, rng: torch.Generator) -> tuple[Leak, Leak, np.ndarray[Any, Any]]:
    """Both attackers' figures, and how exposed each person is by what leaves."""
    at_target, _ = attack(shadows.at_target, shadows.members, rng)
    by_rows, by_reference = attack(shadows.by_reference, shadows.members, rng)
    return _rounded(at_target), _rounded(by_rows), by_reference


def _rounded(leak: Leak) -> Leak:
    figures: dict[str, Any] = asdict(leak)
    for name in ("auc", "low", "high", "null", "epsilon"):
        figures[name] = round(figures[name], 4)
    return Leak(**figures)


def _lines(
    rows: SiteRows, kept: Tensor, people: Tensor, exposure: np.ndarray[Any, Any]
) -> tuple[int, ...]:
    """The lines of the most exposed people's first rows."""
    worst = np.argsort(-exposure, kind="stable")[:NUM_EXPOSED]
    first = [int((people == int(person)).nonzero()[0]) for person in worst]
    return tuple(int(rows.line_of(int(kept[row]))) for row in first)


def _sent(dtype: torch.dtype, said: Predictive, targets: Tensor) -> Predictive:
    """Return predictions as they leave, in the plan's precision."""
    return Upload.of_predictions(said, num_rows=len(targets), dtype=dtype).predictive()


def in_short(
    learner: Learner, rows: tuple[Tensor, Tensor], seconds: float, *, rng: torch.Generator
) -> tuple[Any, str]:
    """Return a learner that takes some seconds on half of some rows, and in words what it lacks."""
    if isinstance(learner, HazardLearner):
        within, told = in_short(learner.learner, rows, seconds, rng=rng)
        return replace(learner, learner=within), told
    if isinstance(learner, SGHMCLearner):
        return _fewer_cycles(learner, len(rows[1]), seconds)
    if not isinstance(learner, SklearnClassifier | SklearnRegressor):
        return learner, ""
    if _is_process(learner):
        return _one_kernel(learner, rows, rng)
    return _fewer_members(learner, len(rows[1]) // 2, seconds)


def _fewer_cycles(learner: SGHMCLearner, num_rows: int, seconds: float) -> tuple[SGHMCLearner, str]:
    settings = learner.settings
    num_batches = max(1, math.ceil(num_rows / 2 / settings.batch_size))
    of_cycle = _STEP_SECONDS * settings.epochs_for(num_batches) * num_batches / settings.num_cycles
    most = max(1, int(seconds / of_cycle))
    if most >= settings.num_cycles:
        return learner, ""
    # The least number of steps stays in proportion: contrast rows of a gate depend on it.
    fewer = replace(
        settings,
        num_epochs=math.ceil(settings.num_epochs * most / settings.num_cycles),
        min_steps=math.ceil(settings.min_steps * most / settings.num_cycles),
        num_cycles=most,
    )
    return replace(learner, settings=fewer), f"{most} of {settings.num_cycles} cycles"


def fewer_people(
    learner: Any, people: Tensor, seconds: float, *, rng: torch.Generator
) -> tuple[Tensor, str]:
    """Return the rows (N,) of people who are attacked, and in words how few they are.

    All of them, but for a Gaussian process whose halves would take longer than some seconds.
    """
    everybody = torch.arange(len(people))
    if not _is_process(learner):
        return everybody, ""
    most = 2 * int((seconds / (_PROCESS_SECONDS * _num_processes(learner))) ** (1 / 3))
    num = int(people.max()) + 1
    among = int(num * most / len(people))
    if among >= num:
        return everybody, ""
    chosen = torch.zeros(num, dtype=torch.bool)
    chosen[torch.randperm(num, generator=rng)[:among]] = True
    return everybody[chosen[people]], f"{among:,} of {num:,} people"


def _is_process(learner: Any) -> bool:
    """Whether it fits a Gaussian process, and no pipeline, whose kernel is out of reach here."""
    estimator = getattr(learner, "estimator", None)
    return hasattr(estimator, "kernel") and is_process(estimator)


def _num_processes(learner: Any) -> int:
    """Of several classes each has a process of its own."""
    classes = int(getattr(learner, "num_classes", 2))
    return classes if classes > 2 else 1


def _one_kernel(learner: Any, rows: tuple[Tensor, Tensor], rng: torch.Generator) -> tuple[Any, str]:
    """A Gaussian process of one member, whose kernel is learnt once."""
    inputs, targets = rows
    most = int(_KERNEL_ROWS / _num_processes(learner) ** (1 / 3))
    some = torch.randperm(len(targets), generator=rng)[:most]
    one = replace(learner, size=1)
    starts = learner.estimator, _with_length(learner.estimator, inputs[some])
    members = [
        replace(one, estimator=start).fit((inputs[some], targets[some]), rng=rng).members[0]
        for start in starts
    ]
    likeliest = max(
        members, key=lambda one: getattr(one, "log_marginal_likelihood_value_", -math.inf)
    )
    kernel = getattr(likeliest, "kernel_", learner.estimator.kernel)  # none of one class
    kernel = getattr(kernel, "kernels", (kernel,))[0]  # of several classes there are several
    settings = learner.estimator.get_params(deep=False) | {"kernel": kernel, "optimizer": None}
    estimator = type(learner.estimator)(**settings)
    told = f"1 of {learner.size} members, and a kernel that was learnt once, on {len(some)} rows"
    return replace(one, estimator=estimator), told


def _with_length(estimator: Any, inputs: Tensor) -> Any:
    """The estimator whose kernel starts at the median distance of some rows."""
    flat = inputs.flatten(1)[:_KERNEL_ROWS].double()
    length = max(float(torch.pdist(flat).median()) if len(flat) > 1 else 1.0, 1e-3)
    settings = estimator.get_params(deep=False)
    kernel = settings["kernel"]
    named = [name for name in kernel.get_params() if name.endswith("length_scale")]
    start = kernel.clone_with_theta(kernel.theta).set_params(**dict.fromkeys(named, length))
    return type(estimator)(**settings | {"kernel": start})


def _fewer_members(learner: Any, num_rows: int, seconds: float) -> tuple[Any, str]:
    size = min(learner.size, max(2, int(seconds / _member_seconds(learner, num_rows))))
    told = f"{size} of {learner.size} members" if size < learner.size else ""
    return replace(learner, size=size), told


def _member_seconds(learner: Any, num_rows: int) -> float:
    """What a member takes, roughly: a rule that gives the same audit on every computer."""
    trees = getattr(learner.estimator, "n_estimators", 0)
    if trees and hasattr(learner.estimator, "max_samples"):  # a forest, not boosting
        return float(trees * (1.4e-3 + 3.5e-6 * num_rows))
    return (0.1 + 4e-5 * num_rows) * max(getattr(learner, "num_classes", 2) - 1, 1)
