"""Reference rows: inputs that every party may see, with labels that only the coordinator holds.

The paper calls them U. Three roles, in this order in one tensor:

    labelled     the pool is tuned on them
    unlabelled   further inputs to distil on
    evaluate     inputs predicted on like the others, and used for nothing but scoring

Sites are given `inputs` and nothing else of this object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from predbayes.arrays import LoaderRows, as_inputs, as_rows, require_finite
from predbayes.errors import DataError

_BATCH_SIZE = 100  # in which a dataset is read
# Labels that are none are still of a kind: it tells a regression from classes.
_LABELLED = (
    "labelled reference rows are a pair (inputs, labels), or what else a site's rows may be "
    "(without labels write pb.ReferenceRows.of((x[:0], y[:0]), unlabelled=x), with the y of a site)"
)


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """Reference inputs and the labels of the first of them."""

    inputs: Tensor  # (R, ...)
    targets: Tensor  # (L,), of the labelled rows; they stay with the coordinator
    num_evaluate: int = 0

    def __post_init__(self) -> None:
        if len(self.targets) + self.num_evaluate > len(self.inputs):
            raise DataError(
                f"{len(self.inputs)} reference inputs cannot hold {len(self.targets)} labelled "
                f"and {self.num_evaluate} evaluation rows"
            )
        require_finite(self.inputs, "reference row")

    @classmethod
    def of(cls, labelled: Any, unlabelled: Any = None, evaluate: Any = None) -> ReferenceRows:
        """Lay rows of the three roles out in one tensor.

        Args:
            labelled: A pair (inputs, labels) of tensors, arrays or tables, or what else a site's
                rows may be; a loader is read once, as a whole.
            unlabelled: Inputs: a tensor, an array or a table.
            evaluate: Inputs likewise.
        """
        inputs, targets = _whole(labelled)
        if len(inputs) != len(targets):
            raise DataError(f"{len(inputs)} labelled inputs with {len(targets)} labels")
        others = [as_inputs(part) for part in (unlabelled, evaluate) if part is not None]
        parts = [inputs, *others]
        if len({part.shape[1:] for part in parts}) > 1:
            shapes = ", ".join(str(tuple(part.shape[1:])) for part in parts)
            raise DataError(f"reference inputs must have one shape, not {shapes}")
        if not any(map(len, parts)):
            raise DataError("there is no reference row; give some, with or without labels")
        return cls(torch.cat(parts), targets, 0 if evaluate is None else len(evaluate))

    @classmethod
    def given(cls, reference: Any) -> ReferenceRows:
        """Return reference rows as they are, and a pair (inputs, labels) as labelled ones."""
        if isinstance(reference, ReferenceRows):
            return reference
        if isinstance(reference, tuple) and len(reference) == 2:
            return cls.of(reference)
        raise DataError(
            "reference rows are a pair (inputs, labels) or pb.ReferenceRows.of((inputs, labels), "
            f"unlabelled=inputs), not {type(reference).__name__}"
        )

    @property
    def labelled(self) -> slice:
        """Rows to tune on."""
        return slice(0, len(self.targets))

    @property
    def distillation(self) -> slice:
        """Rows to distil on: all but those kept for evaluation."""
        return slice(0, len(self.inputs) - self.num_evaluate)

    @property
    def evaluate(self) -> slice:
        """Rows to score on."""
        return slice(len(self.inputs) - self.num_evaluate, len(self.inputs))


def _whole(labelled: Any) -> tuple[Tensor, Tensor]:
    """Return all rows as a pair of tensors; those of a dataset in its order."""
    rows = as_rows(labelled, _LABELLED)
    if isinstance(rows, LoaderRows):
        is_loader = isinstance(labelled, DataLoader)
        pairs = list(rows if is_loader else LoaderRows(DataLoader(labelled, _BATCH_SIZE)))
        if not pairs:
            raise DataError("there is no reference row in the loader; give some")
        rows = tuple(torch.cat(parts) for parts in zip(*pairs, strict=True))
    inputs, targets = rows
    return inputs, targets
