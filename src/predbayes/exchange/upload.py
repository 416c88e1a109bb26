"""What a site sends: named arrays and a little metadata, the same on disk and on any wire.

    weights       posterior samples: `parameter/NAME` and `buffer/NAME`, each (M, ...)
    delta         a change of the global weights, in the same arrays with M = 1
    predictions   on the reference inputs: `log_probs` (R, C), or `mean`, `epistemic_var` and
                  `noise_var` (R,)
    counts        no array: only how many rows the site has
    evaluation    no array: sums over held-out rows of how well a model predicts them

With `predictions` any local model can take part and an upload is small; a predictive off the
reference inputs then exists only as the student.

On disk an upload is one safetensors file with the metadata in its header, beside them the site's
signature of the content's digest where there is one. A file may come from anybody: reading one
never runs code, looks at the header before anything that it declares is read, and refuses with one
line whatever can be refused without a plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from predbayes.errors import KeyFileError, UploadError
from predbayes.exchange.signing import PublicKey, SigningKey
from predbayes.exchange.strict import SITE_PATTERN, Strict
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical, Gaussian, Predictive

_INFO_KEY, _SIGNATURE_KEY = "predbayes", "signature"
_MAX_HEADER_BYTES = 1_000_000  # names and shapes of thousands of arrays
_MAX_INFO_CHARACTERS = 100_000  # counts of ten thousand classes
_MAX_DIMENSIONS = 16
_MAX_SHOWN = 100
_NO_HEADER = "its header is not JSON that has every name once"
_DTYPES = {
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,  # counters of batch normalisation
}
Spec = tuple[torch.dtype, tuple[int, ...]]
"""Type and shape of an array."""


Number = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
RowCount = Annotated[int, Field(ge=0)]


class Sums(Strict):
    """Of one metric over rows; sums of several sites add up to those of all their rows."""

    total: Number
    squares: Amount  # of the values, for an interval


class BinSums(Strict):
    """A reliability diagram as sums, by bins of equal width of the confidence."""

    rows: tuple[RowCount, ...]
    hits: tuple[RowCount, ...]
    confidence: tuple[Amount, ...]


class Evaluation(Strict):
    """How well a model predicts a site's held-out rows, as sums that tell of no single row."""

    model: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # digest of its weights
    metrics: Annotated[dict[str, Sums], Field(max_length=16)]
    bins: BinSums | None = None  # None where some bin has too few rows


class UploadInfo(Strict):
    """The metadata of an upload; unknown fields and wrong types are refused."""

    format_version: Literal[1] = 1
    kind: Literal["weights", "delta", "predictions", "counts", "evaluation"]
    num_rows: Annotated[int, Field(gt=0)]  # the site's rows, |D_k|
    class_rows: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    site: Annotated[str, Field(pattern=f"^$|{SITE_PATTERN}")] = ""
    plan: Annotated[str, Field(pattern="^$|^[0-9a-f]{64}$")] = ""  # digest of the study's plan
    learner: Annotated[str, Field(pattern="^[A-Za-z0-9 ._-]{0,64}$")] = ""  # what the site fitted
    evaluation: Evaluation | None = None  # of kind `evaluation` alone

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "evaluation") != (self.evaluation is not None):
            raise ValueError("an evaluation is of kind evaluation, which has nothing else")
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without an evaluation where there is none: digests are as before there were any."""
        content: dict[str, Any] = serialize(self)
        if self.evaluation is None:
            content.pop("evaluation", None)
        return content


class Signature(Strict):
    """Who signed the digest of an upload's content."""

    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]

    def verifies(self, digest: str) -> bool:
        """Whether it is that key's signature of this digest."""
        try:
            return PublicKey(self.key).verifies(digest, self.signature)
        except KeyFileError:
            return False  # no key at all


@dataclass(frozen=True, slots=True)
class Declared:
    """What the header of a file says: nothing of it is checked against the arrays yet."""

    info: UploadInfo
    signature: Signature | None
    arrays: Mapping[str, Spec]

    @classmethod
    def read(cls, path: Path) -> Declared:
        """Read the header alone, whatever the file is."""
        header, shown = _read_header(path), printable(path.name)
        metadata = header.pop("__metadata__", None)
        if not isinstance(metadata, dict) or _INFO_KEY not in metadata:
            raise UploadError(f"{shown} is a safetensors file, but not an upload of predbayes")
        unknown = set(metadata) - {_INFO_KEY, _SIGNATURE_KEY}
        if unknown or not all(_is_info(value) for value in metadata.values()):
            raise UploadError(f"{shown} has metadata that no upload has")
        try:
            info = UploadInfo.model_validate_json(metadata[_INFO_KEY])
            signed = metadata.get(_SIGNATURE_KEY)
            signature = None if signed is None else Signature.model_validate_json(signed)
        except ValidationError as error:
            raise UploadError(f"{shown}: {_first_problem(error)}") from error
        return cls(info, signature, {name: _spec(header[name], shown) for name in header})


