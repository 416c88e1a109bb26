"""Runs: which there are, what determines each, and how one cell's methods are run together.

A *run* is one method in one cell with one seed. Its key hashes what the result depends on: the
settings it uses, the data, the seed and the label, and the results versions of method, learner and
student (`predbayes_lab.methods`), which stand for the code. Methods of one cell and seed
share a split and the sites' fits.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from torch import Tensor

import predbayes
from predbayes.api.run import run
from predbayes.errors import DivergedError, ExperimentError, ImproperPoolError, TrainingError
from predbayes.learning.training import resolve_device
from predbayes.methods.distilled import Distilled
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.seeding import generator
from predbayes.threads import threads
from predbayes_lab import scores
from predbayes_lab.config import (
    DataSettings,
    Experiment,
    MethodSettings,
    Settings,
    resolved,
)
from predbayes_lab.datasets import load_dataset
from predbayes_lab.methods import (
    MethodSpec,
    build_learner,
    build_method,
    build_network,
    find_method,
    learner_kind,
    learner_settings,
    learner_version,
    method_options,
    results_version,
)
from predbayes_lab.records import Record, without_additions
from predbayes_lab.shared import Shared, Watched
from predbayes_lab.world import World, make_world

STUDENT = " student"
"""Appended to a method's label for the record of its student."""

STUDENT_VERSION = 1
"""Results version of students: raised when the same teacher and settings give other numbers."""


@dataclass(frozen=True, slots=True)
class Run:
    """One method in one cell with one seed, and the keys of the records it will make."""

    cell: dict[str, Any]
    label: str
    seed: int
    keys: dict[str, str]  # by label of the record: the method's, and its student's
    config: dict[str, Any]  # what the result depends on, but for seed and label


def plan(experiment: Experiment, seeds: Sequence[int], *, device: str = "cpu") -> list[Run]:
    """List every run of an experiment, seed by seed: a sweep that is stopped has whole seeds."""
    described = []
    for cell, label in itertools.product(experiment.cells(), experiment.methods):
        entry, settings = experiment.method(cell, label), experiment.settings(cell, label)
        outputs = _labels(label, student=entry.student)
        described.append((cell, label, outputs, describe(entry, settings, device)))
    return [
        Run(cell, label, seed, {output: _key(config, output, seed) for output in outputs}, config)
        for seed in seeds
        for cell, label, outputs, config in described
    ]


def _labels(label: str, *, student: bool) -> list[str]:
    return [label, label + STUDENT] if student else [label]


def describe(entry: MethodSettings, settings: Settings, device: str) -> dict[str, Any]:
    """Return what a run's result depends on, except seed and label, for its record."""
    spec = find_method(entry.method)
    kind = learner_kind(spec, entry)
    everything = resolved(settings)
    parts = ["data", "partition", "reference", "network", "evaluate"]
    parts += {"sampler": ["sampler"], "ensemble": ["optimizer", "ensemble"]}.get(
        kind, ["optimizer"]
    )
    parts += ["distillation", "student"] * entry.student
    config = {name: everything[name] for name in parts}
    method = {
        "name": entry.method,
        "learner": kind,
        "options": method_options(spec, entry, settings),
        "num-rounds": entry.num_rounds,
    }
    versions = {
        "method": results_version(spec.target) if ":" in entry.method else str(spec.version),
        "learner": learner_version(kind, settings),
    }
    if entry.student:
        versions["student"] = str(STUDENT_VERSION)
    return config | {
        "method": method,
        "results": versions,
        "device": device,
        "data-sha256": _data_digest(settings.data),
    }


def run_methods(
    experiment: Experiment,
    runs: Sequence[Run],
    *,
    device: str = "cpu",
) -> Iterator[tuple[Record, Tensor | None]]:
    """Run methods one after another; yield each record with the losses of the scored rows.

    On one thread, whatever the machine: more of them would add in another order.
    """
    try:
        resolve_device(device)
    except TrainingError as error:
        raise ExperimentError(str(error)) from error
    with threads(1):
        yield from _run_methods(experiment, runs, device)


