"""Image sets in the idx format of MNIST and its relatives, as their publishers offer them."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from predbayes.data.files import find_file
from predbayes.errors import DataError

_IDX_UINT8 = 8


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Images scaled to zero mean and unit variance over the training pixels, with class indices."""

    train_inputs: Tensor  # (N, channels, height, width) float32
    train_targets: Tensor  # (N,) int64
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int


def load_mnist_like(folder: Path, *, num_classes: int = 10) -> ImageSet:
    """MNIST, Fashion-MNIST, or any set with their four file names, plain or gzipped."""
    parts = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
        parts[split] = (
            read_idx(find_file(folder, images, f"{images}.gz")),
            read_idx(find_file(folder, labels, f"{labels}.gz")),
        )
    train_pixels = parts["train"][0].astype(np.float32)
    mean, std = float(train_pixels.mean()), float(train_pixels.std())

    def inputs(split: str) -> Tensor:
        scaled = (parts[split][0].astype(np.float32) - mean) / std
        return torch.from_numpy(scaled).unsqueeze(1)

    def targets(split: str) -> Tensor:
        return torch.from_numpy(parts[split][1].astype(np.int64))

    return ImageSet(inputs("train"), targets("train"), inputs("test"), targets("test"), num_classes)


def read_idx(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An array of bytes in the idx format: two zeros, type, rank, sizes big-endian, then data."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        content = file.read()
    if len(content) < 4 or content[:3] != bytes([0, 0, _IDX_UINT8]):
        raise DataError(f"{path.name} is not an idx file of bytes")
    rank = content[3]
    start = 4 + 4 * rank
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path.name} is cut short: its header promises {shape}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
