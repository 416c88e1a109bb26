"""A learner that fits each site once, whoever asks.

Methods compared on one split often want the same fit: mixture, product and beta the same posterior
samples, FedAvg, FedBE and OneShotFL the same networks. A site's randomness depends on its name, the
seed and the round, not on the method, so the fits are equal to the bit, and one is enough. With a
`FitStore` they are also there for methods that are thought of later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from predbayes.files import write_whole
from predbayes.learning.local import (
    GateLearner,
    NetworkLearner,
    NetworkPredictor,
    Predictor,
)
from predbayes.learning.training import Rows
from predbayes.posterior.effective import effective_samples
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Predictive


class Shared:
    """A learner whose fits to some sites' rows are kept.

    A fit is taken from memory when rows, generator state and start are the same; the generator is
    left where the fit would have left it. Other rows, and fits with further options, are not kept;
    a store, if there is one, has fits to any rows.
    """

    def __init__(self, learner: Any, sites: Iterable[Rows], store: FitStore | None = None) -> None:
        self._learner = learner
        self._store = store
        self._sites = {id(rows): rows for rows in sites}  # holds them, so that ids stay theirs
        self._fits: dict[tuple[int, str], tuple[Predictor, Tensor]] = {}

    def __getattr__(self, name: str) -> Any:
        # `network` and `device`, where the learner has them.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._learner, name)

    def gate_learner(self) -> GateLearner:
        """The learner of a gate; its fits are kept in the same store."""
        gate_learner: GateLearner = self._learner.gate_learner()
        part = "teller by class" if gate_learner.by_class else "binary"
        store = None if self._store is None else self._store.of(part)
        return replace(gate_learner, learner=Shared(gate_learner.learner, (), store))

    def fit(self, rows: Rows, *, rng: torch.Generator, **options: Any) -> Any:
        """Learn from a site's rows, or remember having done so."""
        special = {name for name, value in options.items() if value is not None} - {"start"}
        if special:
            return self._learner.fit(rows, rng=rng, **options)
        if id(rows) not in self._sites:
            return self._fit(rows, rng, options)
        key = (id(rows), _digest(rng, options.get("start")))
        if key not in self._fits:
            fitted = _Remembering(self._fit(rows, rng, options))
            self._fits[key] = (fitted, rng.get_state())
        predictor, state = self._fits[key]
        rng.set_state(state)
        return predictor

    def _fit(self, rows: Rows, rng: torch.Generator, options: dict[str, Any]) -> Any:
        if self._store is None:
            return self._learner.fit(rows, rng=rng, **options)
        return self._store.fit(self._learner, rows, rng=rng, **options)


class Watched:
    """A learner that remembers how many samples each of its fits is worth."""

    def __init__(self, learner: Any, per_cycle: int) -> None:
        self._learner = learner
        self._per_cycle = per_cycle
        self.effective: list[float] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._learner, name)

    def fit(self, rows: Rows, *, rng: torch.Generator, **options: Any) -> Any:
        """Learn from a site's rows, and count the samples."""
        fitted = self._learner.fit(rows, rng=rng, **options)
        self.effective.append(effective_samples(fitted.samples, self._per_cycle))
        return fitted


