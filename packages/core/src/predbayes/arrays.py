"""Rows of others as tensors: numpy, pandas, lists, dicts, datasets and loaders.

Tensors pass as they are. A table of numbers becomes torch's default float, class indices become
int64; text is refused, because only `FederatedClassifier` numbers classes by itself. A site's rows
are two tensors in memory, or `LoaderRows`, which are read batch by batch. A dict is a pair, too:
one of its two entries is called as targets are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from predbayes.errors import DataError

_TARGETS = ("y", "label", "labels", "target", "targets")
_DICT = f"a dict of inputs and {', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}"
_ROWS = (
    "a site's rows are a pair (inputs, targets) of tensors, arrays or tables, "
    f"{_DICT}, or a Dataset or DataLoader of such"
)
_BATCH = f"a loader's batch is a pair (inputs, targets) of tensors or arrays, or {_DICT}"
_BATCH_SIZE = 100  # of a dataset without a loader


def once_per_row(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply a function to each distinct row once, so that equal rows have equal values.

    Numerics: torch computes the last few elements of a tensor by another path than the others, and
    an exponential or a logarithm of equal numbers may differ there in its last bit.
    """
    kinds, place = torch.unique(rows, dim=0, return_inverse=True)
    return function(kinds)[place]


def as_inputs(values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return inputs as a tensor, one row each; arrays as ``dtype`` or torch's default float."""
    if isinstance(values, Tensor):
        return values
    kind = torch.get_default_dtype() if dtype is None else dtype
    return torch.as_tensor(_numbers(values, "inputs")).to(kind)


def as_targets(values: Any) -> Tensor:
    """Return class indices as int64, or numbers as torch's default float."""
    if isinstance(values, Tensor):
        return values
    numbers = _numbers(values, "targets")
    kind = torch.get_default_dtype() if numbers.dtype.kind == "f" else torch.int64
    return torch.as_tensor(numbers).to(kind)


class LoaderRows:
    """A site's rows that a `DataLoader` reads, batch by batch, as pairs (inputs, targets).

    The first pass over all of them counts classes, so that nobody reads them again for that.

    Args:
        loader: Of batches that are pairs or dicts, of tensors, arrays or lists.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.class_rows: Counter[int] | None = None  # rows of each class, after a whole pass

    @property
    def num_rows(self) -> int:
        """Rows of a pass."""
        loader = self.loader
        if not hasattr(loader.sampler, "__len__") or not hasattr(loader.dataset, "__len__"):
            raise DataError(
                "a loader's dataset must have a length: it is the site's number of rows"
            )
        return len(cast(Sized, loader.sampler))

    def __len__(self) -> int:
        """Batches of a pass."""
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        seen: Counter[int] = Counter()
        for batch in self.loader:
            inputs, targets = as_pair(batch, _BATCH)
            if self.class_rows is None and not targets.is_floating_point():
                seen.update(targets.flatten().tolist())
            yield inputs, targets
        self.class_rows = self.class_rows or seen


def as_rows(rows: Any, expected: str = _ROWS) -> Any:
    """Return a site's rows as a pair of tensors, or `LoaderRows`; ``expected`` as for `as_pair`."""
    if isinstance(rows, LoaderRows):
        return rows
    if isinstance(rows, DataLoader):
        return LoaderRows(rows)
    if isinstance(rows, TensorDataset):
        return as_pair(rows.tensors, expected)
    if _is_dataset(rows):
        return LoaderRows(DataLoader(rows, _BATCH_SIZE, shuffle=True))
    return as_pair(rows, expected)


def as_pair(rows: Any, expected: str = _ROWS) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a pair or a dict; ``expected`` begins the line that refuses."""
    inputs, targets = pair_of(rows, expected)
    return as_inputs(inputs), as_targets(targets)


def pair_of(rows: Any, expected: str = _ROWS) -> tuple[Any, Any]:
    """Return inputs and targets as they were given."""
    if isinstance(rows, tuple | list) and len(rows) == 2:
        return rows[0], rows[1]
    held = ""
    if isinstance(rows, Mapping):
        targets, inputs = ([n for n in rows if (n in _TARGETS) is named] for named in (True, False))
        if len(targets) == len(inputs) == 1:
            return rows[inputs[0]], rows[targets[0]]
        held = f" of {', '.join(map(str, rows))}"
    raise DataError(f"{expected}, not {type(rows).__name__}{held}")


def _is_dataset(rows: Any) -> bool:
    """Whether rows can be had one by one; a table or an array has no targets beside it."""
    if isinstance(rows, tuple | list | str | Mapping) or hasattr(rows, "__array__"):
        return False
    return hasattr(rows, "__getitem__") and hasattr(rows, "__len__")


def num_inputs(values: Any) -> int:
    """Return how many numbers a row has, of anything with a shape."""
    return math.prod(values.shape[1:])


def require_finite(inputs: Tensor, what: str) -> None:
    """Refuse inputs with NaN or infinity; ``what`` is the word for a row."""
    finite = inputs.isfinite()
    if not bool(finite.all()):
        row = int(finite.logical_not().nonzero()[0, 0])
        raise DataError(f"{what} {row}, counted from 0, is not finite; fill it in or leave it out")


def _numbers(values: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        array = np.array(values)  # a copy: a tensor that shares memory may be of a read-only array
    except ValueError as error:
        raise DataError(f"{what} are not a table: {error}") from error
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{what} are {array.dtype}, not numbers; code them as numbers first "
            "(pb.FederatedClassifier numbers classes by itself)"
        )
    return array
