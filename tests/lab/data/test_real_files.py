"""The publishers' own files, from the folder in PREDBAYES_DATA."""

from __future__ import annotations

import pytest
import torch

from predbayes_lab.data.fetch import check
from predbayes_lab.data.files import data_root
from predbayes_lab.data.registry import count_rows, load
from predbayes_lab.released import label_skew_released

pytestmark = pytest.mark.data

ROWS = {
    # training rows, test rows, numbers per row, classes
    "mnist": (60_000, 10_000, 784, 10),
    "fashion-mnist": (60_000, 10_000, 784, 10),
    "cifar10": (50_000, 10_000, 3072, 10),
    "cifar100": (50_000, 10_000, 3072, 100),
    "airquality": (5553, 1388, 11, None),
    "bike": (585, 146, 11, None),
    "wine": (1279, 320, 11, None),
    "real-estate": (331, 83, 6, None),
    "forest-fires": (414, 103, 14, None),
    "heart": (486, 254, 15, 2),
}


ALWAYS = {"mnist", "bike", "wine", "heart"}
LONG = pytest.mark.slow("seconds of reading for each file")


def sets(names):
    """Names of datasets; those that take long to read are read with the slow tests."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[] if name in ALWAYS else [LONG]) for name in names]
    )


@sets(ROWS)
def test_files_are_the_publishers_and_have_all_rows(name):
    report = check(name, data_root())
    assert report.ok
    found = report.fingerprint
    assert (found.num_train, found.num_test, found.num_features, found.num_classes) == ROWS[name]
    assert count_rows(name, data_root()) == found.num_train + found.num_test
    verified = {file.state for file in report.files}
    assert verified == ({"unknown"} if name == "cifar100" else {"ok"})


@LONG
def test_emnist_says_which_split_it_is(rng):
    images = load("emnist-byclass", rng=rng)
    assert images.num_classes == 62
    sizes = (len(images.train_targets), len(images.test_targets))
    official = sizes == (697_932, 116_323)
    assert official or sizes == (100_000, 16_323)
    assert ("not the official training set" in images.fingerprint.note) == (not official)


@sets([name for name, rows in ROWS.items() if rows[3] is None])
class TestTables:
    def test_no_column_gives_the_target_away(self, name, rng):
        """With `casual` and `registered` least squares has no error at all."""
        dataset = load(name, rng=rng)
        assert residual_var(dataset) > 0.05


def residual_var(dataset):
    x = torch.cat([dataset.train_inputs, torch.ones(len(dataset.train_targets), 1)], -1).double()
    y = dataset.train_targets.double().unsqueeze(-1)
    fit = torch.linalg.lstsq(x, y, driver="gelsd").solution
    return float((x @ fit - y).square().mean())


def test_hospitals_have_the_rows_of_the_published_cohort(rng):
    heart = load("heart", rng=rng)
    train, test = heart.train_groups.bincount(), heart.test_groups.bincount()
    assert (train + test).tolist() == [303, 261, 46, 130]
    assert test.tolist() == [104, 89, 16, 45]
    assert heart.group_names == ("cleveland", "hungarian", "switzerland", "va")


@LONG
def test_released_clients_of_mnist_share_most_of_their_rows(rng):
    """As was measured on the released code at h = .9, where a client's classes run out."""
    targets = load("mnist", rng=rng).train_targets[:48_000]
    parts = label_skew_released(targets, 5, 0.9, rng=rng, shard_size=12_000)
    sizes = [len(part) for part in parts]
    assert 10_300 < min(sizes) < max(sizes) < 11_500
    assert len(torch.cat(parts).unique()) == 48_000
    assert all(torch.equal(part[-1199:], parts[0][-1199:]) for part in parts)
