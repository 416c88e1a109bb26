"""What a site sends: named arrays and a little metadata, the same on disk and on any wire.

    weights       posterior samples: `parameter/NAME` and `buffer/NAME`, each (M, ...), or (1, ...)
                  where all samples share it, as weights of a frozen backbone
    delta         a change of the global weights, in the same arrays with M = 1
    predictions   on the reference inputs: `log_probs` (R, C), or `mean`, `epistemic_var` and
                  `noise_var` (R,)
    counts        no array: only how many rows the site has
    evaluation    no array: sums over held-out rows of how well a model predicts them
    moments       sums of products of agreed features and targets, as integers
    masked        the terms of predictions as words under masks (an extra)

Weights and predictions may come with a `gate` (R,): the logarithm of how much denser the site's
rows lie at each reference input than the reference rows do (`learning.gate`). Predictions may come
with sums of `moments` beside them.

With `predictions` any local model can take part and an upload is small; a predictive off the
reference inputs then exists only as the student.

On disk an upload is one safetensors file with the metadata in its header (`exchange.header`).
Reading one never runs code, and refuses with one line whatever can be refused without a plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor

from predbayes.errors import UploadError
from predbayes.exchange.header import (
    SUMS,
    Header,
    Signature,
    Spec,
    UploadInfo,
    first_problem,
    sorted_metadata,
    to_metadata,
)
from predbayes.files import read_at_most
from predbayes.posterior.samples import WeightSamples, let_go
from predbayes.predictive.families import (
    LOG_PROB_CEILING,
    LOG_PROB_FLOOR,
    VAR_FLOOR,
    Categorical,
    Gaussian,
    Predictive,
    Survival,
)
from predbayes.text import printable

GATE = "gate"
"""Name of the array that is the site's gate."""

_SMALL = 2**20  # bytes of a file
_LEAST_SUM, _LARGEST_SUM = math.exp(-0.05), math.exp(0.05)  # of probabilities


