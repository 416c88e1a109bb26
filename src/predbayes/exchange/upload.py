"""What a site sends: named arrays and a little metadata, the same on disk and on any wire.

    weights       posterior samples: `parameter/NAME` and `buffer/NAME`, each (M, ...)
    delta         a change of the global weights, in the same arrays with M = 1
    predictions   on the reference inputs: `log_probs` (R, C), or `mean`, `epistemic_var` and
                  `noise_var` (R,)
    counts        no array: only how many rows the site has

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
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from predbayes.errors import UploadError
from predbayes.exchange.signing import PublicKey, SigningKey
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical, Gaussian, Predictive

_INFO_KEY, _SIGNATURE_KEY = "predbayes", "signature"
_MAX_HEADER_BYTES = 1_000_000  # names and shapes of thousands of arrays
_DTYPES = {
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,  # counters of batch normalisation
}
SITE_PATTERN = r"^\w[\w .-]{0,63}$"
"""What a site may be called, for it stands in ledgers, in reports and on terminals."""

Spec = tuple[torch.dtype, tuple[int, ...]]
"""Type and shape of an array."""


class UploadInfo(BaseModel):
    """The metadata of an upload; unknown fields and wrong types are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format_version: Literal[1] = 1
    kind: Literal["weights", "delta", "predictions", "counts"]
    num_rows: Annotated[int, Field(gt=0)]  # the site's rows, |D_k|
    class_rows: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    site: Annotated[str, Field(pattern=f"^$|{SITE_PATTERN}")] = ""
    plan: Annotated[str, Field(pattern="^$|^[0-9a-f]{64}$")] = ""  # digest of the study's plan
    learner: Annotated[str, Field(pattern="^[A-Za-z0-9 ._-]{0,64}$")] = ""  # what the site fitted


class Signature(BaseModel):
    """Who signed the digest of an upload's content."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]

    def verifies(self, digest: str) -> bool:
        """Whether it is that key's signature of this digest."""
        return PublicKey(self.key).verifies(digest, self.signature)


@dataclass(frozen=True, slots=True)
class Declared:
    """What the header of a file says: nothing of it is checked against the arrays yet."""

    info: UploadInfo
    signature: Signature | None
    arrays: Mapping[str, Spec]

    @classmethod
    def read(cls, path: Path) -> Declared:
        """Read the header alone, whatever the file is."""
        header = _read_header(path)
        metadata = header.pop("__metadata__", None)
        if not isinstance(metadata, dict) or _INFO_KEY not in metadata:
            raise UploadError(f"{path.name} is a safetensors file, but not an upload of predbayes")
        unknown = set(metadata) - {_INFO_KEY, _SIGNATURE_KEY}
        if unknown or not all(isinstance(value, str) for value in metadata.values()):
            raise UploadError(f"{path.name} has metadata that no upload has")
        try:
            info = UploadInfo.model_validate_json(metadata[_INFO_KEY])
            signed = metadata.get(_SIGNATURE_KEY)
            signature = None if signed is None else Signature.model_validate_json(signed)
        except ValidationError as error:
            raise UploadError(f"{path.name}: {_first_problem(error)}") from error
        return cls(info, signature, {name: _spec(header[name], path) for name in header})


@dataclass(frozen=True, slots=True)
class Upload:
    """One site's whole contribution."""

    info: UploadInfo
    arrays: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            if array.is_floating_point() and not bool(array.isfinite().all()):
                raise UploadError(f"array {name!r} of site {self.info.site!r} is not finite")

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

    def save(self, path: Path, key: SigningKey | None = None) -> None:
        """Write one safetensors file, signed if a key is given."""
        arrays = {name: array.cpu().contiguous() for name, array in self.arrays.items()}
        metadata = {_INFO_KEY: self.info.model_dump_json()}
        if key is not None:
            signed = Signature(key=key.public.hex, signature=key.sign(self.digest()))
            metadata[_SIGNATURE_KEY] = signed.model_dump_json()
        save_file(arrays, path, metadata=metadata)

    @classmethod
    def load(cls, path: Path) -> Upload:
        """Read and check one safetensors file; its signature is the caller's to ask for."""
        declared = Declared.read(path)
        try:
            with safe_open(path, framework="pt") as file:
                arrays = {name: file.get_tensor(name) for name in declared.arrays}
        except (SafetensorError, OSError) as error:
            raise UploadError(f"{path.name} cannot be read as an upload: {_line(error)}") from error
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
            epistemic_var = arrays["epistemic_var"]
            var = epistemic_var + arrays["noise_var"]
            if arrays["mean"].ndim != 1 or not bool((epistemic_var >= 0).all() and (var > 0).all()):
                raise UploadError("variances must be positive, one mean and two variances per row")
            return Gaussian(arrays["mean"], var, epistemic_var)
        case names:
            raise UploadError(f"arrays {names} are not the predictions of any family")


def _read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file, bounded before it is read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _MAX_HEADER_BYTES:
                raise UploadError(f"{path.name} is not a safetensors file, or its header is huge")
            header = json.loads(file.read(length))
    except OSError as error:
        raise UploadError(f"cannot read {path.name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # neither text, nor JSON, nor flat
        raise UploadError(f"{path.name} is not a safetensors file: no header") from error
    if not isinstance(header, dict):
        raise UploadError(f"{path.name} is not a safetensors file: no header")
    return header


def _spec(entry: Any, path: Path) -> Spec:
    """Type and shape that a header declares for an array."""
    dtype = _DTYPES.get(entry.get("dtype", "")) if isinstance(entry, dict) else None
    shape = entry.get("shape") if dtype is not None else None
    if dtype is None or not isinstance(shape, list) or not all(type(n) is int for n in shape):
        raise UploadError(f"{path.name} declares an array of a type that no upload has")
    return dtype, tuple(shape)


def _line(error: Exception) -> str:
    """The first line of a message, without what a file's author could have put there."""
    text = str(error).split("\n")[0]
    return "".join(c for c in text if c.isascii() and c.isprintable())[:200]


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "header"
    return f"{where}: {problem['msg']}"
