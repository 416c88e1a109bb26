from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest
import torch

from predbayes.errors import DataError
from predbayes.seeding import generator
from predbayes_lab.data.features import NUM_FILTERS, patch_features
from predbayes_lab.data.files import data_root, find_file, read_content
from predbayes_lab.data.images import parse_cifar, parse_idx
from predbayes_lab.data.registry import DATASETS, load
from tests.lab.data.publishers import write_cifar, write_idx, write_idx_set

EMNIST = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def assert_standardised(values):
    assert float(values.mean()) == pytest.approx(0, abs=1e-6)
    assert float(values.std(correction=0)) == pytest.approx(1, abs=1e-5)


@pytest.fixture
def mnist(tmp_path):
    write_idx_set(tmp_path / "mnist", ("train", "t10k"))
    return tmp_path


@pytest.fixture
def cifar(tmp_path):
    """Three rows per file; returns the root and all training pixels."""
    folder = tmp_path / "cifar-10-batches-bin"
    pixels = [
        write_cifar(folder / f"data_batch_{k}.bin", np.array([[k], [0], [9]]), k)
        for k in range(1, 6)
    ]
    write_cifar(folder / "test_batch.bin", np.array([[1], [2], [3]]), 6)
    return tmp_path, np.concatenate(pixels)


def test_images_are_scaled_by_the_training_pixels(mnist, rng):
    images = load("mnist", root=mnist, rng=rng)
    assert images.train_inputs.shape == (20, 1, 4, 3)
    assert images.train_inputs.dtype == torch.float32
    assert images.test_targets.tolist() == list(range(10))
    assert_standardised(images.train_inputs)
    assert abs(float(images.test_inputs.mean())) > 1e-3


def test_features_of_photographs_tell_what_is_in_them():
    """Stripes that lie or stand, at any phase: no linear rule for pixels, one for features."""
    rng = generator(0, "stripes")
    phase = 6.3 * torch.rand(400, 1, 1, 1, generator=rng)
    along = torch.arange(32.0).reshape(1, 1, 1, 32)
    lying = torch.arange(400) % 2 == 0
    images = torch.sin(along + phase).expand(400, 3, 32, 32)
    images = torch.where(lying.reshape(-1, 1, 1, 1), images.transpose(2, 3), images)
    images = images + 0.3 * torch.randn(400, 3, 32, 32, generator=rng)
    train, test = patch_features(images[:300], images[300:])
    assert train.shape == (300, 8 * NUM_FILTERS)
    assert float(train.mean(0).abs().max()) < 1e-4
    assert float(train.std(0).max()) == pytest.approx(1, abs=1e-3)
    signs = 2.0 * lying[:300] - 1
    weights = torch.linalg.solve(train.T @ train + 300 * torch.eye(len(train[0])), train.T @ signs)
    assert (test @ weights > 0).eq(lying[300:]).double().mean() > 0.95
    again, _ = patch_features(images[:300], images[:100])
    assert torch.equal(again, train)


def test_test_images_change_no_training_number(mnist, rng):
    before = load("mnist", root=mnist, rng=rng)
    write_idx(mnist / "mnist" / "t10k-images-idx3-ubyte", np.full((10, 4, 3), 255))
    after = load("mnist", root=mnist, rng=rng)
    assert torch.equal(before.train_inputs, after.train_inputs)
    assert not torch.equal(before.test_inputs, after.test_inputs)
    assert before.fingerprint.sha256 != after.fingerprint.sha256


def test_the_fingerprint_is_of_the_decompressed_files_in_order(mnist, rng):
    digest = hashlib.sha256()
    for file in DATASETS["mnist"].files:
        digest.update(read_content(find_file(mnist / "mnist", file)))
    assert load("mnist", root=mnist, rng=rng).fingerprint.as_dict() == {
        "name": "mnist",
        "variant": "default",
        "num_train": 20,
        "num_test": 10,
        "num_features": 12,
        "num_classes": 10,
        "sha256": digest.hexdigest(),
        "note": "",
    }


