"""What a site sends: named arrays and a little metadata, the same on disk and on any wire.

    weights       posterior samples: `parameter/NAME` and `buffer/NAME`, each (M, ...)
    delta         a change of the global weights, in the same arrays with M = 1
    predictions   on the reference inputs: `log_probs` (R, C), or `mean`, `epistemic_var` and
                  `noise_var` (R,)
    counts        no array: only how many rows the site has

With `predictions` any local model can take part and an upload is small; a predictive off the
reference inputs then exists only as the student. On disk an upload is one safetensors file with
the metadata in its header. Reading one never runs code, and checks everything that can be
checked without a plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from predbayes.errors import UploadError
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical, Gaussian, Predictive

_HEADER_KEY = "predbayes"


class UploadInfo(BaseModel):
    """The metadata of an upload; unknown fields and wrong types are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format_version: Literal[1] = 1
    kind: Literal["weights", "delta", "predictions", "counts"]
    num_rows: Annotated[int, Field(gt=0)]  # the site's rows, |D_k|
    class_rows: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    site: str = ""


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
        return dataclasses.replace(self, info=self.info.model_copy(update={"site": name}))

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

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        arrays = {name: array.cpu().contiguous() for name, array in self.arrays.items()}
        save_file(arrays, path, metadata={_HEADER_KEY: self.info.model_dump_json()})

    @classmethod
    def load(cls, path: Path) -> Upload:
        """Read and check one safetensors file."""
        try:
            with safe_open(path, framework="pt") as file:
                header = (file.metadata() or {}).get(_HEADER_KEY)
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UploadError(f"{path.name} cannot be read as an upload: {error}") from error
        if header is None:
            raise UploadError(f"{path.name} is a safetensors file, but not an upload of predbayes")
        try:
            info = UploadInfo.model_validate_json(header)
        except ValidationError as error:
            raise UploadError(f"{path.name}: {_first_problem(error)}") from error
        return cls(info, arrays)

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


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "header"
    return f"{where}: {problem['msg']}"
