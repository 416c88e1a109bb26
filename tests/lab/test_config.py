"""Experiments: which settings hold where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predbayes.errors import ExperimentError, PredbayesError
from predbayes_lab.config import (
    StudentSettings,
    load_experiment,
    parse_seeds,
    resolved,
    shipped,
)
from predbayes_lab.methods import find_method

CONFIG = """
title = "a test"
seeds = 2

[sampler]
step-size = 0.3

[axes]
"data.name" = ["wine", "bike"]
"partition.heterogeneity" = [0.0, 0.9]

[[override]]
where = { "data.name" = "bike" }
set = { "sampler.step-size" = 0.4, "optimizer.lr" = 0.4 }

[[override]]
where = { "data.name" = ["bike"], "partition.heterogeneity" = 0.9 }
methods = ["fedprox"]
set = { "optimizer.lr" = 0.5, "options.proximal" = 0.25 }

[methods.beta]
student = true
set = { "sampler.step-size" = 0.6 }
[methods.mixture]
[methods.fedprox]
options = { proximal = 0.125 }
set = { "optimizer.lr" = 0.45 }
"""


@pytest.fixture
def write(tmp_path):
    def to_file(text=CONFIG):
        path = tmp_path / "trial.toml"
        path.write_text(text)
        return str(path)

    return to_file


def test_cells_are_all_combinations_of_the_axes(write):
    experiment = load_experiment(write())
    assert experiment.name == "trial"
    assert experiment.seeds == (0, 1)
    assert [tuple(cell.values()) for cell in experiment.cells()] == [
        ("wine", 0.0),
        ("wine", 0.9),
        ("bike", 0.0),
        ("bike", 0.9),
    ]


def test_later_settings_win(write):
    """File, axes, overrides, the method's own, overrides for the method, the command line."""
    experiment = load_experiment(write())
    wine, _, _, bike = experiment.cells()
    assert experiment.settings(wine, "mixture").sampler.step_size == 0.3
    assert experiment.settings(bike, "mixture").sampler.step_size == 0.4
    assert experiment.settings(bike, "beta").sampler.step_size == 0.6
    assert experiment.settings(bike, "mixture").optimizer.lr == 0.4
    assert experiment.settings(wine, "fedprox").optimizer.lr == 0.45
    assert experiment.settings(bike, "fedprox").optimizer.lr == 0.5
    assert experiment.settings(bike, "beta").partition.heterogeneity == 0.9
    final = load_experiment(write(), assignments=["sampler.step-size=0.7"])
    assert final.settings(bike, "beta").sampler.step_size == 0.7


def test_options_of_a_method_may_depend_on_the_cell(write):
    experiment = load_experiment(write())
    wine, _, _, bike = experiment.cells()
    assert experiment.method(wine, "fedprox").options == {"proximal": 0.125}
    assert experiment.method(bike, "fedprox").options == {"proximal": 0.25}
    assert experiment.method(bike, "fedprox").method == "fedprox"


def test_an_assignment_to_an_axis_leaves_those_values(write):
    experiment = load_experiment(write(), assignments=["data.name=wine"])
    assert [cell["data.name"] for cell in experiment.cells()] == ["wine", "wine"]
    both = load_experiment(write(), assignments=["partition.heterogeneity=[0.5]"])
    assert {cell["partition.heterogeneity"] for cell in both.cells()} == {0.5}


def test_overrides_see_defaults_and_the_command_line(write):
    text = """
    [data]
    name = "wine"
    [methods.fedavg]
    [[override]]
    where = { "partition.num-clients" = 5 }
    set = { "optimizer.lr" = 0.5 }
    [[override]]
    where = { "data.name" = "bike" }
    set = { "optimizer.num-epochs" = 7 }
    """
    assert load_experiment(write(text)).settings({}, "fedavg").optimizer.lr == 0.5
    chosen = load_experiment(write(text), assignments=["data.name=bike", "partition.num-clients=3"])
    assert chosen.settings({}, "fedavg").optimizer.num_epochs == 7
    assert chosen.settings({}, "fedavg").optimizer.lr == 0.1


def test_grids_make_variants(write):
    grid = 'grid = { "optimizer.lr" = [0.1, 0.01], "options.proximal" = [1.0, 2.0] }'
    experiment = load_experiment(write(f"[data]\nname='wine'\n[methods.fedprox]\n{grid}\n"))
    assert list(experiment.methods) == [
        "fedprox[optimizer.lr=0.1,options.proximal=1.0]",
        "fedprox[optimizer.lr=0.1,options.proximal=2.0]",
        "fedprox[optimizer.lr=0.01,options.proximal=1.0]",
        "fedprox[optimizer.lr=0.01,options.proximal=2.0]",
    ]
    (cell,) = experiment.cells()
    last = list(experiment.methods)[-1]
    assert experiment.settings(cell, last).optimizer.lr == 0.01
    assert experiment.method(cell, last).options == {"proximal": 2.0}
    assert experiment.method(cell, last).method == "fedprox"