@pytest.mark.parametrize(("split", "num_classes"), EMNIST.items())
def test_emnist_labels_run_from_zero_and_its_images_are_turned_upright(
    split, num_classes, tmp_path, rng
):
    first = int(split == "letters")
    labels = range(first, first + num_classes)
    write_idx_set(tmp_path / "emnist", (f"emnist-{split}-train", f"emnist-{split}-test"), labels)
    images = load(f"emnist-{split}", root=tmp_path, rng=rng)
    assert images.num_classes == num_classes
    assert images.train_targets[:10].tolist() == list(range(10))
    stored = read_content(tmp_path / "emnist" / f"emnist-{split}-test-images-idx3-ubyte")
    pixels = torch.tensor(parse_idx(stored, "test")).transpose(1, 2).float()
    assert images.test_inputs.shape == (10, 1, 3, 4)
    order = images.test_inputs.flatten().argsort(stable=True)
    assert torch.equal(order, pixels.flatten().argsort(stable=True))


def test_an_emnist_copy_made_of_test_images_says_so(tmp_path, rng):
    folder = tmp_path / "emnist"
    folder.mkdir()
    for part, num in (("train", 100_000), ("test", 16_323)):
        prefix = folder / f"emnist-byclass-{part}"
        write_idx(prefix.with_name(f"{prefix.name}-images-idx3-ubyte"), np.ones((num, 1, 1)))
        write_idx(prefix.with_name(f"{prefix.name}-labels-idx1-ubyte"), np.zeros(num, int))
    note = load("emnist-byclass", root=tmp_path, rng=rng).fingerprint.note
    assert "official ByClass test set" in note
    assert "not the official training set" in note


def test_cifar_is_scaled_channel_by_channel(cifar, rng):
    root, pixels = cifar
    images = load("cifar10", root=root, rng=rng)
    assert images.train_inputs.shape == (15, 3, 32, 32)
    assert images.train_targets.tolist() == [k for i in range(1, 6) for k in (i, 0, 9)]
    assert images.test_targets.tolist() == [1, 2, 3]
    for channel in range(3):
        assert_standardised(images.train_inputs[:, channel])
    mean, std = pixels.mean((0, 2, 3), keepdims=True), pixels.std((0, 2, 3), keepdims=True)
    expected = torch.tensor((pixels - mean) / std, dtype=torch.float32)
    torch.testing.assert_close(images.train_inputs, expected)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="a is not an idx file"):
        parse_idx(b"PK\x03\x04", "a")
    write_idx(tmp_path / "b", np.zeros((3, 3)))
    with pytest.raises(DataError, match="b is cut short"):
        parse_idx(read_content(tmp_path / "b")[:-1], "b")
    with pytest.raises(DataError, match="c is cut short: its rows have 3073 bytes"):
        parse_cifar(bytes(3072), "c", 1)
    (tmp_path / "d.gz").write_bytes(gzip.compress(bytes(1000))[:-3])
    with pytest.raises(DataError, match=r"d\.gz is not a whole gzip file"):
        read_content(tmp_path / "d.gz")


def test_labels_that_fit_neither_the_images_nor_the_classes_are_refused(mnist, rng):
    labels = mnist / "mnist" / "t10k-labels-idx1-ubyte"
    write_idx(labels, np.zeros(9))
    with pytest.raises(DataError, match="10 test inputs but 9 targets"):
        load("mnist", root=mnist, rng=rng)
    write_idx(labels, np.full(10, 10))
    with pytest.raises(DataError, match="labels from 10 to 10 are not 10 classes"):
        load("mnist", root=mnist, rng=rng)
    write_idx(labels, np.zeros(0))
    write_idx(mnist / "mnist" / "t10k-images-idx3-ubyte", np.zeros((0, 4, 3)))
    with pytest.raises(DataError, match="no test rows"):
        load("mnist", root=mnist, rng=rng)


def test_missing_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no x in"):
        find_file(tmp_path, "x")
    monkeypatch.delenv("PREDBAYES_DATA", raising=False)
    with pytest.raises(DataError, match="set PREDBAYES_DATA"):
        data_root()
    monkeypatch.setenv("PREDBAYES_DATA", str(tmp_path))
    assert data_root() == tmp_path