@dataclass(frozen=True)  # without slots, where the digest is kept
class Upload:
    """One site's whole contribution."""

    info: UploadInfo
    arrays: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            if array.is_floating_point() and not _is_finite(array):
                what = f"array {printable(name)!r} of site {self.info.site!r}"
                raise UploadError(f"{what} is not finite")
            let_go()

    @classmethod
    def of_weights(
        cls,
        samples: WeightSamples,
        *,
        num_rows: int,
        class_rows: tuple[float, ...] | None = None,
        gate: Tensor | None = None,
    ) -> Upload:
        """Posterior samples (Paper: alg:dBpredbayes, step 2)."""
        info = UploadInfo(kind="weights", num_rows=num_rows, class_rows=class_rows)
        return cls(info, {**samples.arrays(), **_gate_array(gate, torch.float32)})

    @classmethod
    def of_delta(cls, change: WeightSamples, *, num_rows: int) -> Upload:
        """One change of the global weights."""
        if len(change) != 1:
            raise UploadError(f"a site sends one change of the weights, not {len(change)}")
        return cls(UploadInfo(kind="delta", num_rows=num_rows), change.arrays())

    @classmethod
    def of_predictions(
        cls,
        predictive: Predictive,
        *,
        num_rows: int,
        class_rows: tuple[float, ...] | None = None,
        gate: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Upload:
        """Predictives on the reference inputs; ``dtype`` is what they travel in."""
        info = UploadInfo(kind="predictions", num_rows=num_rows, class_rows=class_rows)
        arrays = {name: array.to(dtype) for name, array in to_arrays(predictive).items()}
        return cls(info, {**arrays, **_gate_array(gate, dtype)})

    def named(self, site: str) -> Upload:
        """Return the same upload with its sender's name."""
        return self._told(site=site)

    def for_plan(self, digest: str, learner: str = "") -> Upload:
        """The same upload, made for the study with this plan."""
        return self._told(plan=digest, learner=learner)

    def with_details(self, **details: JsonValue) -> Upload:
        """The same upload, which says more by these names."""
        return self._told(details=self.info.details | details)

    def samples(self, kind: str = "weights") -> WeightSamples:
        """Return the weight samples of an upload of this kind; a ``delta`` is one sample."""
        if self.info.kind != kind:
            raise UploadError(f"site {self.info.site!r} sent {self.info.kind}, not {kind}")
        return WeightSamples.from_arrays(self._alone)

    def predictive(self) -> Predictive:
        """The predictives that the arrays are, whatever they are called; refuse other arrays."""
        return from_arrays(self._alone)

    @property
    def gate(self) -> Tensor | None:
        """The gate on the reference inputs, (R,) in float32, if the site sent one."""
        gate = self.arrays.get(GATE)
        if gate is not None and gate.ndim != 1:
            raise UploadError("a gate has one number per reference row")
        return None if gate is None else gate.float()

    @property
    def _alone(self) -> dict[str, Tensor]:
        """Without what may come beside it."""
        return {name: array for name, array in self.arrays.items() if name not in (GATE, SUMS)}

    def digest(self) -> str:
        """SHA-256 of the content: metadata, then each array's name, type, shape and bytes."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest_of(self.info.model_dump_json(), self.arrays)

    def to_bytes(self, signature: Signature | None = None) -> bytes:
        """Return one safetensors file, with a signature of its digest if one is given."""
        arrays = {name: array.cpu().contiguous() for name, array in self.arrays.items()}
        return sorted_metadata(save_bytes(arrays, metadata=to_metadata(self.info, signature)))

    def save(self, path: str | Path, signature: Signature | None = None) -> None:
        """Write the file of `to_bytes`."""
        Path(path).write_bytes(self.to_bytes(signature))

    @classmethod
    def load(cls, path: str | Path, header: Header | None = None) -> Upload:
        """Read and check one safetensors file; its signature is the caller's to ask for.

        Args:
            path: The file.
            header: Its header, if the caller has read it.
        """
        path = Path(path)
        shown = printable(path.name)
        content = small_content(path)
        if content is not None:  # to map it would take longer than to read it
            return cls._read(header or Header.of(content, shown), shown, content)
        return cls._read(header or Header.read(path), shown, path)

    @classmethod
    def of_bytes(cls, content: bytes, header: Header) -> Upload:
        """Read a file that is in memory, as `load` does."""
        return cls._read(header, "", content)

    @classmethod
    def _read(cls, header: Header, shown: str, source: Path | bytes) -> Upload:
        try:
            if isinstance(source, bytes):
                arrays = load_bytes(source)
            else:
                with safe_open(source, framework="pt") as file:
                    arrays = {name: file.get_tensor(name) for name in header.arrays}
        # The last three are of shapes that no tensor can have.
        except (SafetensorError, OSError, RuntimeError, TypeError, AssertionError) as error:
            why = printable(str(error))
            raise UploadError(f"it cannot be read as an upload: {why}", shown) from error
        # Two readers of one header: what was checked must be what was read.
        if {name: spec_of(array) for name, array in arrays.items()} != header.arrays:
            raise UploadError("it holds other arrays than it declares", shown)
        return cls(header.info, arrays)

    def _told(self, **fields: object) -> Upload:
        try:
            info = UploadInfo.model_validate(self.info.model_dump() | fields)
        except ValidationError as error:
            raise UploadError(first_problem(error)) from error
        return dataclasses.replace(self, info=info)


def digest_of(text: str, arrays: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text, then of each array's name, type, shape and bytes."""
    content = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name].cpu().contiguous()
        content.update(f"\n{name} {array.dtype} {tuple(array.shape)}\n".encode())
        content.update(array.reshape(-1).view(torch.uint8).numpy().data)
        let_go()
    return content.hexdigest()


