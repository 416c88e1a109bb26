"""Randomness with an address: every generator derives from a seed and a path.

A study has one seed. The generator of site ``"basel"`` in round 0 is ``generator(seed, "site",
"basel", 0)``: it does not depend on who was asked first, on how many sites there are, or on what
was drawn elsewhere, so any part of a run can be repeated alone. Nothing in predbayes draws from
torch's global generator; modules written by others may, so they are built and trained `isolated`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, *path: str | int) -> int:
    """A 63-bit seed, a pure function of ``seed`` and ``path``.

    Examples:
        >>> derive_seed(0, "site", "basel") == derive_seed(0, "site", "basel")
        True
        >>> derive_seed(0, "site", 1) == derive_seed(0, "site", "1")
        False
    """
    text = "/".join(repr(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator at the address ``path`` under ``seed``."""
    rng = torch.Generator()
    rng.manual_seed(derive_seed(seed, *path))
    return rng


def draw_seed(rng: torch.Generator) -> int:
    """A fresh seed drawn from ``rng``, for something that keeps its randomness as a number."""
    return int(torch.randint(2**63 - 1, (), generator=rng, dtype=torch.int64))


def split(rng: torch.Generator, num: int) -> list[torch.Generator]:
    """``num`` independent generators drawn from ``rng``, one for each of several equal parts."""
    root = draw_seed(rng)
    return [generator(root, index) for index in range(num)]


def generator_on(device: torch.device, rng: torch.Generator) -> torch.Generator:
    """A generator for tensors on ``device``, seeded from ``rng``."""
    local = torch.Generator(device=device)
    local.manual_seed(draw_seed(rng))
    return local


def device_state(device: torch.device) -> torch.Tensor | None:
    """The state of torch's global generator of a device; None of the CPU, which has another one."""
    if device.type == "cpu":
        return None
    state: torch.Tensor = torch.get_device_module(device).get_rng_state(*_index(device))
    return state


def restore_device(device: torch.device, state: torch.Tensor) -> None:
    """Put torch's global generator of a device other than the CPU into a state."""
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state, *_index(device))


def _index(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # of which there is one


@contextmanager
def isolated(rng: torch.Generator, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator from ``rng`` inside the block and restore it after.

    Layers initialise their weights, and dropout draws its masks, from the global generator; there
    is no argument to pass another. This is the one place where predbayes touches it.

    Args:
        rng: Where the seed is drawn from.
        device: What else draws inside the block beside the CPU; other devices are left alone.
    """
    seed = draw_seed(rng)
    if device is None or device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            torch.manual_seed(seed)
            yield
