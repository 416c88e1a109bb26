"""Runs: which there are, what determines each, and how one cell's methods are run together.

A *run* is one method in one cell with one seed. Its key hashes what the result depends on: the
settings it uses, the method's source, the package's version, the data, the seed and the label.
Methods of one cell and seed are run in one process on one split, and share the sites' fits.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor

import predbayes
from predbayes.data import registry
from predbayes.errors import DivergedError, PoolError
from predbayes.exchange.federation import InProcess
from predbayes.experiments import scores
from predbayes.experiments.config import Experiment, MethodSettings, Settings, resolved
from predbayes.experiments.methods import (
    MethodSpec,
    build_learner,
    build_method,
    build_network,
    find_method,
    learner_kind,
    learner_settings,
    source_digest,
)
from predbayes.experiments.records import Record
from predbayes.experiments.world import World, make_world
from predbayes.learning.shared import Shared
from predbayes.methods.distilled import Distilled
from predbayes.methods.method import run
from predbayes.predictive.families import Predictive
from predbayes.seeding import generator

STUDENT = " student"
"""Appended to a method's label for the record of its student."""


@dataclass(frozen=True, slots=True)
class Run:
    """One method in one cell with one seed, and the keys of the records it will make."""

    cell: dict[str, Any]
    label: str
    seed: int
    keys: dict[str, str]  # by label of the record: the method's, and its student's
    config: dict[str, Any]  # what the result depends on, but for seed and label


def plan(experiment: Experiment, seeds: Sequence[int]) -> list[Run]:
    """Every run of an experiment, cell by cell and seed by seed."""
    runs = []
    for cell in experiment.cells():
        described = {
            label: describe(experiment.method(cell, label), experiment.settings(cell, label))
            for label in experiment.methods
        }
        for seed in seeds:
            for label, config in described.items():
                outputs = [label] + [label + STUDENT] * experiment.methods[label].student
                keys = {output: _key(config, output, seed) for output in outputs}
                runs.append(Run(cell, label, seed, keys, config))
    return runs


def describe(entry: MethodSettings, settings: Settings) -> dict[str, Any]:
    """What a run's result depends on, but for seed and label; it is written into the record."""
    spec = find_method(entry.method)
    kind = learner_kind(spec, entry)
    everything = resolved(settings)
    parts = ["data", "partition", "reference", "network", "evaluate"]
    parts += {"sampler": ["sampler"], "ensemble": ["optimizer", "ensemble"]}.get(
        kind, ["optimizer"]
    )
    parts += ["distillation"] * entry.student
    config = {name: everything[name] for name in parts}
    method = {
        "target": spec.target,
        "learner": kind,
        "options": dict(spec.options) | entry.options,
        "num-rounds": entry.num_rounds,
        "source": source_digest(spec.target),
    }
    return config | {
        "method": method,
        "data-sha256": _data_digest(settings.data.name, settings.data.variant),
    }


def run_methods(
    experiment: Experiment, runs: Sequence[Run], *, device: str = "cpu"
) -> Iterator[tuple[Record, Tensor | None]]:
    """Run methods of one cell and seed; yield each record with the losses of the scored rows."""
    worlds: dict[Any, World] = {}
    learners: dict[Any, Shared] = {}
    for one in runs:
        settings = experiment.settings(one.cell, one.label)
        entry = experiment.method(one.cell, one.label)
        spec = find_method(entry.method)
        place = (settings.data, settings.partition, settings.reference, settings.evaluate)
        if place not in worlds:
            worlds[place] = make_world(settings, one.seed)
        world = worlds[place]
        kind = learner_kind(spec, entry)
        name = (place, kind, settings.network, learner_settings(kind, settings))
        if name not in learners:
            learner = build_learner(kind, settings, world.dataset, device)
            learners[name] = Shared(learner, world.sites.values())
        yield from _run_one(experiment, one, spec, settings, world, learners[name], device)


def _run_one(
    experiment: Experiment,
    one: Run,
    spec: MethodSpec,
    settings: Settings,
    world: World,
    learner: Shared,
    device: str,
) -> Iterator[tuple[Record, Tensor | None]]:
    entry = experiment.method(one.cell, one.label)
    method = build_method(spec, entry, settings, learner)
    if entry.student:
        student = build_network(settings.network, world.dataset, student=True)
        method = Distilled(method, student, settings.distillation, device)
    began = time.perf_counter()
    error = ""
    try:
        state = run(
            method,
            InProcess(world.sites, one.seed),
            world.reference,
            seed=one.seed,
            num_rounds=entry.num_rounds,
        )
        results = _scored(one, state, world, settings, student=entry.student)
    except (DivergedError, PoolError) as failure:
        # Part of the result, not an accident: a method may diverge with some settings.
        error = str(failure)
        results = {label: _Result({"nll": math.nan}) for label in one.keys}
    for label, result in results.items():
        record = Record(
            key=one.keys[label],
            experiment=experiment.name,
            cell=one.cell,
            method=label,
            seed=one.seed,
            scores=result.scores,
            details=result.details,
            reliability=result.reliability,
            config=one.config,
            data=world.dataset.fingerprint.as_dict(),
            version=predbayes.__version__,
            seconds=time.perf_counter() - began,
            error=error,
        )
        yield record, result.losses


@dataclass(frozen=True, slots=True)
class _Result:
    """What is known of one predictive."""

    scores: dict[str, float]
    details: dict[str, float] = field(default_factory=dict)
    reliability: dict[str, list[float]] | None = None
    losses: Tensor | None = None


def _scored(
    one: Run, state: Any, world: World, settings: Settings, *, student: bool
) -> dict[str, _Result]:
    results = {}
    for label, predictive in _outputs(one.label, state, world, student=student).items():
        figures = scores.score(
            predictive,
            world.targets,
            released=settings.data.variant == "released",
            rng=generator(one.seed, "score"),
        )
        if not math.isfinite(figures["nll"]):
            raise DivergedError(f"the NLL of {label} is not finite")
        results[label] = _Result(
            figures,
            _details(state),
            scores.reliability(predictive, world.targets),
            scores.losses(predictive, world.targets),
        )
    return results


def _outputs(label: str, state: Any, world: World, *, student: bool) -> dict[str, Predictive]:
    """The predictives to score, on the evaluation rows."""
    rows = world.reference.evaluate
    if not student:
        return {label: state.predictive[rows]}
    return {
        label: state.teacher.predictive[rows],
        label + STUDENT: state.student.predict(world.reference.inputs[rows]),
    }


def _details(state: Any) -> dict[str, float]:
    """Numbers that explain a result: what was tuned, and how far the student is."""
    details: dict[str, float] = {}
    gap = getattr(state, "gap", math.nan)
    inner = getattr(state, "teacher", state)
    beta = getattr(inner, "beta", math.nan)
    tuned = getattr(inner, "tuned", None)
    if math.isfinite(beta):
        details["beta"] = beta
    if tuned is not None and "inverse_temperature" in tuned.profiles:
        details["temperature"] = 1 / tuned.profiles["inverse_temperature"].value
    if math.isfinite(gap):
        details["gap"] = gap
    return details


def _key(config: dict[str, Any], label: str, seed: int) -> str:
    content = {"config": config, "label": label, "seed": seed, "version": predbayes.__version__}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _data_digest(name: str, variant: str) -> str:
    return registry.load(name, rng=generator(0), variant=variant).fingerprint.sha256
