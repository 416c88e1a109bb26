"""A federation made from a dataset: rows dealt to sites, reference rows, and rows to score on.

A random part of the training rows goes to the coordinator as reference rows, some or all of them
labelled; the rest is dealt to the sites. Methods are scored on the test rows, or, to choose
hyperparameters, on a *validation* split: a random fifth of the training rows, taken out first,
in place of the test rows, which are then not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from predbayes import partition
from predbayes.errors import ExperimentError
from predbayes.exchange.reference import ReferenceRows
from predbayes.seeding import generator
from predbayes_lab.config import (
    BY_CLASS,
    DataSettings,
    PartitionSettings,
    ReferenceSettings,
    Settings,
)
from predbayes_lab.data.dataset import Dataset
from predbayes_lab.datasets import load_dataset
from predbayes_lab.released import label_skew_released

VALIDATION_FRACTION = 0.2


@dataclass(frozen=True, slots=True)
class World:
    """Sites, reference rows, and the targets that only the scoring sees."""

    sites: dict[str, tuple[Tensor, Tensor]]
    reference: ReferenceRows
    targets: Tensor  # of the evaluation rows
    dataset: Dataset


def make_world(settings: Settings, seed: int) -> World:
    """Deal a dataset's rows; everything random derives from the seed."""
    dataset = load_dataset(settings.data, rng=generator(seed, "split"))
    order = torch.randperm(len(dataset.train_targets), generator=generator(seed, "reference"))
    inputs, targets = dataset.test_inputs, dataset.test_targets
    if settings.evaluate == "validation":
        num_held = round(VALIDATION_FRACTION * len(order))
        held, order = order[:num_held], order[num_held:]
        inputs, targets = dataset.train_inputs[held], dataset.train_targets[held]
    num_reference = round(settings.reference.fraction * len(order))
    chosen, rest = order[:num_reference], order[num_reference:]
    return World(
        _sites(dataset, rest, settings.partition, seed),
        _reference(dataset, chosen, settings.reference, inputs, generator(seed, "population")),
        targets,
        dataset,
    )


def _reference(
    dataset: Dataset,
    chosen: Tensor,
    settings: ReferenceSettings,
    evaluate: Tensor,
    rng: torch.Generator,
) -> ReferenceRows:
    if settings.classes == "half":
        if dataset.num_classes is None:
            raise ExperimentError(f"reference.classes: {_name(dataset)} has none")
        chosen = chosen[dataset.train_targets[chosen] < dataset.num_classes / 2]
    chosen = chosen[: _within("num-rows", settings.num_rows, chosen)]
    num_labels = _within("num-labels", settings.num_labels, chosen)
    chosen = chosen.roll(-settings.draw * num_labels)
    labelled, unlabelled = chosen[:num_labels], chosen[num_labels:]
    others = dataset.train_inputs[unlabelled]
    if settings.population:
        drawn = load_dataset(DataSettings(settings.population), rng=rng).train_inputs
        if drawn.shape[1:] != others.shape[1:]:
            raise ExperimentError(
                f"reference.population {settings.population!r} has other inputs than "
                f"{_name(dataset)}"
            )
        others = drawn[torch.randperm(len(drawn), generator=rng)[: len(others)]]
    return ReferenceRows.of(
        (dataset.train_inputs[labelled], dataset.train_targets[labelled]),
        unlabelled=others,
        evaluate=evaluate,
    )


def _within(name: str, wanted: int | None, rows: Tensor) -> int:
    """How many reference rows to take: all, or as many as wanted, which must be there."""
    if wanted is not None and not 0 <= wanted <= len(rows):
        raise ExperimentError(f"reference.{name} is {wanted}; there are {len(rows)} reference rows")
    return len(rows) if wanted is None else wanted


def _sites(
    dataset: Dataset, rest: Tensor, settings: PartitionSettings, seed: int
) -> dict[str, tuple[Tensor, Tensor]]:
    parts = [rest[part] for part in _deal(dataset, rest, settings, seed)]
    names = dataset.group_names if settings.kind == "groups" else ()
    return {
        names[k] if names else f"site{k}": (
            dataset.train_inputs[part],
            dataset.train_targets[part],
        )
        for k, part in enumerate(parts)
    }


def _deal(dataset: Dataset, rest: Tensor, settings: PartitionSettings, seed: int) -> list[Tensor]:
    targets, num = dataset.train_targets[rest], settings.num_clients
    rng = generator(seed, "partition")
    kinds: dict[str, Callable[[], list[Tensor]]] = {
        "homogeneous": lambda: partition.homogeneous(len(rest), num, rng=rng),
        "label-skew": lambda: partition.label_skew(targets, num, settings.heterogeneity, rng=rng),
        "label-skew-released": lambda: label_skew_released(
            targets,
            num,
            settings.heterogeneity,
            rng=rng,
            shard_size=len(dataset.train_targets) // num,  # before reference rows are taken out
        ),
        "dirichlet": lambda: partition.dirichlet(targets, num, settings.concentration, rng=rng),
        "sorted": lambda: partition.sorted_by(
            _require(dataset.sort_feature, dataset, "feature to sort by")[rest], num
        ),
        "groups": lambda: partition.by_group(
            _require(dataset.train_groups, dataset, "natural groups")[rest]
        ),
    }
    if dataset.num_classes is None and settings.kind in BY_CLASS:
        raise ExperimentError(f"partition {settings.kind!r} is by class; {_name(dataset)} has none")
    return kinds[settings.kind]()


def _require(value: Tensor | None, dataset: Dataset, what: str) -> Tensor:
    if value is None:
        raise ExperimentError(f"{_name(dataset)} has no {what}; choose another partition.kind")
    return value


def _name(dataset: Dataset) -> str:
    return dataset.fingerprint.name