@dataclass(frozen=True, slots=True)
class Upload:
    """One site's whole contribution."""

    info: UploadInfo
    arrays: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            if array.is_floating_point() and not bool(array.isfinite().all()):
                raise UploadError(
                    f"array {printable(name)!r} of site {self.info.site!r} is not finite"
                )

    @classmethod
    def of_weights(
        cls,
        samples: WeightSamples,
        *,
        num_rows: int,
        class_rows: tuple[float, ...] | None = None,
    ) -> Upload:
        """Posterior samples (Paper: alg:dBpredbayes, step 2)."""
        info = UploadInfo(kind="weights", num_rows=num_rows, class_rows=class_rows)
        return cls(info, samples.arrays())

    @classmethod
    def of_delta(cls, change: WeightSamples, *, num_rows: int) -> Upload:
        """One change of the global weights."""
        if len(change) != 1:
            raise UploadError(f"a site sends one change of the weights, not {len(change)}")
        return cls(UploadInfo(kind="delta", num_rows=num_rows), change.arrays())

    @classmethod
    def of_count(cls, num_rows: int) -> Upload:
        """Nothing but the number of rows."""
        return cls(UploadInfo(kind="counts", num_rows=num_rows), {})

    @classmethod
    def of_evaluation(cls, evaluation: Evaluation, *, num_rows: int) -> Upload:
        """How well a model predicts this many held-out rows."""
        info = UploadInfo(kind="evaluation", num_rows=num_rows, evaluation=evaluation)
        return cls(info, {})

    @classmethod
    def of_predictions(
        cls,
        predictive: Predictive,
        *,
        num_rows: int,
        class_rows: tuple[float, ...] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Upload:
        """Predictives on the reference inputs; ``dtype`` is what they travel in."""
        info = UploadInfo(kind="predictions", num_rows=num_rows, class_rows=class_rows)
        return cls(info, {name: a.to(dtype) for name, a in _to_arrays(predictive).items()})

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Tensor], *, num_rows: int) -> Upload:
        """Predictives that are arrays already."""
        return cls(UploadInfo(kind="predictions", num_rows=num_rows), dict(arrays))

    def from_site(self, name: str) -> Upload:
        """The same upload with its sender's name."""
        return self._told(site=name)

    def for_plan(self, digest: str, learner: str = "") -> Upload:
        """The same upload, made for the study with this plan."""
        return self._told(plan=digest, learner=learner)

    def reordered(self, order: Tensor) -> Upload:
        """Predictions with their rows in another order; what is no prediction has no rows."""
        if self.info.kind != "predictions":
            return self
        return dataclasses.replace(self, arrays={n: a[order] for n, a in self.arrays.items()})

    def samples(self) -> WeightSamples:
        """The weight samples of an upload of kind ``weights``."""
        self._require("weights")
        return WeightSamples.from_arrays(self.arrays)

    def delta(self) -> WeightSamples:
        """The change of an upload of kind ``delta``, as one sample."""
        self._require("delta")
        return WeightSamples.from_arrays(self.arrays)

    def predictive(self) -> Predictive:
        """The predictives of an upload of kind ``predictions``."""
        self._require("predictions")
        return _from_arrays({name: array.float() for name, array in self.arrays.items()})

    def digest(self) -> str:
        """SHA-256 of the content: metadata, then each array's name, type, shape and bytes."""
        content = hashlib.sha256(self.info.model_dump_json().encode())
        for name in sorted(self.arrays):
            array = self.arrays[name].cpu().contiguous()
            content.update(f"\n{name} {array.dtype} {tuple(array.shape)}\n".encode())
            content.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
        return content.hexdigest()

    def save(self, path: Path, key: SigningKey | Signature | None = None) -> None:
        """Write one safetensors file, signed if a key is given, or a signature made elsewhere."""
        arrays = {name: array.cpu().contiguous() for name, array in self.arrays.items()}
        metadata = {_INFO_KEY: self.info.model_dump_json()}
        if isinstance(key, SigningKey):
            key = Signature(key=key.public.hex, signature=key.sign(self.digest()))
        if key is not None:
            metadata[_SIGNATURE_KEY] = key.model_dump_json()
        save_file(arrays, path, metadata=metadata)
        _sort_metadata(path)

    @classmethod
    def load(cls, path: Path) -> Upload:
        """Read and check one safetensors file; its signature is the caller's to ask for."""
        declared, shown = Declared.read(path), printable(path.name)
        try:
            with safe_open(path, framework="pt") as file:
                arrays = {name: file.get_tensor(name) for name in declared.arrays}
        # The last two are of shapes that no tensor can have.
        except (SafetensorError, OSError, RuntimeError, TypeError) as error:
            why = printable(str(error))
            raise UploadError(f"{shown} cannot be read as an upload: {why}") from error
        # Two readers of one header: what was checked must be what was read.
        if {name: (a.dtype, tuple(a.shape)) for name, a in arrays.items()} != declared.arrays:
            raise UploadError(f"{shown} holds other arrays than it declares")
        return cls(declared.info, arrays)

    def _told(self, **fields: str) -> Upload:
        try:
            info = UploadInfo.model_validate(self.info.model_dump() | fields)
        except ValidationError as error:
            raise UploadError(_first_problem(error)) from error
        return dataclasses.replace(self, info=info)

    def _require(self, kind: str) -> None:
        if self.info.kind != kind:
            raise UploadError(f"site {self.info.site!r} sent {self.info.kind}, not {kind}")


