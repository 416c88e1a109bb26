"""The command line as a user meets it: help at once, errors in one line."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from predbayes_study.cli.app import main
from predbayes_study.extra import Extra


def predbayes(*arguments, cwd=None):
    """What the command line says, in this process: one of its own takes seconds to begin."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["predbayes", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        if cwd is not None:
            patch.chdir(cwd)
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as done:
            main()
    code = int(done.value.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


HELP = [
    *([], ["predict"]),
    *(["study"], ["study", "finish"], ["study", "status"], ["plan", "new"], ["plan", "freeze"]),
    *(["site", "check"], ["site", "train"], ["site", "adopt"], ["site", "evaluate"]),
]


class TestHelp:
    def test_it_and_the_version_import_nothing_heavy(self):
        """All in one process, which a user would notice if it took long."""
        heavy = ["torch", "pandas", "scipy", "numpy", "pydantic", "sklearn", "matplotlib"]
        heavy += ["cryptography", "jinja2", "safetensors"]
        code = (
            "import sys\n"
            "from predbayes_study.cli.app import main\n"
            f"for line in [*([*line, '--help'] for line in {HELP}), ['--version']]:\n"
            "    sys.argv = ['predbayes', *line]\n"
            "    try:\n        main()\n"
            "    except SystemExit as done:\n        assert done.code == 0, line\n"
            f"found = sorted({{*{heavy}}} & set(sys.modules))\n"
            "assert not found, found\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Usage: ") == len(HELP)
        assert done.stdout.splitlines()[-1].startswith("predbayes ")

    @pytest.mark.parametrize(
        ("mistyped", "meant"),
        [(["studdy"], "study"), (["study", "ad"], "add"), (["plan", "nw"], "new")],
    )
    def test_a_mistyped_command_is_corrected_once(self, mistyped, meant):
        done = predbayes(*mistyped)
        assert done.returncode == 2
        assert done.stderr.count("Did you mean") == 1
        assert meant in done.stderr


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
    assert predbayes("numbers", "one").stdout == "one\n"
    assert predbayes("site", "count").stdout == "one\n"
    assert "Say one." in predbayes("site", "--help").stdout
    shown = predbayes("--help").stdout
    assert "numbers" in shown
    assert "gone" not in shown
    assert predbayes("count").returncode == 2


class TestErrors:
    def test_bad_input_is_one_line_and_code_two(self):
        done = predbayes("study", "status", "--study", "nowhere")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("predbayes: ")

    def test_mistyped_options_are_code_two(self):
        assert predbayes("study", "finish", "--leav").returncode == 2
