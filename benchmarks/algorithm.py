"""Algorithm 1 beside its ends and its control, for the benchmarks that score it.

In each cell the sites train once; mixture, product, beta and student come from the same uploads.
The control, `server_only`, is the same learner trained on the labelled reference rows alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from predbayes.exchange.federation import InProcess, Task
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.local import Network, OptimizerSettings, SGHMCLearner
from predbayes.methods.beta_pred_bayes import BetaPredBayes
from predbayes.methods.distilled import Distilled
from predbayes.seeding import generator
from predbayes.summand import fold

POOLS = ("mixture", "product", "beta", "student", "server_only")
RECORDS = Path(".benchmarks")

Rows = tuple[Tensor, Tensor]
Score = Callable[[Any], dict[str, float]]
"""From a predictive on the evaluation rows to named figures."""


def deal(
    rows: Rows,
    num_reference: int,
    num_labels: int,
    split: Callable[[Tensor], list[Tensor]],
    evaluate: Tensor,
    seed: int,
) -> tuple[dict[str, Rows], ReferenceRows]:
    """Reference rows at random, some labelled; ``split`` deals the indices of the rest."""
    inputs, targets = rows
    order = torch.randperm(len(targets), generator=generator(seed, "reference"))
    chosen, rest = order[:num_reference], order[num_reference:]
    parts = [rest[part] for part in split(rest)]
    sites = {f"site{k}": (inputs[part], targets[part]) for k, part in enumerate(parts)}
    labelled, unlabelled = chosen[:num_labels], chosen[num_labels:]
    reference = ReferenceRows.of(
        (inputs[labelled], targets[labelled]), unlabelled=inputs[unlabelled], evaluate=evaluate
    )
    return sites, reference


def compare(
    learner: SGHMCLearner,
    student: Network,
    distillation: OptimizerSettings,
    federation: tuple[dict[str, Rows], ReferenceRows],
    score: Score,
    seed: int,
) -> dict[str, Any]:
    """Scores of the pools, the student and the control on the evaluation rows."""
    sites, reference = federation
    method = Distilled(BetaPredBayes(learner), student, distillation)
    state = method.init(reference, rng=generator(seed, "init"))
    uploads = InProcess(sites, seed).collect(Task(method, state, reference.inputs))
    total = fold(method.lift(state, upload, reference.inputs) for upload in uploads)
    state = method.finish(state, total, reference, rng=generator(seed, "finish"))
    control = learner.fit(
        (reference.inputs[reference.labelled], reference.targets), rng=generator(seed, "control")
    )
    test_inputs = reference.inputs[reference.evaluate]
    test = total[reference.evaluate]
    predictives = {
        "mixture": test.mixture(),
        "product": test.product(),
        "beta": state.teacher.predictive[reference.evaluate],
        "student": state.student.predict(test_inputs),
        "server_only": control.predict(test_inputs),
    }
    scores: dict[str, Any] = {name: score(predictive) for name, predictive in predictives.items()}
    return {"tuned_beta": state.teacher.beta, **scores}


def over_seeds(
    name: str, cell: dict[str, Any], seeds: Sequence[int], compute: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """The mean over seeds of a cell's figures; finished seeds are read from the records."""
    records = []
    for seed in seeds:
        key = {**cell, "seed": seed}
        record = recorded(name, key, compute)
        line = ", ".join(f"{pool} {record[pool]['nll']:.4f}" for pool in POOLS)
        print(f"{' '.join(str(part) for part in key.values())}: {line}", flush=True)
        records.append(record)
    mean: dict[str, Any] = _mean(records)
    return mean


def recorded(
    name: str, key: dict[str, Any], compute: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """The record of a cell, read from the benchmark's file, or computed and appended to it."""
    path = RECORDS / f"{name}.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        record: dict[str, Any] = json.loads(line)
        if record["key"] == key:
            found: dict[str, Any] = record["value"]
            return found
    value = compute(**key)
    RECORDS.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"key": key, "value": value}) + "\n")
    return value


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    return sum(values) / len(values)
