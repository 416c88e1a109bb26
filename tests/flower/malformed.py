"""What a node may send in place of its upload: each is to be refused, and to stop nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

_NUMPY = b"\x93NUMPY\x01\x00"  # how a serialised array begins


def _with_words(change: Callable[[str], str]) -> Callable[[Any], None]:
    def changed(content: Any) -> None:
        content["metadata"]["predbayes"] = change(content["metadata"]["predbayes"])

    return changed


def _with_arrays(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], None]:
    def changed(content: Any) -> None:
        arrays = content["arrays"].items()
        content["arrays"] = ArrayRecord({n: Array(change(a.numpy())) for n, a in arrays})

    return changed


def _with_bytes(data: bytes) -> Callable[[Any], None]:
    def changed(content: Any) -> None:
        arrays = content["arrays"].items()
        made = {n: Array(a.dtype, a.shape, a.stype, data) for n, a in arrays}
        content["arrays"] = ArrayRecord(made)

    return changed


def _with_header(text: str) -> Callable[[Any], None]:
    header = text.encode().ljust(117) + b"\n"
    return _with_bytes(_NUMPY + len(header).to_bytes(2, "little") + header)


def _renamed(content: Any) -> None:
    arrays = content["arrays"].items()
    content["arrays"] = ArrayRecord({f"{n}\ud800": a for n, a in arrays})  # half a character


def _shape(shape: str) -> Callable[[Any], None]:
    return _with_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}")


def _without_arrays(content: Any) -> None:
    del content["arrays"]


MALFORMED: dict[str, Callable[[Any], None]] = {
    "Truncated": _with_words(lambda info: info[: len(info) // 2]),
    "Borrowed": _with_words(lambda info: info.replace("Borrowed", "Alpha")),
    "Altered": _with_words(lambda info: info.replace('"num_rows":', '"num_rows":1')),
    "Double": _with_arrays(lambda array: array.astype(np.float64)),
    "Narrow": _with_arrays(lambda array: array[:, 1:]),
    "Short": _with_arrays(lambda array: array[:-1]),
    "Scalar": _with_arrays(lambda array: array[:1, 0].reshape(())),
    "NaN": _with_arrays(lambda array: np.full_like(array, np.nan)),
    "Large": _with_arrays(lambda array: np.zeros((500_000, 10), array.dtype)),
    "Text": _with_arrays(lambda array: array.astype(str)),
    "Bare": _without_arrays,
    "Renamed": _renamed,
    "Empty": _with_bytes(b""),
    "Zip": _with_bytes(b"PK\x03\x04 and no more"),
    "Noise": _with_bytes(b"noise " * 40),
    "Huge": _shape("(1000000000000000,)"),
    "Huger": _shape("(1000000000000000000000,)"),
    "Open": _with_header("{'descr': (("),
}
"""Makes an answer with an upload malformed, by the name of the site that sends it."""
