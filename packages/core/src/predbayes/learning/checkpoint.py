"""Where a fit stands, so that one that was killed goes on and ends at the same bits.

A checkpoint holds every number that the rest of a fit depends on: weights, momenta, samples taken,
and the state of every generator. It is written between epochs, at most every few seconds, to a
file that is there whole or not at all. A fit that is never interrupted does the same arithmetic
as one that is, so both give the same upload. Writing takes a twentieth of the time at most.

A checkpoint is of one fit: `identity` stands for the rows, the settings and the seed, and a file
of another one is ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from predbayes.errors import PredbayesError, TrainingError
from predbayes.files import write_whole
from predbayes.posterior.samples import SampleStack, WeightSamples, frozen_in
from predbayes.posterior.sghmc import SGHMC
from predbayes.seeding import device_state, restore_device

_LEAST_RATIO = 20  # of the time between two writes to the time of one
_EPOCH = "epoch"
_GENERATOR, _GLOBAL, _NOISE = "generator/own", "generator/global", "generator/noise"
_DEVICE = "generator/device"
_WEIGHTS, _SAMPLE, _MOMENTUM = "weights/", "samples/", "momentum/"


@dataclass(slots=True)
class Checkpoint:
    """A file for one fit.

    Args:
        path: Where it is kept; removed by whoever keeps the result.
        identity: Of the fit; see the module.
        every_seconds: Least time between two writes.
    """

    path: Path
    identity: str
    every_seconds: float = 2.0
    _last: float = field(default_factory=time.monotonic)
    _took: float = 0.0  # the last write

    def beside(self, name: str) -> Checkpoint:
        """Return the checkpoint of another fit that belongs to this one."""
        path = self.path.with_stem(f"{self.path.stem}-{name}")
        return Checkpoint(path, f"{self.identity} {name.replace('-', ' ')}", self.every_seconds)

    def read(self) -> dict[str, Tensor] | None:
        """Read what was kept of this fit, if anything."""
        try:
            with safe_open(self.path, framework="pt") as file:
                if (file.metadata() or {}).get("identity") != self.identity:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return None  # none yet, or damaged: the fit begins anew

    def after_epoch(self, done: int, content: Callable[[], Mapping[str, Tensor]]) -> None:
        """Keep what ``content`` gives if it is time."""
        began = time.monotonic()
        if began - self._last < max(self.every_seconds, _LEAST_RATIO * self._took):
            return
        tensors = {name: value.detach().cpu().contiguous() for name, value in content().items()}
        tensors[_EPOCH] = torch.tensor(done)
        told = {"identity": self.identity}
        write_whole(self.path, lambda partial: save_file(tensors, partial, metadata=told))
        self._last = time.monotonic()
        self._took = self._last - began


@dataclass(frozen=True, slots=True)
class SamplerProgress:
    """The parts of a running SGHMC fit, as tensors and back."""

    model: torch.nn.Module
    sampler: SGHMC
    samples: SampleStack
    rng: torch.Generator

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next step depends on."""
        found = {_WEIGHTS + name: value for name, value in self._weights().items()}
        for name, parameter in self.model.named_parameters():
            if "momentum" in (state := self.sampler.state[parameter]):
                found[_MOMENTUM + name] = state["momentum"]
        if len(self.samples):
            arrays = self.samples.taken().arrays()
            found |= {_SAMPLE + name: value for name, value in arrays.items()}
        found[_GENERATOR] = self.rng.get_state()
        found[_GLOBAL] = torch.get_rng_state()
        others = {_NOISE: self.sampler.noise_state(), _DEVICE: device_state(self._device)}
        return found | {name: state for name, state in others.items() if state is not None}

    def restore(self, kept: Mapping[str, Tensor]) -> int:
        """Put everything back, and return the number of epochs that are done."""
        with torch.no_grad():
            for name, value in self._weights().items():
                value.copy_(kept[_WEIGHTS + name])
            for name, parameter in self.model.named_parameters():
                if _MOMENTUM + name in kept:
                    momentum = kept[_MOMENTUM + name].to(parameter.device)
                    # In the parameter's layout, which the fused step takes for granted.
                    buffer = torch.empty_like(parameter, memory_format=torch.preserve_format)
                    self.sampler.state[parameter]["momentum"] = buffer.copy_(momentum)
        arrays = {n.removeprefix(_SAMPLE): v for n, v in kept.items() if n.startswith(_SAMPLE)}
        if arrays:
            taken = WeightSamples.from_arrays(arrays)
            self.samples.add(replace(taken, frozen=frozen_in(self.model)))
        if _NOISE in kept:
            self.sampler.restore_noise(self._device, kept[_NOISE])
        if _DEVICE in kept:
            restore_device(self._device, kept[_DEVICE])
        self.rng.set_state(kept[_GENERATOR])
        torch.set_rng_state(kept[_GLOBAL])
        return int(kept[_EPOCH])

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _weights(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}


def resume(checkpoint: Checkpoint | None, progress: SamplerProgress) -> int:
    """Put back what was kept of a fit, if anything; the number of epochs that are done."""
    kept = None if checkpoint is None else checkpoint.read()
    if checkpoint is None or kept is None:
        return 0
    try:
        return progress.restore(kept)
    except (KeyError, ValueError, TypeError, RuntimeError, PredbayesError) as error:
        raise TrainingError(
            f"{checkpoint.path} is not what training wrote; remove it, and train again"
        ) from error
