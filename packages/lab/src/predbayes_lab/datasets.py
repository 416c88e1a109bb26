"""A dataset by its name: one of the registry's, or a function of one's own.

    [data]
    name = "mypackage.mine:load"

The function gets a generator and returns training and test rows, each a pair (inputs, targets) of
tensors, arrays or tables; a third part, one name per training row, says which site it is of
(``partition.kind = "groups"``). Targets are class indices, or numbers. The generator is the seed's:
whoever draws test rows with it has others with every seed.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predbayes.arrays import as_pair
from predbayes.errors import DataError, ExperimentError
from predbayes_lab.config import DataSettings
from predbayes_lab.data import registry
from predbayes_lab.data.dataset import Dataset, Fingerprint
from predbayes_lab.methods import import_object


def load_dataset(settings: DataSettings, *, rng: torch.Generator) -> Dataset:
    """Read a dataset of the registry, or call the function that an import string names."""
    name = settings.name
    if not is_own(name):
        return registry.load(name, rng=rng, variant=settings.variant)
    if settings.variant != "default":
        raise ExperimentError(f"{name} has no variant {settings.variant!r}")
    found = import_object(name)(rng)
    if not isinstance(found, tuple | list) or len(found) not in (2, 3):
        raise ExperimentError(
            f"{name} returned {type(found).__name__}; it must return training and test rows, each "
            "a pair (inputs, targets), and may return the name of each training row's site"
        )
    try:
        return _dataset(name, as_pair(found[0]), as_pair(found[1]), *found[2:])
    except DataError as error:
        raise ExperimentError(f"{name}: {error}") from error


def is_own(name: str) -> bool:
    """Return whether a dataset is a function of one's own."""
    return ":" in name


def _dataset(
    name: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], groups: Any = None
) -> Dataset:
    if not (len(train[1]) and len(test[1])):
        raise DataError(f"{len(train[1])} training rows and {len(test[1])} test rows")
    if train[0].shape[1:] != test[0].shape[1:]:
        shapes = f"{tuple(train[0].shape[1:])} and {tuple(test[0].shape[1:])}"
        raise DataError(f"training and test inputs have shapes {shapes}")
    targets = torch.cat([train[1], test[1]])
    num_classes = None if targets.is_floating_point() else int(targets.max()) + 1
    sizes = (len(train[0]), len(test[0]), math.prod(train[0].shape[1:]))
    found = Fingerprint(name, "default", *sizes, num_classes, _digest(*train, *test))
    return Dataset(*train, *test, num_classes, found, **_known(groups, sizes[0]))


def _known(groups: Any, num_rows: int) -> dict[str, Any]:
    if groups is None:
        return {}
    names, numbers = np.unique(np.asarray(groups).astype(str), return_inverse=True)
    if numbers.shape != (num_rows,):
        raise DataError(f"{num_rows} training rows with sites of shape {numbers.shape}")
    return {"train_groups": torch.as_tensor(numbers), "group_names": tuple(names.tolist())}


def _digest(*parts: Tensor) -> str:
    """SHA-256 of the rows: type, shape and bytes of each part."""
    digest = hashlib.sha256()
    for part in parts:
        array = part.cpu().contiguous().numpy()
        digest.update(f"{array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
