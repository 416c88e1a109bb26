"""A tiny dataset on disk in a publisher's format, and experiments that take seconds."""

from __future__ import annotations

import numpy as np
import pytest

from predbayes_lab import run

CONFIG = """
title = "a small one"
seeds = 2

[data]
name = "wine"

[partition]
kind = "sorted"
num-clients = 2

[network]
hidden = [5]

[optimizer]
num-epochs = 2
lr = 0.01

[sampler]
num-epochs = 10
batch-size = 20
step-size = 0.01
num-cycles = 2

[distillation]
num-epochs = 2

[methods.mixture]
[methods.beta]
student = true
[methods.fedavg]
"""


@pytest.fixture
def data_root(tmp_path, monkeypatch):
    """Two hundred wines of the red table's columns, whose quality depends on alcohol."""
    names = [
        "fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides",
        "free sulfur dioxide", "total sulfur dioxide", "density", "pH", "sulphates", "alcohol",
    ]  # fmt: skip
    draws = np.random.default_rng(0).normal(size=(200, len(names)))
    quality = np.round(5 + draws[:, -1]).astype(int)
    lines = [";".join([*names, "quality"])]
    lines += [
        ";".join([*(f"{v:.3f}" for v in row), str(q)])
        for row, q in zip(draws, quality, strict=True)
    ]
    folder = tmp_path / "data" / "uci"
    folder.mkdir(parents=True)
    (folder / "winequality-red.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("PREDBAYES_DATA", str(tmp_path / "data"))
    run._data_digest.cache_clear()  # of the real table, or of this one
    yield tmp_path / "data"
    run._data_digest.cache_clear()


@pytest.fixture
def config(tmp_path, data_root):
    """The path of a small experiment."""
    path = tmp_path / "small.toml"
    path.write_text(CONFIG)
    return path