class FitStore:
    """Fits in a folder, one safetensors file each.

    A file's name is a hash of all that determines the fit: rows, generator state, start, and the
    ``identity``, which stands for the learner, its settings and its code. A file that is damaged is
    made anew. Only weight samples are stored, and rows in memory alone have a content to go by.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._identity = identity

    def of(self, part: str) -> FitStore:
        """The same folder for another learner that derives from this one."""
        return FitStore(self._folder, f"{self._identity} {part}")

    def fit(self, learner: Any, rows: Rows, *, rng: torch.Generator, **options: Any) -> Any:
        """Fit, or read an earlier fit; the generator ends in the same state either way."""
        if not isinstance(learner, NetworkLearner) or not _in_memory(rows):
            return learner.fit(rows, rng=rng, **options)
        path = self._path(rows, rng, options.get("start"))
        found = _read(path)
        if found is not None:
            samples, state = found
            rng.set_state(state)
            return _of(learner, samples)
        fitted = learner.fit(rows, rng=rng, **options)
        if isinstance(fitted, NetworkPredictor) and fitted == _of(learner, fitted.samples):
            _write(path, fitted.samples, rng.get_state())
        return fitted

    def _path(self, rows: Any, rng: torch.Generator, start: WeightSamples | None) -> Path:
        parts = (self._identity, *map(_remembered_digest, rows), _digest(rng, start))
        return self._folder / f"{hashlib.sha256('/'.join(parts).encode()).hexdigest()}.safetensors"


class _Remembering:
    """A predictor that keeps its predictives on the inputs last seen."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._last: tuple[Tensor, Predictive] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._predictor, name)

    def predict(self, inputs: Tensor) -> Predictive:
        """The wrapped predictor's predictives."""
        if self._last is None or self._last[0] is not inputs:
            self._last = (inputs, self._predictor.predict(inputs))
        return self._last[1]


def _digest(rng: torch.Generator, start: WeightSamples | None) -> str:
    content = hashlib.sha256(rng.get_state().numpy().tobytes())
    for vector in start.vectors() if start is not None else ():
        content.update(vector.numpy().tobytes())
    return content.hexdigest()


def _of(learner: NetworkLearner, samples: WeightSamples) -> NetworkPredictor:
    """What can be read back: a predictor that is no more than the learner's network and samples."""
    return NetworkPredictor(learner.network, samples, learner.device)


def _in_memory(rows: Rows) -> bool:
    return isinstance(rows, tuple) and all(isinstance(part, Tensor) for part in rows)


_digests = WeakTensorKeyDictionary()  # of tensors that are alive: a site's rows are asked for often


def _remembered_digest(value: Tensor) -> str:
    if value not in _digests:
        _digests[value] = _content_digest(value)
    return str(_digests[value])


def _content_digest(value: Tensor) -> str:
    """SHA-256 of a tensor, with its strides, on which the last bits of sums depend."""
    content = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} {value.stride()}\n".encode())
    content.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


_STATE = "generator"
_STRIDES, _SHA256 = "strides", "sha256"


def _write(path: Path, samples: WeightSamples, state: Tensor) -> None:
    arrays = samples.arrays()
    tensors = {n: v.clone(memory_format=torch.contiguous_format) for n, v in arrays.items()}
    tensors[_STATE] = state
    # A file has no strides, and weights that lie otherwise (channels last) predict other last bits.
    dense = {name: torch.empty_like(v, device="meta").stride() for name, v in arrays.items()}
    strides = json.dumps(dense)
    header = {_STRIDES: strides, _SHA256: _checksum(tensors, strides)}
    content = save(tensors, header)
    write_whole(path, lambda partial: partial.write_bytes(content), by_many=True)


def _read(path: Path) -> tuple[WeightSamples, Tensor] | None:
    """Samples and the generator's state after the fit; None if they are not there, or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (FileNotFoundError, SafetensorError):
        return None
    if header.get(_SHA256) != _checksum(tensors, header.get(_STRIDES, "")):
        return None
    strides = json.loads(header[_STRIDES])
    arrays = {name: _with_strides(tensors[name], stride) for name, stride in strides.items()}
    return WeightSamples.from_arrays(arrays), tensors[_STATE].clone()


def _checksum(tensors: Mapping[str, Tensor], strides: str) -> str:
    parts = [f"{name} {_content_digest(tensors[name])}" for name in sorted(tensors)]
    return hashlib.sha256("\n".join([strides, *parts]).encode()).hexdigest()


def _with_strides(value: Tensor, strides: Sequence[int]) -> Tensor:
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