def small_content(path: Path) -> bytes | None:
    """The bytes of a file, if it is small; whatever else is there is not read to its end."""
    try:
        return read_at_most(path, _SMALL)
    except OSError:
        return None  # reading its header will say why


def _is_finite(array: Tensor) -> bool:
    # Numerics: one pass; the least and the largest are no numbers if one is none.
    return not array.numel() or all(math.isfinite(bound.item()) for bound in array.aminmax())


def _gate_array(gate: Tensor | None, dtype: torch.dtype) -> dict[str, Tensor]:
    return {} if gate is None else {GATE: gate.to(dtype)}


def spec_of(array: Tensor) -> Spec:
    """Return the type and shape of an array."""
    return Spec(str(array.dtype).removeprefix("torch."), tuple(array.shape))


def to_arrays(predictive: Predictive) -> dict[str, Tensor]:
    """Return predictives as the arrays that travel and are kept."""
    match predictive.bounded(LOG_PROB_FLOOR):
        case Categorical(log_probs=log_probs):
            return {"log_probs": log_probs}
        case Gaussian(mean=mean, var=var, epistemic_var=epistemic_var):
            epistemic = torch.zeros_like(var) if epistemic_var is None else epistemic_var
            return {"mean": mean, "epistemic_var": epistemic, "noise_var": var - epistemic}
        case Survival(log_odds=log_odds):
            return {"log_odds": log_odds}
        case other:
            raise UploadError(f"{type(other).__name__} predictives have no wire format")


def from_arrays(sent: Mapping[str, Tensor]) -> Predictive:
    """Return the predictives of such arrays; refuse what no family can have sent."""
    arrays = {name: array.float() for name, array in sent.items()}
    match sorted(arrays):
        case ["log_probs"] if arrays["log_probs"].ndim == 2 and arrays["log_probs"].shape[1]:
            log_probs = arrays["log_probs"]
            if not len(log_probs):
                return Categorical(log_probs)  # of a site that held no row out
            least, most = map(float, log_probs.aminmax())
            if not LOG_PROB_FLOOR <= least <= most <= LOG_PROB_CEILING:
                raise UploadError(
                    "log_probs are not logarithms of probabilities, which are from "
                    f"{LOG_PROB_FLOOR:g} to 0"
                )
            # Numerics: of numbers so small no maximum need be taken out; a product with ones is
            # much quicker than a sum over so short rows.
            sums = log_probs.exp() @ log_probs.new_ones(log_probs.shape[1])
            low, high = map(float, sums.aminmax())
            # Half precision is within .01.
            if not _LEAST_SUM <= low <= high <= _LARGEST_SUM:
                raise UploadError("log_probs are not normalised: probabilities must sum to one")
            return Categorical(log_probs)
        case ["log_odds"] if arrays["log_odds"].ndim == 2 and arrays["log_odds"].shape[1]:
            log_odds = arrays["log_odds"]
            if len(log_odds) and not float(log_odds.abs().max()) <= -LOG_PROB_FLOOR:
                raise UploadError(
                    f"log_odds of hazards are not from {LOG_PROB_FLOOR:g} to {-LOG_PROB_FLOOR:g}"
                )
            return Survival(log_odds)
        case ["epistemic_var", "mean", "noise_var"] if len({a.shape for a in arrays.values()}) == 1:
            epistemic_var, noise_var = arrays["epistemic_var"], arrays["noise_var"]
            var = epistemic_var + noise_var
            # Numerics: a least variance that was split in two may have rounded to a little less.
            positive = (epistemic_var >= 0) & (noise_var >= 0) & (var > 0.999 * VAR_FLOOR)
            if arrays["mean"].ndim != 1 or not bool(positive.all()):
                raise UploadError(
                    "variances must be positive, one mean and two variances per row, and together "
                    f"no less than {VAR_FLOOR:g}"
                )
            return Gaussian(arrays["mean"], var, epistemic_var)
        case names:
            shown = printable(str(names))
            raise UploadError(f"arrays {shown} are not the predictions of any family")
