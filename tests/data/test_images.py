from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from predbayes.data.files import data_root, find_file
from predbayes.data.images import load_mnist_like, read_idx
from predbayes.errors import DataError


def write_idx(path: Path, array: np.ndarray, *, compress: bool = False) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if compress else content)


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    for prefix, num, compress in (("train", 20, True), ("t10k", 5, False)):
        suffix = ".gz" if compress else ""
        images, labels = draw.integers(0, 256, (num, 4, 3)), draw.integers(0, 10, num)
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte{suffix}", images, compress=compress)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte{suffix}", labels, compress=compress)
    return tmp_path


def test_images_are_scaled_by_the_training_pixels(folder):
    images = load_mnist_like(folder)
    assert images.train_inputs.shape == (20, 1, 4, 3)
    assert images.test_targets.shape == (5,)
    assert float(images.train_inputs.mean()) == pytest.approx(0, abs=1e-6)
    assert float(images.train_inputs.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert abs(float(images.test_inputs.mean())) > 1e-3


def test_bytes_come_back(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "a", array)
    np.testing.assert_array_equal(read_idx(tmp_path / "a"), array)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="not an idx file"):
        read_idx(tmp_path / "a")
    write_idx(tmp_path / "b", np.zeros((3, 3)))
    (tmp_path / "b").write_bytes((tmp_path / "b").read_bytes()[:-1])
    with pytest.raises(DataError, match="cut short"):
        read_idx(tmp_path / "b")


def test_missing_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no x or y in"):
        find_file(tmp_path, "x", "y")
    monkeypatch.delenv("PREDBAYES_DATA", raising=False)
    with pytest.raises(DataError, match="set PREDBAYES_DATA"):
        data_root()
    monkeypatch.setenv("PREDBAYES_DATA", str(tmp_path))
    assert data_root() == tmp_path
