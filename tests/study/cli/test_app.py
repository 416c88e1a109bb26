"""The command line as a user meets it: help at once, errors in one line."""

from __future__ import annotations

import importlib
import importlib.metadata

import pytest

from predbayes_study.extra import Extra
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.commands import predbayes, refused, without
from tests.study.world import SITES, make_world, quick_results

ARRAYS = ("torch", "pandas", "numpy", "scipy", "sklearn", "matplotlib")
HELP = [
    *([], ["predict"]),
    *(["study"], ["study", "finish"], ["study", "status"], ["plan", "new"], ["plan", "freeze"]),
    *(["site", "check"], ["site", "train"], ["site", "adopt"], ["site", "evaluate"]),
]


class TestImports:
    """A user would notice if help, or a command that only looks, took seconds to start."""

    def test_help_and_the_version_import_nothing_heavy(self):
        lines = [[*line, "--help"] for line in HELP] + [["--version"]]
        heavy = (*ARRAYS, "pydantic", "cryptography", "jinja2", "safetensors")
        told = without(heavy, [(line, 0) for line in lines])
        assert told.count("Usage: ") == len(HELP)
        assert told.splitlines()[-1].startswith("predbayes ")

    def test_commands_that_only_look_or_write_a_small_file_load_no_arrays(self, tmp_path):
        world = make_world(tmp_path, method="mixture", coordinator=CoordinatorKey.generate())
        study = world.begin(added=SITES[:2])
        with quick_results():
            study.finish()
        world.key("Zeta").public.save(tmp_path / "Zeta.pub")
        plan = (tmp_path / "plan.toml").read_text()
        (tmp_path / "slip.toml").write_text(plan.replace("[reference]", "[refrence]"))
        (tmp_path / "slip-site.toml").write_text('format = 1\nname = "Basel"\n[colums]\n')
        fine = (
            "study key --out another",
            "site key Omega",
            "study status",
            "study status --json",
            "study admit Zeta Zeta.pub",
            "study receipt Alpha --out alpha.receipt",
            "study delete Alpha",
            "study withdraw Beta --yes",
        )
        slips = ("plan check slip.toml", "site check kit rows.csv --site slip-site.toml")
        commands = [(line.split(), 0) for line in fine] + [(line.split(), 2) for line in slips]
        without(ARRAYS, commands, tmp_path)


class TestMistakes:
    @pytest.mark.parametrize(
        ("mistyped", "meant"),
        [(["studdy"], "study"), (["study", "ad"], "add"), (["plan", "nw"], "new")],
    )
    def test_a_mistyped_command_is_corrected_once(self, mistyped, meant):
        done = predbayes(*mistyped)
        assert done.code == 2
        assert done.err.count("Did you mean") == 1
        assert meant in done.err

    def test_bad_input_is_one_line_and_code_two(self):
        refused(predbayes("study", "status", "--study", "nowhere"))

    def test_mistyped_options_are_code_two(self):
        assert predbayes("study", "finish", "--leav").code == 2


def test_extras_and_other_distributions_add_commands(monkeypatch, tmp_path):
    """A group, a command of a group that exists, and an entry point whose module is gone."""
    (tmp_path / "more.py").write_text(
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef one():\n    'Say one.'\n    print('one')\n"
        "@app.command()\ndef two():\n    'Say two.'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        importlib.metadata.EntryPoint(name, f"{module}:app", "predbayes.commands")
        for name, module in (("numbers", "more"), ("gone", "no_such_module"))
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    counting = Extra("counting", commands={"site count": "more:one"})
    monkeypatch.setattr(Extra, "load", lambda self, ref: importlib.import_module("more").one)
    monkeypatch.setattr("predbayes_study.extra.extras", lambda: {"counting": counting})
    assert predbayes("numbers", "one").out == "one\n"
    assert predbayes("site", "count").out == "one\n"
    assert "Say one." in predbayes("site", "--help").out
    shown = predbayes("--help").out
    assert "numbers" in shown
    assert "gone" not in shown
    assert predbayes("count").code == 2