def printable(text: str, most: int = _MAX_SHOWN) -> str:
    r"""A stranger's text for one line of a message: nothing that moves a cursor, and not for ever.

    Examples:
        >>> printable("a\nb\x1b[31m")
        'a?b?[31m'
        >>> printable("abcdef", most=3)
        'abc…'
    """
    line = "".join(c if c.isprintable() else "?" for c in text[:most])
    return line if len(text) <= most else f"{line}…"


def _to_arrays(predictive: Predictive) -> dict[str, Tensor]:
    match predictive.bounded(LOG_PROB_FLOOR):
        case Categorical(log_probs=log_probs):
            return {"log_probs": log_probs}
        case Gaussian(mean=mean, var=var, epistemic_var=epistemic_var):
            epistemic = torch.zeros_like(var) if epistemic_var is None else epistemic_var
            return {"mean": mean, "epistemic_var": epistemic, "noise_var": var - epistemic}
        case other:
            raise UploadError(f"{type(other).__name__} predictives have no wire format")


def _from_arrays(arrays: Mapping[str, Tensor]) -> Predictive:
    match sorted(arrays):
        case ["log_probs"] if arrays["log_probs"].ndim == 2:
            log_probs = arrays["log_probs"]
            excess = float(log_probs.logsumexp(-1).abs().max())
            if not excess <= 0.05:  # half precision is within .01; NaN is not
                raise UploadError("log_probs are not normalised: probabilities must sum to one")
            return Categorical(log_probs)
        case ["epistemic_var", "mean", "noise_var"] if len({a.shape for a in arrays.values()}) == 1:
            epistemic_var, noise_var = arrays["epistemic_var"], arrays["noise_var"]
            var = epistemic_var + noise_var
            positive = (epistemic_var >= 0) & (noise_var >= 0) & (var > 0)
            if arrays["mean"].ndim != 1 or not bool(positive.all()):
                raise UploadError("variances must be positive, one mean and two variances per row")
            return Gaussian(arrays["mean"], var, epistemic_var)
        case names:
            shown = printable(str(names))
            raise UploadError(f"arrays {shown} are not the predictions of any family")


def _sort_metadata(path: Path) -> None:
    """Put a file's metadata in order: the writer's is random, and equal uploads are equal bytes."""
    header = _read_header(path)
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        if len(text) <= length:  # as long as it was; a header is filled up with spaces
            file.write(text.ljust(length))


def _read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file, bounded before it is read."""
    shown = printable(path.name)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _MAX_HEADER_BYTES:
                raise UploadError(f"{shown} is not a safetensors file, or its header is huge")
            header = json.loads(file.read(length).decode(), object_pairs_hook=_distinct)
    except OSError as error:
        raise UploadError(f"cannot read {shown}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # neither text, nor JSON, nor flat
        raise UploadError(f"{shown} is not a safetensors file: {_NO_HEADER}") from error
    if not isinstance(header, dict):
        raise UploadError(f"{shown} is not a safetensors file: {_NO_HEADER}")
    return header


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a name that comes twice, readers take whichever they like."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name comes twice")
    return content


def _is_info(value: Any) -> bool:
    """Whether it may be metadata; of a long list of errors every one would be told."""
    return isinstance(value, str) and len(value) <= _MAX_INFO_CHARACTERS


def _spec(entry: Any, shown: str) -> Spec:
    """Type and shape that a header declares for an array."""
    known = isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}
    name, shape = (entry["dtype"], entry["shape"]) if known else ("", [])
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    is_shape = isinstance(shape, list) and all(type(size) is int for size in shape)
    if dtype is None or not is_shape or len(shape) > _MAX_DIMENSIONS:
        raise UploadError(f"{shown} declares an array of a type that no upload has")
    return dtype, tuple(shape)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "header"
    return f"{printable(where, 40)}: {printable(problem['msg'])}"