def _run_methods(
    experiment: Experiment, runs: Sequence[Run], device: str
) -> Iterator[tuple[Record, Tensor | None]]:
    worlds: dict[Any, World] = {}
    learners: dict[Any, Shared] = {}
    for one in runs:
        settings = experiment.settings(one.cell, one.label)
        entry = experiment.method(one.cell, one.label)
        spec = find_method(entry.method)
        split = (settings.data, settings.partition, settings.reference, settings.evaluate)
        place = (one.seed, *split)
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
    watched: Any = learner  # a sampler's samples are counted
    if learner_kind(spec, entry) == "sampler":
        watched = Watched(learner, settings.sampler.samples_per_cycle)
    method = build_method(spec, entry, settings, watched)
    began = time.perf_counter()
    _require_family(method, world, one.label)
    try:
        results = _attempt(one, method, entry, settings, world, device)
    except TrainingError as error:
        where = " ".join(map(str, (*one.cell.values(), one.label)))
        raise ExperimentError(f"{where}: {error}") from error
    counts = watched.effective if isinstance(watched, Watched) else []
    known = [count for count in counts if math.isfinite(count)]
    effective = {"effective_samples": sum(known) / len(known)} if known else {}
    for label, result in results.items():
        record = Record(
            key=one.keys[label],
            experiment=experiment.name,
            cell=one.cell,
            method=label,
            seed=one.seed,
            scores=result.scores,
            details=result.details | effective,
            reliability=result.reliability,
            config=one.config,
            data=world.dataset.fingerprint.as_dict(),
            version=predbayes.__version__,
            seconds=time.perf_counter() - began,
            error=result.error,
        )
        yield record, result.losses


def _require_family(method: Any, world: World, label: str) -> None:
    family = Gaussian if world.dataset.num_classes is None else Categorical
    families = getattr(method, "families", {family})
    if family not in families:
        task = "a regression" if family is Gaussian else "a classification"
        names = " or ".join(sorted(member.__name__ for member in families))
        raise ExperimentError(
            f"{world.dataset.fingerprint.name} is {task}; {label} is for {names} predictives"
        )


def _attempt(
    one: Run, method: Any, entry: MethodSettings, settings: Settings, world: World, device: str
) -> dict[str, _Result]:
    """The scores of a method and its student, or how they diverged.

    That is part of the result, not an accident: a method may diverge with some settings.
    """
    distilled = method
    if entry.student:
        student = build_network(settings.student_network, world.dataset, student=True)
        recalibrate = settings.student.recalibrate
        distilled = Distilled(method, student, settings.distillation, device, recalibrate)
    try:
        return _scored(one, distilled, entry, settings, world)
    except (DivergedError, ImproperPoolError) as error:
        failed = {
            label: _Result({"nll": math.nan}, error=str(error))
            for label in _labels(one.label, student=entry.student)
        }
        if not entry.student:
            return failed
    # It may have been the student alone; the sites' fits are there.
    alone = _attempt(one, method, replace(entry, student=False), settings, world, device)
    return failed | alone


@dataclass(frozen=True, slots=True)
class _Result:
    """The scores and facts of one predictive."""

    scores: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    reliability: dict[str, list[float]] | None = None
    losses: Tensor | None = None
    error: str = ""


def _scored(
    one: Run, method: Any, entry: MethodSettings, settings: Settings, world: World
) -> dict[str, _Result]:
    state = run(
        method,
        world.sites,
        world.reference,
        seed=one.seed,
        num_rounds=entry.num_rounds,
        progress=False,
    ).state
    results = {}
    for label, predictive in _outputs(one.label, state, world, student=entry.student).items():
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
            scores.reliability_bins(predictive, world.targets),
            scores.losses(predictive, world.targets),
        )
    return results


def _outputs(label: str, state: Any, world: World, *, student: bool) -> dict[str, Predictive]:
    """The predictives to score, on the evaluation rows."""
    rows = world.reference.evaluate
    teacher = state.teacher if student else state
    predictive = getattr(teacher, "predictive", None)
    num = len(world.reference.inputs)
    if not isinstance(predictive, Categorical | Gaussian) or len(predictive) != num:
        raise ExperimentError(
            f"{label}: what finish returns must have a `predictive` on all {num} reference rows"
        )
    outputs: dict[str, Predictive] = {label: predictive[rows]}
    if student:
        outputs[label + STUDENT] = state.student.predict(world.reference.inputs[rows])
    return outputs


def _details(state: Any) -> dict[str, Any]:
    """Return what explains a result: what was tuned or chosen, and the student's distance."""
    inner = getattr(state, "teacher", state)
    tuned = getattr(inner, "tuned", None)
    choice = getattr(inner, "choice", None)
    found = {"beta": getattr(inner, "beta", math.nan)}
    if tuned is not None and "inverse_temperature" in tuned.profiles:
        found["temperature"] = 1 / tuned.profiles["inverse_temperature"].value
    if inner is not state:
        found |= {"gap": state.gap, "student_temperature": state.temperature}
    details: dict[str, Any] = {name: v for name, v in found.items() if math.isfinite(v)}
    if choice is not None:
        details |= {"pool": choice.name, "weights": choice.tuned.weights}
    return details


def _key(config: dict[str, Any], label: str, seed: int) -> str:
    """A hash of all that a result depends on."""
    content = {"config": without_additions(config), "label": label, "seed": seed}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


@cache
def _data_digest(data: DataSettings) -> str:
    return load_dataset(data, rng=generator(0)).fingerprint.sha256
