"""The head of an upload: what it says about itself, and who signed it; without its arrays.

In a file it is the header of a safetensors file: metadata, a signature where there is one, and each
array's type and shape. A file may come from anybody. Its head is bounded before it is read, checked
before anything that it declares is read, and refused with one line. All of this needs no torch: a
node reads its own uploads by it, and to do so loads nothing that trains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from predbayes.errors import KeyFileError, UploadError
from predbayes.exchange.strict import Strict, valid_site_name
from predbayes.learning.guarantee import Guarantee
from predbayes.text import printable
from predbayes_study.trust.sealed import MAGIC
from predbayes_study.trust.signing import PublicKey

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

Number = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
RowCount = Annotated[int, Field(ge=0)]


class Sums(Strict):
    """Sums of one metric over rows; those of several sites add up to those of all their rows."""

    total: Number
    # Of the values, for an interval; a share has none, since they are its total.
    squares: Annotated[Amount | None, Field(exclude_if=lambda found: found is None)] = None


class BinSums(Strict):
    """A reliability diagram as sums, by bins of equal width of the confidence."""

    rows: tuple[RowCount, ...]
    hits: tuple[RowCount, ...]
    confidence: tuple[Amount, ...]


class Weighted(Strict):
    """An estimate of a site and its precision, with which it enters a mean over sites."""

    value: Number
    weight: Amount


class RiskSums(Strict):
    """Events and other rows counted in bins of the risk of one class."""

    edges: tuple[Amount, ...]  # between bins, in ascending order
    events: tuple[RowCount, ...]
    others: tuple[RowCount, ...]
    expected: tuple[Amount, ...]  # sums of risks
    slope: Annotated[Weighted | None, Field(exclude_if=lambda found: found is None)] = None
    intercept: Annotated[Weighted | None, Field(exclude_if=lambda found: found is None)] = None


class GroupSums(Strict):
    """Sums over one group of rows: of an event its number and risks, otherwise of the NLL."""

    column: str
    name: str
    rows: RowCount
    events: Annotated[RowCount | None, Field(exclude_if=lambda found: found is None)] = None
    expected: Annotated[Amount | None, Field(exclude_if=lambda found: found is None)] = None
    nll: Annotated[Sums | None, Field(exclude_if=lambda found: found is None)] = None


class ScoreCounts(Strict):
    """Rows counted in bins of how strange their targets are to the model."""

    edges: Annotated[tuple[Amount, ...], Field(max_length=1000)]  # between bins, ascending
    counts: Annotated[tuple[RowCount, ...], Field(max_length=1001)]


class Evaluation(Strict):
    """How well a model predicts a site's held-out rows, as sums that tell of no single row."""

    model: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # digest of its weights
    metrics: Annotated[dict[str, Sums], Field(max_length=16)]
    bins: BinSums | None = None  # None where some bin has too few rows
    # Of the event, or of each class; None where some count would be small. Left out then, so that
    # old digests stay.
    risks: Annotated[
        tuple[RiskSums, ...] | None,
        Field(max_length=20, exclude_if=lambda found: found is None),
    ] = None
    # Of the plan's groups of rows that may be told of; left out likewise.
    groups: Annotated[
        tuple[GroupSums, ...] | None,
        Field(max_length=200, exclude_if=lambda found: found is None),
    ] = None
    # None for times to an event; left out likewise.
    scores: Annotated[ScoreCounts | None, Field(exclude_if=lambda found: found is None)] = None


class Seal(Strict):
    """The seed of a mask, sealed to a key holder (`predbayes_study.extras.sealed.masking`)."""

    holder: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # whose X25519 key it is for
    sealed: Annotated[str, Field(pattern="^[0-9a-f]{160}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]  # the site's


class UploadInfo(Strict):
    """The metadata of an upload; unknown fields and wrong types are refused."""

    format_version: Literal[1] = 1
    kind: Literal["weights", "delta", "predictions", "counts", "evaluation", "moments", "masked"]
    num_rows: Annotated[int, Field(gt=0)]  # the site's rows, |D_k|; with `privacy` a noisy count
    class_rows: tuple[Amount, ...] | None = None
    site: Annotated[str, AfterValidator(lambda name: name and valid_site_name(name))] = ""
    plan: Annotated[str, Field(pattern="^$|^[0-9a-f]{64}$")] = ""  # digest of the study's plan
    learner: Annotated[str, Field(pattern="^[A-Za-z0-9 ._-]{0,64}$")] = ""  # what the site fitted
    # The ledger's head that the site last saw: it names the study, and makes the site a witness.
    seen: Annotated[str, Field(pattern="^[0-9a-f]{64}$", exclude_if=lambda seen: not seen)] = ""
    # Of kind `evaluation` alone; left out where there is none, so that old digests stay.
    evaluation: Annotated[Evaluation | None, Field(exclude_if=lambda found: found is None)] = None
    # Of kind `masked` alone, one for each key holder of the plan; left out likewise.
    seals: Annotated[
        tuple[Seal, ...], Field(max_length=16, exclude_if=lambda found: not found)
    ] = ()

    # What all of it promises to people at the site; left out where nothing is.
    privacy: Annotated[Guarantee | None, Field(exclude_if=lambda found: found is None)] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.privacy is not None and self.class_rows is not None:
            raise ValueError("an upload with a promise of privacy counts no classes")
        if (self.kind == "masked") != bool(self.seals):
            raise ValueError("seals are of kind masked, which needs them")
        if (self.kind == "evaluation") != (self.evaluation is not None):
            raise ValueError("an evaluation is of kind evaluation, which has nothing else")
        return self


class Signature(Strict):
    """Who signed the digest of an upload's content."""

    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]

    def verifies(self, digest: str) -> bool:
        """Return whether it is that key's signature of this digest."""
        try:
            return PublicKey(self.key).verifies("upload", digest.encode(), self.signature)
        except KeyFileError:
            return False  # no key at all


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

    def is_signed_by(self, key: str, digest: str) -> bool:
        """Return whether a key, as hexadecimal digits, signed content with this digest."""
        signature = self.signature
        return signature is not None and signature.key == key and signature.verifies(digest)


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


def sort_metadata(path: Path) -> None:
    """Put a file's metadata in order: the writer's is random, and equal uploads are equal bytes."""
    content = _read_json(path)
    content[_METADATA] = dict(sorted(content[_METADATA].items()))
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        if len(text) <= length:  # as long as it was; a header is filled up with spaces
            file.write(text.ljust(length))


def _read_json(path: Path) -> dict[str, Any]:
    """Read the JSON header of a safetensors file, whose length is bounded first."""
    shown = printable(path.name)
    try:
        with path.open("rb") as file:
            return _parsed(file.read(_bounded_length(file.read(8), shown)), shown)
    except OSError as error:
        raise UploadError(f"it cannot be read: {error.strerror}", shown) from error


def _bounded_length(content: bytes, shown: str) -> int:
    if not content:
        raise UploadError("the file is empty: copy it again", shown)
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= _MAX_HEADER_BYTES:
        if content[:8] == MAGIC[:8]:
            raise UploadError(
                "it is not a safetensors file, but a sealed one: sealed twice, or for another "
                "study",
                shown,
            )
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


def first_problem(error: ValidationError) -> str:
    """Return where the first problem is and what it is, on one line."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "header"
    return f"{printable(where, 40)}: {printable(problem['msg'])}"
