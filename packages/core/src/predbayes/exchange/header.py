"""The head of an upload: what it says about itself, and who signed it; without its arrays.

In a file it is the header of a safetensors file: metadata, a signature where there is one, and each
array's type and shape. A file may come from anybody. Its head is bounded before it is read, checked
before anything that it declares is read, and refused with one line. All of this needs no torch: a
node reads its own uploads by it, and to do so loads nothing that trains.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationError

from predbayes.errors import UploadError
from predbayes.exchange.strict import MAX_ROWS, Amount, Json, Sparse, Strict, valid_site_name
from predbayes.files import open_regular
from predbayes.text import printable

SUMS = "moments"
"""Name of the array of sums of moments, alone or beside predictions."""

_METADATA = "__metadata__"
_INFO_KEY, _SIGNATURE_KEY = "predbayes", "signature"
_MAX_HEADER_BYTES = 1_000_000  # names and shapes of thousands of arrays
_MAX_INFO_CHARACTERS = 100_000  # counts of ten thousand classes
_MAX_DIMENSIONS = 16
# Predictions are the first three; buffers of a network are of any type, as masks and counters.
_TYPES = {
    "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
}  # fmt: skip
_ITEM_BYTES = {
    "float16": 2, "float32": 4, "bfloat16": 2, "bool": 1, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1,
}  # fmt: skip


class UploadInfo(Strict):
    """The metadata of an upload; unknown fields and wrong types are refused.

    The core makes uploads of the kinds `weights`, `delta`, `predictions` and `counts`. Others may
    make further kinds, and say more by name in `details`, which the core carries and does not read.
    """

    format_version: Literal[1] = 1
    kind: Annotated[str, Field(pattern="^[a-z][a-z_-]{0,31}$")]
    num_rows: Annotated[int, Field(gt=0, le=MAX_ROWS)]  # the site's rows, |D_k|
    class_rows: tuple[Amount, ...] | None = None
    site: Annotated[str, AfterValidator(lambda name: name and valid_site_name(name))] = ""
    plan: Annotated[str, Field(pattern="^$|^[0-9a-f]{64}$")] = ""  # digest of the study's plan
    learner: Annotated[str, Field(pattern="^[A-Za-z0-9 ._-]{0,64}$")] = ""  # what the site fitted
    details: Sparse[Annotated[dict[str, Json], AfterValidator(lambda value: _canonical(value))]] = (
        Field(default_factory=dict)
    )


class Signature(Strict):
    """Who signed the digest of an upload's content. The core carries it and verifies nothing."""

    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class Spec(NamedTuple):
    """Type and shape of an array; numpy and torch call types the same."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The memory that it takes, at the most."""
        return math.prod(self.shape) * _ITEM_BYTES.get(self.dtype, 8)


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a file says: nothing of it is checked against the arrays yet."""

    info: UploadInfo
    signature: Signature | None
    arrays: Mapping[str, Spec]

    @classmethod
    def read(cls, path: Path) -> Header:
        """Read the header alone, whatever the file is."""
        content, shown = _read_json(path), printable(path.name)
        info, signature = from_metadata(content.pop(_METADATA, None), shown)
        return cls(info, signature, {name: _spec(content[name], shown) for name in content})

    @classmethod
    def of(cls, content: bytes, shown: str = "") -> Header:
        """Read the header of a file that is in memory."""
        found = _parsed(content[8 : 8 + _bounded_length(content, shown)], shown)
        info, signature = from_metadata(found.pop(_METADATA, None), shown)
        return cls(info, signature, {name: _spec(found[name], shown) for name in found})


def to_metadata(info: UploadInfo, signature: Signature | None) -> dict[str, str]:
    """Return what an upload says about itself, and its signature, as texts by name."""
    told = {_INFO_KEY: info.model_dump_json()}
    return told if signature is None else told | {_SIGNATURE_KEY: signature.model_dump_json()}


def from_metadata(metadata: Any, shown: str) -> tuple[UploadInfo, Signature | None]:
    """Check and parse metadata, whoever made it.

    Args:
        metadata: Of a file or of a message.
        shown: What it is of, for the line with which it is refused.
    """
    if not isinstance(metadata, dict) or _INFO_KEY not in metadata:
        raise UploadError("it is not an upload of predbayes", shown)
    unknown = set(metadata) - {_INFO_KEY, _SIGNATURE_KEY}
    # In a long text every error would be listed.
    texts = (isinstance(v, str) and len(v) <= _MAX_INFO_CHARACTERS for v in metadata.values())
    if unknown or not all(texts):
        raise UploadError("it has metadata that no upload has", shown)
    try:
        info = UploadInfo.model_validate_json(metadata[_INFO_KEY])
        signed = metadata.get(_SIGNATURE_KEY)
        return info, None if signed is None else Signature.model_validate_json(signed)
    except ValidationError as error:
        raise UploadError(first_problem(error), shown) from error


def sorted_metadata(file: bytes) -> bytes:
    """Put a file's metadata in order: the writer's is random, and equal uploads are equal bytes."""
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    header[_METADATA] = dict(sorted(header[_METADATA].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(text) <= length  # the same text in another order; it is filled up with spaces
    return b"".join((file[:8], text.ljust(length), memoryview(file)[8 + length :]))


def _read_json(path: Path) -> dict[str, Any]:
    """Read the JSON header of a safetensors file, whose length is bounded first."""
    shown = printable(path.name)
    try:
        with open_regular(path) as file:
            return _parsed(file.read(_bounded_length(file.read(8), shown)), shown)
    except OSError as error:
        is_file = error.errno != errno.EINVAL
        what = "it cannot be read" if is_file else "it is not a safetensors file"
        raise UploadError(f"{what}: {error.strerror}", shown) from error


def _bounded_length(content: bytes, shown: str) -> int:
    if not content:
        raise UploadError("the file is empty: copy it again", shown)
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= _MAX_HEADER_BYTES:
        raise UploadError("it is not a safetensors file, or its header is huge", shown)
    return length


def _parsed(text: bytes, shown: str) -> dict[str, Any]:
    try:
        header = json.loads(text.decode(), object_pairs_hook=distinct)
        if not isinstance(header, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError) as error:  # neither text, nor JSON, nor flat
        why = "its header is not JSON that has every name once"
        raise UploadError(f"it is not a safetensors file: {why}", shown) from error
    return header


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that comes twice: one reader takes its first value, another its last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name comes twice")
    return content


def _spec(entry: Any, shown: str) -> Spec:
    """Read the type and shape that a header declares for an array."""
    known = isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}
    name, shape = (entry["dtype"], entry["shape"]) if known else ("", [])
    dtype = _TYPES.get(name) if isinstance(name, str) else None
    is_shape = isinstance(shape, list) and all(type(size) is int for size in shape)
    if dtype is None or not is_shape or len(shape) > _MAX_DIMENSIONS:
        raise UploadError("it declares an array of a type that no upload has", shown)
    return Spec(dtype, tuple(shape))


def _canonical(value: Any) -> Any:
    """Return plain data with its names in order, so that equal data are equal texts."""
    if isinstance(value, dict):
        return {name: _canonical(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_canonical(part) for part in value]
    return value


def first_problem(error: ValidationError) -> str:
    """Return where the first problem is and what it is, on one line."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "header"
    return f"{printable(where, 40)}: {printable(problem['msg'])}"
