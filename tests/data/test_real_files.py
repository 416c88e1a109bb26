"""The publishers' own files, from the folder in PREDBAYES_DATA."""

from __future__ import annotations

import pytest
import torch

from predbayes.data.files import data_root
from predbayes.data.images import load_mnist_like
from predbayes.data.tabular import load_table

pytestmark = pytest.mark.data


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_images(name):
    images = load_mnist_like(data_root() / name)
    assert images.train_inputs.shape == (60_000, 1, 28, 28)
    assert images.test_inputs.shape == (10_000, 1, 28, 28)
    assert images.train_targets.unique().tolist() == list(range(10))


@pytest.mark.parametrize(
    ("name", "num_rows", "num_features"), [("wine", 1599, 11), ("bike", 731, 11)]
)
def test_tables(name, num_rows, num_features, rng):
    table = load_table(name, data_root() / "uci", rng=rng)
    assert len(table.train_targets) + len(table.test_targets) == num_rows
    assert table.train_inputs.shape[1] == num_features
    assert bool(torch.isfinite(table.train_inputs).all())


def test_no_column_of_bike_gives_the_target_away(rng):
    """With `casual` and `registered` least squares has no error at all."""
    table = load_table("bike", data_root() / "uci", rng=rng)
    x = torch.cat([table.train_inputs, torch.ones(len(table.train_targets), 1)], -1)
    fit = torch.linalg.lstsq(x, table.train_targets.unsqueeze(-1)).solution
    assert float((x @ fit - table.train_targets.unsqueeze(-1)).square().mean()) > 0.1
