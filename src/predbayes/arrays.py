"""Arrays of others as tensors: numpy, pandas, lists.

Tensors pass as they are. A table of numbers becomes torch's default float, class indices become
int64; text is refused, because only `FederatedClassifier` numbers classes by itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from predbayes.errors import DataError


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


def as_rows(rows: Any) -> Any:
    """Return a site's rows as a pair of tensors; a `DataLoader` passes as it is."""
    if isinstance(rows, DataLoader):
        return rows
    if not isinstance(rows, tuple | list) or len(rows) != 2:
        raise DataError(
            "a site's rows are a pair (inputs, targets) of tensors or arrays, or a DataLoader, "
            f"not {type(rows).__name__}"
        )
    return as_inputs(rows[0]), as_targets(rows[1])


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
