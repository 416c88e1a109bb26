"""Image sets: the idx files of MNIST and its relatives, and the binary files of CIFAR.

Pixels are scaled to zero mean and unit variance per channel over the training images.

EMNIST's publisher stores images transposed; they are turned upright here, so that a network sees
its digits as it sees MNIST's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes_lab.data.dataset import Dataset, RawFiles
from predbayes_lab.data.features import patch_features
from predbayes_lab.data.files import find_file, open_file

Bytes: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

FEATURES = "features"
"""The variant of CIFAR whose inputs are frozen features in place of pixels."""

_IDX_UINT8 = 8
_CIFAR_SHAPE = (3, 32, 32)


def read_idx_set(
    raw: RawFiles, *, num_classes: int, first_label: int = 0, transposed: bool = False
) -> Dataset:
    """Read MNIST or a relative: training images and labels, then test images and labels."""
    arrays = [parse_idx(content, name) for name, content in raw.contents.items()]
    train_images, train_labels, test_images, test_labels = arrays
    if transposed:
        train_images, test_images = train_images.swapaxes(1, 2), test_images.swapaxes(1, 2)
    train_inputs, test_inputs = _scaled(train_images[:, None], test_images[:, None])
    note = _resplit_note(raw.name, len(train_inputs), len(test_inputs))
    train = (train_inputs, _labels(train_labels) - first_label)
    test = (test_inputs, _labels(test_labels) - first_label)
    return raw.dataset(train, test, num_classes, note)


def parse_idx(content: bytes, name: str) -> Bytes:
    """Parse bytes in the idx format: two zeros, type, rank, sizes big-endian, then data."""
    if len(content) < 4 or content[:3] != bytes([0, 0, _IDX_UINT8]):
        raise DataError(f"{name} is not an idx file of bytes")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise DataError(f"{name} is cut short: its header promises {shape}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_cifar(raw: RawFiles, *, num_classes: int, num_labels: int) -> Dataset:
    """Read CIFAR's files, the test file last: ``num_labels`` labels, the finest last, and pixels.

    A CIFAR-10 row has one label. A CIFAR-100 row has a coarse one, which is not used, and a fine
    one.
    """
    parts = [parse_cifar(content, name, num_labels) for name, content in raw.contents.items()]
    both = (np.concatenate(parts[:-1]), parts[-1])
    inputs = _scaled(*(rows[:, num_labels:].reshape(-1, *_CIFAR_SHAPE) for rows in both))
    if raw.variant == FEATURES:
        inputs = patch_features(*inputs)
    labels = (_labels(rows[:, num_labels - 1]) for rows in both)
    train, test = zip(inputs, labels, strict=True)
    coarse = both[0][:, : num_labels - 1]
    note = "" if coarse.any() or num_labels == 1 else "not the publisher's files: no coarse labels"
    return raw.dataset(train, test, num_classes, note)


def parse_cifar(content: bytes, name: str, num_labels: int) -> Bytes:
    """Parse rows of bytes: labels, then 32 x 32 red, green and blue pixels."""
    size = num_labels + math.prod(_CIFAR_SHAPE)
    if not content or len(content) % size:
        raise DataError(f"{name} is cut short: its rows have {size} bytes")
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, size)


def count_idx(folder: Path, names: Sequence[str]) -> int:
    """Count the rows of an idx set, from the headers of its label files."""
    num_rows = 0
    for name in names:
        if "labels" in name:
            with open_file(find_file(folder, name)) as file:
                num_rows += int.from_bytes(file.read(8)[4:], "big")
    return num_rows


def count_cifar(folder: Path, names: Sequence[str], *, num_labels: int) -> int:
    """Count the rows of CIFAR's files, from their sizes."""
    num_bytes = 0
    for name in names:
        with open_file(find_file(folder, name)) as file:
            num_bytes += file.seek(0, os.SEEK_END)
    return num_bytes // (num_labels + math.prod(_CIFAR_SHAPE))


def _scaled(train: Bytes, test: Bytes) -> tuple[Tensor, Tensor]:
    """Both parts in standard deviations of the training part's pixels, channel by channel."""
    parts = [torch.empty(images.shape) for images in (train, test)]
    for channel in range(train.shape[1]):
        pixels = train[:, channel].astype(np.float32)
        mean, std = float(pixels.mean()), float(pixels.std()) or 1.0
        for scaled, images in zip(parts, (train, test), strict=True):
            values = (images[:, channel].astype(np.float32) - mean) / std
            scaled[:, channel] = torch.from_numpy(values)
    return parts[0], parts[1]


def _labels(labels: Bytes) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _resplit_note(name: str, num_train: int, num_test: int) -> str:
    """Some copies of EMNIST ByClass hold its test images only; no figure may hide that."""
    if name == "emnist-byclass" and (num_train, num_test) == (100_000, 16_323):
        return (
            "the official ByClass test set of 116,323 images, re-split 100,000 / 16,323; "
            "not the official training set"
        )
    return ""
