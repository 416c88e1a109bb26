"""Cells that are vectors, one for each row: where each vector is. Nothing is read yet.

A table has them in one of two ways:

    lists      a column of lists in a Parquet file
    a store    a file beside the table: NAME.npy, or an array NAME in TABLE.npz or
               TABLE.safetensors, or what `site.toml` says. Its first axis is the rows. A column
               NAME of the table has numbers of its rows, from 0; without one rows go in order

This is the part that needs no torch; `coding` reads them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open

from predbayes.errors import DataError
from predbayes_study.plan.schema import Plan, Vector

Array = np.ndarray[Any, Any]
DAMAGED = (OSError, ValueError, SyntaxError, SafetensorError)
"""What readers of arrays raise."""

STORES = (".npy", ".npz", ".safetensors")
_MOST_DIGITS = 18  # of a row's number


class Store(Protocol):
    """Vectors by row."""

    def __getitem__(self, row: Any) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class StoredVector:
    """A cell whose vector is a row of a store."""

    store: Store
    row: int

    def read(self) -> Array:
        """Return the vector."""
        return np.asarray(self.store[self.row])


def with_vectors(
    plan: Plan, frame: pd.DataFrame, path: Path, stated: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Return a table whose cells of vectors are ready to be read.

    Args:
        plan: What columns there are.
        frame: The table.
        path: Its file; stores are looked for beside it.
        stated: Files of stores by column, where the site says so.
    """
    for name in plan.vectors:
        file, store = _store(path, name, (stated or {}).get(name, ""))
        if store is not None:
            cells = _stored(name, frame, file, store)
            frame = frame.assign(**{name: pd.Series(cells, frame.index, object)})
    return frame


def kit_vectors(plan: Plan, frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the reference rows of a kit with their vectors, which are in one file.

    The author of the kit may have named any file of this computer in a cell: none is opened.
    """
    for name, column in plan.vectors.items():
        try:
            with safe_open(path, "np") as file:
                held = file.get_slice(name)
                shape, kind = tuple(held.get_shape()), held.get_dtype()
        except DAMAGED as error:
            raise DataError(f"{path.name} does not hold the vectors of {name}") from error
        if (shape, kind) != ((len(frame), column.size), "F32") or name not in frame.columns:
            raise DataError(f"{path.name}: the vectors of {name} are not those of the rows")
        cells = _stored(name, frame, path, _open(path, name))
        frame = frame.assign(**{name: pd.Series(cells, frame.index, object)})
    return frame


def vector_words(column: Vector) -> str:
    """Say what a vector must be.

    Examples:
        >>> vector_words(Vector(type="vector", size=512))
        'vectors of 512 numbers'
    """
    return f"vectors of {column.size:,} numbers"


def is_vector(cell: Any) -> bool:
    """Return whether a cell is a vector, and not text."""
    return isinstance(cell, StoredVector)


def holds_vectors(cells: pd.Series) -> bool:
    """Return whether a column of a table has vectors; text, numbers and days are known at once."""
    return pd.api.types.infer_dtype(cells) == "mixed" and any(map(is_vector, cells))


def vector_cells(lists: Iterable[Any]) -> pd.Series:
    """Return Parquet's lists as cells with vectors; where there is no list they are empty.

    Each list is converted alone, or a null in one of them would change the type of all numbers.
    """
    found = (one.values for one in lists)
    arrays = [None if one is None else one.to_numpy(zero_copy_only=False) for one in found]
    cells = ["" if array is None else StoredVector(arrays, row) for row, array in enumerate(arrays)]
    return pd.Series(cells, dtype=object)


def guess_vectors(frame: pd.DataFrame, path: Path) -> dict[str, Vector]:
    """Return the columns of vectors that a table has, or files beside it."""
    found: dict[str, Vector] = {}
    for name in map(str, frame.columns):
        cells = [cell for cell in frame[name] if is_vector(cell) or str(cell).strip()]
        if cells and is_vector(cells[0]):
            found[name] = Vector(type="vector", size=max(1, np.size(cells[0].read())))
    held = [path.with_suffix(suffix) for suffix in STORES[1:]]
    beside = [name for file in held if file.is_file() for name in _names(file)]
    for name in (*beside, *(file.stem for file in sorted(path.parent.glob("*.npy")))):
        file, store = _store(path, name, "")
        if store is None or (name not in frame.columns and _length(store) != len(frame)):
            continue
        if len(shape := _shape(store)) != 2:
            raise DataError(
                f"{file.name}: {name} has {len(shape)} axes, but vectors have two, rows and "
                "numbers. Save a vector for each row."
            )
        found[name] = Vector(type="vector", size=shape[1])
    return found


# Stores


def _store(path: Path, name: str, stated: str) -> tuple[Path, Store | None]:
    """The store of a column, if there is one, and its file."""
    if stated:
        file = path.parent / stated
        return file, _open(file, name)
    beside = [path.with_name(f"{name}.npy"), *(path.with_suffix(suffix) for suffix in STORES[1:])]
    for file in beside:
        if file.is_file() and (file.suffix == ".npy" or name in _names(file)):
            return file, _open(file, name)
    return path, None


def _names(file: Path) -> list[str]:
    """Names of the arrays in a file."""
    with contextlib.suppress(*DAMAGED):
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return list(arrays.files)
        with safe_open(file, "np") as opened:
            return list(opened.keys())
    raise DataError(f"{file.name} is no file of arrays that can be read")


def _open(file: Path, name: str) -> Store:
    """The vectors of a column by row; nothing is read yet, except an .npz, which is read whole."""
    try:
        match file.suffix.lower():
            case ".npy":
                store: Store = np.load(file, mmap_mode="r", allow_pickle=False)
            case ".npz":
                with np.load(file, allow_pickle=False) as arrays:
                    store = arrays[name]
            case ".safetensors":
                store = safe_open(file, "np").get_slice(name)  # type: ignore[no-untyped-call]
            case suffix:
                raise DataError(
                    f"{file.name}: {suffix or 'a file without a suffix'} is not read; save "
                    "vectors as .npy, .npz or .safetensors"
                )
    except (*DAMAGED, KeyError) as error:
        raise DataError(f"{file.name} has no arrays of {name} that can be read") from error
    return store


def _shape(store: Any) -> tuple[int, ...]:
    return tuple(store.get_shape() if hasattr(store, "get_shape") else store.shape)


def _length(store: Any) -> int:
    return next(iter(_shape(store)), 0)


def _stored(name: str, frame: pd.DataFrame, file: Path, store: Store) -> list[Any]:
    """Cells of a column, by its row numbers of a store, or in order."""
    length = _length(store)
    if name not in frame.columns:
        if length != len(frame):
            raise DataError(
                f"{file.name} has {length:,} rows, the table {len(frame):,}; give the table a "
                f"column {name} with each row's number in {file.name}, from 0"
            )
        return [StoredVector(store, row) for row in range(length)]
    numbers = ((cell, _whole(cell)) for cell in frame[name])
    return [
        StoredVector(store, number) if number is not None and number < length else cell
        for cell, number in numbers
    ]


def _whole(cell: Any) -> int | None:
    text = str(cell).strip().removesuffix(".0")
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return int(text) if is_number else None