def test_the_last_one_wins_also_over_a_whole_table_between(write):
    text = """
    [data]
    name = "wine"
    [methods.beta]
    set.sampler = { num-epochs = 200, step-size = 0.3 }
    [[override]]
    where = { "data.name" = "wine" }
    set = { "sampler.num-epochs" = 100 }
    [[override]]
    where = { "data.name" = "wine" }
    methods = ["beta"]
    set = { "sampler.num-epochs" = 50 }
    """
    sampler = load_experiment(write(text)).settings({}, "beta").sampler
    assert (sampler.num_epochs, sampler.step_size) == (50, 0.3)


BETA = "[data]\nname = 'wine'\n[methods.beta]\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("title = 'x'\n", "methods"),
        ("[methods.beta]\n", "data needs name"),
        ("[data]\nname = 'vine'\n[methods.beta]\n", "'wine'"),
        (BETA + "num-rounds = 2\n", "one round"),
        (BETA + "num-rounds = 0\n", "num-rounds"),
        (BETA + "grid = { 'optimizer.lr' = [] }\n", "'optimizer.lr'"),
        (BETA + "students = true\n", "'methods.beta.students'"),
        (BETA + "[method.beta]\n", r"trial\.toml: no key 'method'"),
        ("seeds = ['a']\n" + BETA, "seeds"),
        ("evaluate = 'tset'\n" + BETA, "evaluate = 'tset'"),
        (BETA + "[axes]\n'data.name' = 'wine'\n", "list"),
        (BETA + "[axes]\n'data.nam' = ['wine']\n", "'data.nam'"),
        (BETA + "[sampler]\npreset = 'tunde'\n", "'tunde'"),
        (BETA + "[reference]\nfraction = 2.0\n", "fraction"),
        (BETA + "[[override]]\nwhere={}\nset={}\nmethods=['bta']\n", "'bta'"),
        (BETA + "[[override]]\nset={}\n", "where"),
        (BETA + "[[override]]\nwhere={'data.nme'='wine'}\nset={}\n", "'data.nme'"),
    ],
)
def test_mistakes_show_before_the_first_run(write, text, named):
    with pytest.raises(PredbayesError, match=named):
        load_experiment(write(text))


class TestStudent:
    """The section [student]."""

    def settings(self, write, text="", label="beta"):
        head = "[data]\nname = 'wine'\n"
        return load_experiment(write(head + text)).settings({}, label)

    def test_it_may_have_other_widths_than_the_sites(self, write):
        text = "[network]\nhidden = [7]\n[student]\nhidden = [30, 20]\n[methods.beta]\n"
        settings = self.settings(write, text)
        assert settings.network.hidden == (7,)
        assert settings.student_network == replace(settings.network, hidden=(30, 20))
        assert resolved(settings)["student"]["hidden"] == [30, 20]

    def test_a_method_may_have_its_own(self, write):
        text = """
        [methods.beta]
        [methods.calibrated]
        method = "beta"
        set = { "student.recalibrate" = true, "student.hidden" = [50] }
        """
        assert not self.settings(write, text).student.recalibrate
        calibrated = self.settings(write, text, "calibrated")
        assert calibrated.student == StudentSettings((50,), recalibrate=True)

    def test_other_widths_are_of_a_multilayer_perceptron(self, write):
        text = "[student]\nhidden = [9]\n[network]\nkind = 'cnn'\n[methods.beta]\n"
        with pytest.raises(ExperimentError, match=r"network\.kind"):
            self.settings(write, text)


@pytest.mark.parametrize("name", list(shipped()))
class TestShipped:
    def test_it_is_sound(self, name):
        experiment = load_experiment(name)
        assert experiment.title
        for cell in experiment.cells():
            for label in experiment.methods:
                find_method(experiment.method(cell, label).method)
                assert resolved(experiment.settings(cell, label))

    def test_overrides_all_hold_somewhere(self, name):
        """An override that never matches is a mistake in its `where`."""
        experiment = load_experiment(name)
        for override in experiment.overrides:
            assert any(
                override.holds(experiment._decoded(cell), label)
                for cell in experiment.cells()
                for label in experiment.methods
            ), override


@pytest.mark.parametrize(("text", "seeds"), [("3", (3,)), ("0-2", (0, 1, 2)), ("1,4-5", (1, 4, 5))])
def test_seeds_are_numbers_and_ranges(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["a", "", "5-2", "-1", "0-99999999999", "1.5"])
def test_seeds_that_are_none_are_refused(text):
    with pytest.raises(ExperimentError, match="seeds are given like"):
        parse_seeds(text)
