"""`predbayes experiment` and `predbayes data`: what they print, write and refuse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from predbayes.errors import DataError, ExperimentError
from predbayes_lab.commands import datasets, experiments
from predbayes_lab.data import fetch as fetch_module
from predbayes_lab.records import RECORDS_FILE, read_records
from tests.lab.data.publishers import table, write_hospitals, write_idx_set, write_table

SWEEP = "from predbayes_lab.commands import experiments; experiments()"


def run(app, *arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(app, *arguments):
    """What a command prints that must succeed."""
    result = run(app, *arguments)
    assert result.exit_code == 0, result.exception
    return result.output


class TestExperiment:
    def test_ctrl_c_says_how_to_go_on(self, config, tmp_path):
        out = tmp_path / "out"
        command = [sys.executable, "-c", SWEEP, "sweep", str(config)]
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

    def test_run_prints_scores_and_keeps_nothing(self, config, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        output = done(experiments, "run", config, "-m", "mixture")
        assert "nll     rmse    coverage_95  crps" in output, "names are whole on 80 columns"
        assert "`experiment sweep` keeps the other scores, too: mae, r2, width_95" in output
        assert not list(tmp_path.rglob(RECORDS_FILE))

    def test_sweep_table_verdict_and_figure(self, config, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        output = done(experiments, "sweep", config, "--workers", 1)
        assert "8 records in results/small" in output
        assert "1/8 mixture seed 0: nll " in output
        assert " s left" in output
        out = tmp_path / "results" / "small"
        assert len(read_records(out / RECORDS_FILE)) == 8
        assert "| mixture |" in done(experiments, "table", out, "--against", "beta", "--rows")
        for suffix in ("md", "csv"):
            path = tmp_path / f"table.{suffix}"
            done(experiments, "table", out, "--out", path)
            assert "fedavg" in path.read_text()
        verdict = done(experiments, "verdict", out, "--method", "beta", "--rows")
        assert "| beta | best rival |" in verdict
        for arguments, said in (
            (("table", out, "--metric", "nl"), "did you mean 'nll'"),
            (("table", out, "--rows"), "--against METHOD"),
            (("verdict", out, "--method", "betta"), "did you mean 'beta'"),
            (("figure", out, "--out", "figure.png"), "has no axes to draw against"),
            (("figure", out, "--out", "f.png", "-m", "betta"), "did you mean 'beta'"),
        ):
            refused = run(experiments, *arguments).exception
            assert isinstance(refused, ExperimentError)
            assert said in str(refused)

    def test_a_grid_search_names_the_best_variant(self, config, tmp_path):
        text = config.read_text().split("[methods.mixture]")[0]
        grid = 'grid = { "optimizer.lr" = [0.000001, 0.01] }'
        config.write_text(f"evaluate = 'validation'\n{text}[methods.fedavg]\n{grid}\n")
        out = tmp_path / "grid"
        done(experiments, "sweep", config, "--workers", 1, "--out", out)
        output = done(experiments, "table", out, "--best")
        assert "optimizer.lr=0.01" in output
        assert "1e-06" not in output

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["run", "regresion"], "no experiment 'regresion'; did you mean"),
            (["table", "nowhere"], "there is no nowhere/records.jsonl"),
            (["run", "regression", "--set", "x"], "not of the form key=value"),
            (["run", "regression", "-m", "bta"], "no method 'bta'; did you mean"),
            (["run", "regression", "--seeds", "5-2"], "seeds are given like"),
        ],
    )
    def test_bad_input_is_the_users_error_of_one_line(self, arguments, said):
        refused = run(experiments, *arguments).exception
        assert isinstance(refused, ExperimentError)
        assert said in str(refused)
        assert "\n" not in str(refused)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("PREDBAYES_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_list_shows_what_is_there_and_where(root):
    write_table(root, *table("wine"))
    write_idx_set(root / "mnist", ("train", "t10k"))
    result = run(datasets, "list")
    assert result.exit_code == 0
    rows = {cells[1].strip(): cells for cells in map(split_row, result.output.splitlines())}
    assert rows["wine"][2:5] == ["regression", "50", "yes"]
    assert rows["mnist"][2:5] == ["classification", "30", "yes"]
    assert rows["heart"][2:5] == ["classification", "", "no"]
    assert f"PREDBAYES_DATA is {root}" in result.output.replace("\n", "")


def split_row(line):
    cells = [cell.strip() for cell in line.replace("┃", "│").split("│")]
    return cells if len(cells) > 5 else ["", "", ""]


def test_check_shows_files_and_fingerprint_and_fails_if_they_differ(root):
    write_hospitals(root)
    result = run(datasets, "check", "heart")
    assert isinstance(result.exception, DataError)
    assert "processed.va.data differs" in str(result.exception)
    assert "num_train: 71" in result.output
    assert "note: groups are the hospitals" in result.output


def test_fetch_says_what_was_written_and_whom_to_cite(root, monkeypatch):
    asked = []

    def fetch(name):
        asked.append(name)
        return [root / "uci" / "winequality-red.csv"]

    monkeypatch.setattr(fetch_module, "fetch", fetch)
    result = run(datasets, "fetch", "wine")
    assert asked == ["wine"]
    assert "winequality-red.csv" in result.output
    assert f"wine is complete in {root / 'uci'}; licence: " in result.output.replace("\n", " ")
    assert "doi:10.24432/C56S3T" in result.output


def test_unknown_names_are_errors_of_the_user(root):
    for command in ("fetch", "check"):
        result = run(datasets, command, "vine")
        assert isinstance(result.exception, DataError)
        assert "did you mean 'wine'?" in str(result.exception)
