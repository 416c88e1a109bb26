"""What every loader returns: training and test rows, and a fingerprint of the files they came from.

One type serves images and tables, classes and numbers. A fingerprint says which rows a figure was
made from: it has the SHA-256 of all files, gunzipped and concatenated in the order in which the
registry lists them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from predbayes.errors import DataError


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The data that a figure was made from."""

    name: str
    variant: str
    num_train: int
    num_test: int
    num_features: int  # numbers per row: 784 for an image of 28 x 28
    num_classes: int | None
    sha256: str
    note: str = ""  # what a reader of the figure must know about these files

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for a record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows ready to learn from; whatever was scaled was scaled by the training rows."""

    train_inputs: Tensor  # (N, ...) float32
    train_targets: Tensor  # (N,) int64 class indices, or float32 numbers
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int | None  # None: regression
    fingerprint: Fingerprint
    sort_feature: Tensor | None = None  # (N,) what clients are sorted by; need not be an input
    train_groups: Tensor | None = None  # (N,) int64, such as the hospital
    test_groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            inputs, targets = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_targets")
            if len(inputs) != len(targets):
                raise DataError(f"{len(inputs)} {part} inputs but {len(targets)} targets")
            if not len(inputs):
                raise DataError(f"no {part} rows")
            if self.num_classes is not None:
                low, high = int(targets.min()), int(targets.max())
                if low < 0 or high >= self.num_classes:
                    raise DataError(
                        f"{self.fingerprint.name}: labels from {low} to {high} are not "
                        f"{self.num_classes} classes"
                    )


@dataclass(frozen=True, slots=True)
class RawFiles:
    """The decompressed files of one dataset, in the registry's order: all that a reader sees."""

    name: str
    variant: str
    contents: Mapping[str, bytes]

    def dataset(
        self,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        num_classes: int | None,
        note: str = "",
        **known: Any,
    ) -> Dataset:
        """Return the inputs and targets that a reader made of these files, with a fingerprint."""
        digest = hashlib.sha256()
        for content in self.contents.values():
            digest.update(content)
        fingerprint = Fingerprint(
            self.name,
            self.variant,
            len(train[0]),
            len(test[0]),
            math.prod(train[0].shape[1:]),
            num_classes,
            digest.hexdigest(),
            note,
        )
        return Dataset(*train, *test, num_classes, fingerprint, **known)
