"""The command line as a user meets it: help at once, errors in one line."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from predbayes_lab.records import RECORDS_FILE, read_records
from predbayes_study.cli.app import main
from predbayes_study.extra import Extra
from tests.lab.conftest import config, data_root  # noqa: F401


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
    *([], ["data"], ["data", "list"], ["experiment"], ["experiment", "sweep"], ["predict"]),
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
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["experiment", "run", "regresion"], "no experiment 'regresion'; did you mean"),
            (["experiment", "table", "nowhere"], "there is no nowhere/records.jsonl"),
            (["experiment", "run", "regression", "--set", "x"], "not of the form key=value"),
            (["experiment", "run", "regression", "-m", "bta"], "no method 'bta'; did you mean"),
            (["experiment", "sweep", "regression", "--out", "/proc/x"], "/proc/x"),
            (["experiment", "run", "regression", "--seeds", "5-2"], "seeds are given like"),
            (["data", "check", "mnits"], "no dataset 'mnits'; did you mean 'mnist'?"),
        ],
    )
    def test_bad_input_is_one_line_and_code_two(self, arguments, message):
        done = predbayes(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("predbayes: ")

    def test_mistyped_options_are_code_two(self):
        assert predbayes("experiment", "sweep", "--wokers").returncode == 2


class TestExperiment:
    def test_ctrl_c_says_how_to_go_on(self, config, tmp_path):  # noqa: F811
        out = tmp_path / "out"
        command = [sys.executable, "-m", "predbayes_study", "experiment", "sweep", str(config)]
        command += ["--workers", "1", "--seeds", "0-99", "--out", str(out)]
        with subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
            # A shell ignores it for what runs in the background, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            assert process.stderr is not None
            process.stderr.readline()  # the first record is there
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
        assert process.returncode == 130
        assert rest.endswith("stopped; the same command goes on from here\n")
        assert read_records(out / RECORDS_FILE)

    def test_run_prints_scores_and_keeps_nothing(self, config, tmp_path):  # noqa: F811
        done = predbayes("experiment", "run", config, "-m", "mixture", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "mixture" in done.stdout
        assert "nll     rmse    coverage_95  crps" in done.stdout, "names are whole on 80 columns"
        assert "`experiment sweep` keeps the other scores, too: mae, r2, width_95" in done.stdout
        assert not list(tmp_path.rglob(RECORDS_FILE))

    def test_sweep_table_and_figure(self, config, tmp_path):  # noqa: F811
        done = predbayes("experiment", "sweep", config, "--workers", 1, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "8 records in results/small" in done.stdout
        assert "1/8 mixture seed 0: nll " in done.stderr
        assert " s left" in done.stderr
        out = tmp_path / "results" / "small"
        assert len(read_records(out / RECORDS_FILE)) == 8

        done = predbayes("experiment", "table", out, "--against", "beta", "--rows")
        assert "| mixture |" in done.stdout
        for suffix in ("md", "tex", "csv", "json"):
            path = tmp_path / f"table.{suffix}"
            done = predbayes("experiment", "table", out, "--out", path)
            assert done.returncode == 0, done.stderr
            assert "fedavg" in path.read_text()
        assert json.loads((tmp_path / "table.json").read_text())
        done = predbayes("experiment", "table", out, "--metric", "nl")
        assert done.returncode == 2
        assert "did you mean 'nll'" in done.stderr

        done = predbayes("experiment", "verdict", out, "--method", "beta", "--rows")
        assert "| beta | best rival |" in done.stdout
        done = predbayes("experiment", "verdict", out, "--method", "betta")
        assert done.returncode == 2
        assert "did you mean 'beta'" in done.stderr

        done = predbayes("experiment", "figure", out, "--out", tmp_path / "figure.png")
        assert done.returncode == 2
        assert "has no axes to draw against" in done.stderr
        done = predbayes("experiment", "figure", out, "--out", tmp_path / "f.png", "-m", "betta")
        assert "no method 'betta'; did you mean 'beta'" in done.stderr
        done = predbayes("experiment", "table", out, "--rows")
        assert "--against METHOD" in done.stderr

    def test_a_grid_search_names_the_best_variant(self, config, tmp_path):  # noqa: F811
        text = config.read_text().split("[methods.mixture]")[0]
        grid = 'grid = { "optimizer.lr" = [0.000001, 0.01] }'
        config.write_text(f"evaluate = 'validation'\n{text}[methods.fedavg]\n{grid}\n")
        out = tmp_path / "grid"
        done = predbayes("experiment", "sweep", config, "--workers", 1, "--out", out)
        assert done.returncode == 0, done.stderr
        done = predbayes("experiment", "table", out, "--best")
        assert "optimizer.lr=0.01" in done.stdout
        assert "1e-06" not in done.stdout
