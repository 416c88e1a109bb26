"""Datasets of one's own, by their import string."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from predbayes.errors import ExperimentError
from predbayes.seeding import generator
from predbayes_lab.config import DataSettings, load_experiment
from predbayes_lab.datasets import load_dataset
from predbayes_lab.run import plan, run_methods
from predbayes_lab.tables import overlap_of
from predbayes_lab.world import make_world

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_dataset.py"
CONFIG = """
[data]
name = "own_dataset:load"
[partition]
kind = "groups"
[network]
hidden = [4]
[optimizer]
num-epochs = 2
[methods.mixture]
learner = "optimizer"
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    (tmp_path / "mine.toml").write_text(CONFIG)
    return load_experiment(str(tmp_path / "mine.toml"))


def loaded(function, monkeypatch, **settings):
    """A dataset of a function, in a module of its own."""
    module = type(sys)("mine")
    module.load = function
    monkeypatch.setitem(sys.modules, "mine", module)
    return load_dataset(DataSettings("mine:load", **settings), rng=generator(0))


X, Y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])


def test_an_experiment_runs_on_it_by_the_sites_it_names(experiment):
    runs = plan(experiment, [0, 1])
    (first, _), (second, _) = run_methods(experiment, runs)
    assert first.data["name"] == "own_dataset:load"
    assert (first.data["num_train"], first.data["num_test"]) == (320, 80)
    assert first.scores["nll"] != second.scores["nll"]
    settings = experiment.settings({}, "mixture")
    assert set(make_world(settings, 0).sites) == {"clinic 0", "clinic 1"}


def test_a_table_knows_that_every_seed_draws_its_test_rows(experiment):
    (record, _), *_ = run_methods(experiment, plan(experiment, [0]))
    assert overlap_of(record) == 80 / 320


def test_arrays_are_classes_or_numbers(monkeypatch):
    classes = loaded(lambda rng: ((X, Y), (X[:2], Y[:2])), monkeypatch)
    assert classes.num_classes == 3
    assert classes.train_inputs.dtype == torch.float32
    assert classes.train_groups is None
    numbers = loaded(lambda rng: ((X, Y / 2), (X[:2], Y[:2] / 2)), monkeypatch)
    assert numbers.num_classes is None
    assert numbers.fingerprint.sha256 != classes.fingerprint.sha256


def test_other_rows_are_other_runs(experiment, monkeypatch):
    (before,) = plan(experiment, [0])
    other = lambda rng: ((X, Y % 2), (X, Y % 2), list("aabbab"))  # noqa: E731
    loaded(other, monkeypatch)
    settings = experiment.settings({}, "mixture")
    assert before.config["data-sha256"] == make_digest(settings.data)
    assert before.config["data-sha256"] != make_digest(DataSettings("mine:load"))


def make_digest(data):
    return load_dataset(data, rng=generator(0)).fingerprint.sha256


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rng: X, "^mine:load returned ndarray; it must return training and test rows"),
        (lambda rng: ((X, Y), (X, Y), Y[:3]), r"6 training rows with sites of shape \(3,\)"),
        (lambda rng: ((X, Y), (X[:, :1], Y)), r"inputs have shapes \(2,\) and \(1,\)"),
        (lambda rng: ((X, Y), (X[:0], Y[:0])), "6 training rows and 0 test rows"),
        (lambda rng: (X, Y, Y), "^mine:load: a site's rows are a pair"),
        (lambda rng: ((X, ["a"] * 6), (X, Y)), "^mine:load: targets are <U1, not numbers"),
    ],
)
def test_what_is_no_dataset_is_refused_in_one_line(function, said, monkeypatch):
    with pytest.raises(ExperimentError, match=said) as error:
        loaded(function, monkeypatch)
    assert "\n" not in str(error.value)
