"""Cells that are arrays, vectors or images, one of a row: where each is; nothing is read yet.

A table has them in one of three ways:

    lists      a column of lists in a Parquet file
    a store    a file beside the table: NAME.npy, or an array NAME in TABLE.npz or
               TABLE.safetensors, or what `site.toml` says. Its first axis is the rows. A column
               NAME of the table has numbers of its rows, from 0; without one rows go in order
    images     a column of names of files, relative to the table: PNG, JPEG, TIFF or BMP

Vectors that an encoder makes are in TABLE.COLUMN.safetensors, which `predbayes embed` writes; its
metadata say of which cells and by which encoder, and others are refused.

This is the part that needs no torch; `wide` reads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open

from predbayes.errors import DataError
from predbayes.optional import require
from predbayes.study.plan.schema import BYTES, Image, Plan, Vector, Wide

Array = np.ndarray[Any, Any]
DAMAGED = (OSError, ValueError, SyntaxError, SafetensorError)
"""What readers of arrays raise."""

STORES = (".npy", ".npz", ".safetensors")
_MOST_DIGITS = 18  # of a row's number
_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
_MODES = {1: ("L", "I;16", "I;16B", "I", "F"), 3: ("RGB",), 4: ("RGBA", "CMYK")}


class Store(Protocol):
    """Arrays by row."""

    def __getitem__(self, row: Any) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """A cell whose array is a row of a store."""

    store: Store
    row: int

    def read(self, _: Wide) -> Array:
        """Return the array."""
        return np.asarray(self.store[self.row])


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A cell whose array is an image in a file."""

    path: Path

    def read(self, column: Wide) -> Array:
        """Return the array; of an image of another size or mode one of another shape."""
        num_channels = column.form[2] if isinstance(column, Image) else 0
        with _opened(self.path) as image:
            # Before anything is unpacked: a small file may hold a huge image.
            if image.size[::-1] != column.form[:2]:
                return np.empty(0)
            if num_channels == 3 and image.mode == "P":
                return np.asarray(image.convert("RGB"))
            if num_channels == 1 and image.mode == "1":
                return np.asarray(image.convert("L"))
            is_agreed = image.mode in _MODES.get(num_channels, ())
            return np.asarray(image) if is_agreed else np.empty(0)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """An image of which nothing but its size and form is read."""
    pillow = require("PIL.Image", "images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            image = pillow.open(file, formats=_FORMATS)
    except pillow.DecompressionBombError as error:
        raise ValueError("too large") from error
    with image:
        yield image


def with_arrays(
    plan: Plan, frame: pd.DataFrame, path: Path, stated: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Return a table whose cells of vectors and images are arrays to be read.

    Args:
        plan: What columns there are.
        frame: The table.
        path: Its file; others are looked for beside it.
        stated: Files of stores by column, where somebody says so.
    """
    for name, column in plan.wide.items():
        if name in plan.encoded:
            frame = _with_embedded(plan, name, frame, path)
            continue
        file, store = _store(path, name, (stated or {}).get(name, ""))
        if store is not None:
            cells = _stored(name, frame, file, store)
        elif name in frame.columns:
            cells = [_located(column, cell, path.parent) for cell in frame[name]]
        else:
            continue
        frame = frame.assign(**{name: pd.Series(cells, frame.index, object)})
    return frame


def embedded_file(path: Path, name: str) -> Path:
    """Return where the vectors of a table's column are that an encoder made."""
    return path.with_name(f"{path.stem}.{name}.safetensors")


def cells_digest(cells: Iterable[Any]) -> str:
    """Return the SHA-256 of a column's cells: vectors of a table that changed since are refused."""
    return hashlib.sha256(json.dumps([str(cell) for cell in cells]).encode()).hexdigest()


def embedded_by(path: Path, name: str) -> dict[str, str]:
    """Return what vectors say of themselves: of which `cells`, and by which `encoder`."""
    file = embedded_file(path, name)
    if not file.is_file():
        raise DataError(f"{name}: there is no {file.name}; make it with `predbayes embed`")
    try:
        with safe_open(file, "np") as opened:
            return dict(opened.metadata() or {})
    except DAMAGED as error:
        raise DataError(f"{file.name} is no file that `predbayes embed` wrote") from error


def _with_embedded(plan: Plan, name: str, frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The table with vectors that an encoder made of its images."""
    if name not in frame.columns:
        return frame
    file, told = embedded_file(path, name), embedded_by(path, name)
    if told.get("cells") != cells_digest(frame[name]):
        raise DataError(f"{file.name} is of other rows than the table; run `predbayes embed` again")
    if plan.frozen is not None and told.get("encoder") != plan.frozen.encoders[name].mark:
        raise DataError(
            f"{file.name} was made by another encoder than the plan's; run `predbayes embed` again"
        )
    store = _open(file, name)
    cells = [StoredArray(store, row) if str(c) else "" for row, c in enumerate(frame[name])]
    return frame.assign(**{name: pd.Series(cells, frame.index, object)})


def images_in(plan: Plan, folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a table of all images in a folder: their names, and the same with their arrays."""
    if [column.type for column in plan.columns.values()] != ["image"]:
        names = ", ".join(plan.columns)
        raise DataError(f"{folder} is a folder; the model needs a table with {names}")
    (name,) = plan.wide
    files = sorted(path.name for path in folder.iterdir() if _is_image(path.name))
    if not files:
        raise DataError(f"{folder} has no images: {', '.join(_SUFFIXES)}")
    table = pd.DataFrame({name: files}, dtype=object)
    return table, with_arrays(plan, table, folder / "images")


def kit_arrays(plan: Plan, frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the reference rows of a kit with their arrays, which lie in one file.

    Whoever made the kit may have named any file of this computer in a cell: none is opened.
    """
    for name, column in plan.wide.items():
        try:
            with safe_open(path, "np") as file:
                held = file.get_slice(name)
                shape, kind = tuple(held.get_shape()), held.get_dtype()
        except DAMAGED as error:
            raise DataError(f"{path.name} does not hold the arrays of {name}") from error
        wanted = (len(frame), *column.form), "U8" if is_bytes(column) else "F32"
        if (shape, kind) != wanted or name not in frame.columns:
            raise DataError(f"{path.name}: the arrays of {name} are not those of the rows")
        cells = _stored(name, frame, path, _open(path, name))
        frame = frame.assign(**{name: pd.Series(cells, frame.index, object)})
    return frame


def shape_words(column: Wide) -> str:
    """Say what an array must be.

    Examples:
        >>> shape_words(Image(type="image", shape=(28, 28)))
        'images of 28 x 28 x 1'
        >>> shape_words(Vector(type="vector", size=512))
        'vectors of 512 numbers'
    """
    if isinstance(column, Vector):
        return f"vectors of {column.size:,} numbers"
    return f"images of {' x '.join(map(str, column.form))}"


def is_array(cell: Any) -> bool:
    """Return whether a cell is an array, and not text."""
    return isinstance(cell, StoredArray | ImageFile)


def array_cells(lists: pd.Series) -> pd.Series:
    """Return a column of lists as cells with arrays; where there is none they are empty."""
    arrays = [None if value is None else np.asarray(value) for value in lists]
    cells = ["" if array is None else StoredArray(arrays, row) for row, array in enumerate(arrays)]
    return pd.Series(cells, lists.index, object, lists.name)


def is_bytes(column: Wide) -> bool:
    """Return whether the values of a column are bytes."""
    return isinstance(column, Image) and column.range == BYTES


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
    """The arrays of a column by row; nothing is read yet, but of an .npz all of it."""
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
                    "vectors and images as .npy, .npz or .safetensors"
                )
    except (*DAMAGED, KeyError) as error:
        raise DataError(f"{file.name} has no arrays of {name} that can be read") from error
    return store


def _length(store: Any) -> int:
    shape = store.get_shape() if hasattr(store, "get_shape") else store.shape
    return int(shape[0]) if len(shape) else 0


def _stored(name: str, frame: pd.DataFrame, file: Path, store: Store) -> list[Any]:
    """Cells of a column, by its row numbers of a store, or in order."""
    length = _length(store)
    if name not in frame.columns:
        if length != len(frame):
            raise DataError(
                f"{file.name} has {length:,} rows, the table {len(frame):,}; give the table a "
                f"column {name} with each row's number in {file.name}, from 0"
            )
        return [StoredArray(store, row) for row in range(length)]
    numbers = ((cell, _whole(cell)) for cell in frame[name])
    return [
        StoredArray(store, number) if number is not None and number < length else cell
        for cell, number in numbers
    ]


def _whole(cell: Any) -> int | None:
    text = str(cell).strip().removesuffix(".0")
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return int(text) if is_number else None


def _located(column: Wide, cell: Any, folder: Path) -> Any:
    """A cell with its array: a list is one already, of an image there is a file."""
    if is_array(cell) or not isinstance(column, Image):
        return cell
    text = "" if pd.isna(cell) else str(cell).strip()
    return ImageFile(folder / text) if text else ""


# What a table may have


def guess_arrays(frame: pd.DataFrame, path: Path) -> dict[str, Wide]:
    """Return the columns of vectors and images that a table has, or files beside it."""
    found: dict[str, Wide] = {}
    for name in map(str, frame.columns):
        cells = [cell for cell in frame[name] if is_array(cell) or str(cell).strip()]
        if cells and is_array(cells[0]):
            found[name] = Vector(type="vector", size=max(1, np.size(cells[0].store[cells[0].row])))
        elif cells and all(map(_is_image, map(str, cells))):
            found[name] = _image_of(path.parent / str(cells[0]).strip())
    for name in _beside(path):
        _, store = _store(path, name, "")
        if store is not None and (_length(store) == len(frame) or name in frame.columns):
            found[name] = _stored_form(np.asarray(store[0 : _length(store)]))
    return found


def _is_image(name: str) -> bool:
    return name.strip().lower().endswith(_SUFFIXES)


def _beside(path: Path) -> list[str]:
    """Names of columns of which there may be arrays beside a table."""
    held = [path.with_suffix(suffix) for suffix in STORES[1:]]
    names = [name for file in held if file.is_file() for name in _names(file)]
    return [*names, *(file.stem for file in sorted(path.parent.glob("*.npy")))]


def _image_of(file: Path) -> Image:
    """What an image in a file is."""
    try:
        with _opened(file) as image:
            size, mode = image.size[::-1], image.mode
    except DAMAGED as error:
        raise DataError(f"{file.name} is no image that can be read") from error
    modes = {m: channels for channels, of_it in _MODES.items() for m in of_it} | {"P": 3, "1": 1}
    shape = (*size, channels) if (channels := modes.get(mode, 1)) > 1 else size
    deep = mode.startswith("I")
    return Image(type="image", shape=shape, range=(0.0, 65535.0) if deep else BYTES)


def _stored_form(arrays: Array) -> Wide:
    """What the arrays of a store are: of one axis vectors, of more images."""
    if arrays.ndim == 2:
        return Vector(type="vector", size=arrays.shape[1])
    if arrays.ndim not in (3, 4):
        raise DataError(f"arrays with {arrays.ndim} axes are neither vectors nor images")
    shape = arrays.shape[1:]
    if arrays.dtype == np.uint8:
        return Image(type="image", shape=shape)
    least, greatest = math.floor(arrays.min()), math.ceil(arrays.max())
    return Image(type="image", shape=shape, range=(float(least), float(max(greatest, least + 1))))
