"""Sweeps: nothing lost, nothing twice, the same result whoever computes it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from predbayes.errors import ExperimentError, MissingPackageError
from predbayes_lab.config import load_experiment
from predbayes_lab.records import LOSSES_FOLDER, RECORDS_FILE, read_records
from predbayes_lab.rendering import to_markdown
from predbayes_lab.sweep import sweep
from predbayes_lab.tables import build_table

LABELS = {"mixture", "beta", "beta student", "fedavg"}


COMMAND = "from predbayes_lab.commands import experiments; experiments()"


def scores(records):
    return {(r.method, r.seed): r.scores for r in records}


def table(folder):
    return to_markdown(build_table(read_records(folder / RECORDS_FILE), "nll", against="beta"))


def test_every_method_has_a_record_for_every_seed(config, tmp_path):
    told = []
    records = sweep(
        load_experiment(str(config)), tmp_path / "out", report=lambda *args: told.append(args)
    )
    assert {(r.method, r.seed) for r in records} == {(m, s) for m in LABELS for s in (0, 1)}
    assert [done for _, done, _ in told] == list(range(1, 9))
    assert {total for _, _, total in told} == {8}
    for record in records:
        path = tmp_path / "out" / LOSSES_FOLDER / f"{record.key}.npy"
        losses = np.load(path, allow_pickle=False)
        assert losses.mean() == pytest.approx(record.scores["nll"], rel=1e-5)


def test_what_is_there_is_not_run_again(config, tmp_path):
    experiment = load_experiment(str(config))
    first = sweep(experiment, tmp_path)
    before = (tmp_path / RECORDS_FILE).read_bytes()
    told = []
    again = sweep(experiment, tmp_path, report=lambda *args: told.append(args))
    assert again == first
    assert told == []
    assert (tmp_path / RECORDS_FILE).read_bytes() == before


def test_what_another_experiment_has_run_is_taken_over(config, tmp_path):
    """The same runs with another axis; what it lacks is run, what differs is not taken."""
    one, two = tmp_path / "one", tmp_path / "two"
    first = sweep(load_experiment(str(config)), one, seeds=[0])
    text = config.read_text().replace(
        "[methods.", '[axes]\n"optimizer.lr" = [0.01, 0.02]\n[methods.', 1
    )
    (config.parent / "two.toml").write_text(text)
    told = []
    taken = sweep(
        load_experiment(str(config.parent / "two.toml")),
        two,
        seeds=[0],
        others=[one],
        report=lambda record, *_: told.append((record.method, record.cell["optimizer.lr"])),
    )
    assert told == [("fedavg", 0.02)]
    assert {r.experiment for r in taken} == {"two"}
    assert {r.key: r.scores for r in first}.items() <= {r.key: r.scores for r in taken}.items()
    for record in taken:
        name = f"{LOSSES_FOLDER}/{record.key}.npy"
        assert not (one / name).exists() or (one / name).read_bytes() == (two / name).read_bytes()
    with pytest.raises(ExperimentError, match=r"no .*records.jsonl to take records from"):
        sweep(load_experiment(str(config)), two, others=[tmp_path / "nowhere"])


def test_more_seeds_and_a_missing_student_are_added(config, tmp_path):
    experiment = load_experiment(str(config))
    records = sweep(experiment, tmp_path, seeds=[0])
    path = tmp_path / RECORDS_FILE
    kept = [r for r in records if r.method != "beta student"]
    path.write_text("".join(r.line() for r in kept))
    told = []
    sweep(experiment, tmp_path, seeds=[0, 1], report=lambda r, *_: told.append((r.method, r.seed)))
    assert told == [("beta student", 0), *[(label, 1) for label in
                    ("mixture", "beta", "beta student", "fedavg")]]  # fmt: skip


def test_a_method_that_diverges_is_a_result_and_stops_nothing(config, tmp_path):
    experiment = load_experiment(str(config), assignments=["optimizer.lr=1e12"])
    records = sweep(experiment, tmp_path, seeds=[0])
    assert len(records) == 4
    found = {r.method: r for r in read_records(tmp_path / RECORDS_FILE)}
    assert "diverged" in found["fedavg"].error
    assert math.isnan(found["fedavg"].scores["nll"])
    assert not (tmp_path / LOSSES_FOLDER / f"{found['fedavg'].key}.npy").exists()
    assert found["beta"].error == ""
    told = []
    sweep(experiment, tmp_path, seeds=[0], report=lambda *args: told.append(args))
    assert told == []  # it would diverge again
    assert "| fedavg | diverged |" in table(tmp_path)


def test_settings_that_cannot_work_stop_at_once(config, tmp_path):
    experiment = load_experiment(str(config), assignments=["sampler.num-cycles=50"])
    with pytest.raises(ExperimentError, match=r"mixture: .* too few for 50 cycles"):
        sweep(experiment, tmp_path)


@pytest.mark.slow("three sweeps, two of them in processes")
def test_a_sweep_killed_in_the_middle_goes_on(config, tmp_path):
    """kill -9, run again: no record lost, none twice, and the table of an undisturbed sweep."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-c", COMMAND, "sweep", str(config)]
    command += ["--workers", "1", "--seeds", "0-19", "--out", str(killed)]
    path = killed / RECORDS_FILE
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if path.exists() and path.read_bytes().count(b"\n") >= 10:
                break
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    before = read_records(path)
    assert 10 <= len(before) < 80
    with path.open("a") as file:
        file.write('{"key": "cut sho')  # as a kill during a write would leave it
    subprocess.run(command, check=True, capture_output=True, env=os.environ)
    after = read_records(path)
    assert after[: len(before)] == before
    assert len({r.key for r in after}) == len(after) == 80
    sweep(load_experiment(str(config)), whole, seeds=range(20))
    assert table(killed) == table(whole)


def command_line(*arguments):
    """The command in a process of its own: Ray leaves threads and files behind in its process."""
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ)


@pytest.mark.slow("a sweep on Ray")
def test_ray_gives_the_same_records(config, tmp_path):
    here, there = (tmp_path / name for name in ("here", "there"))
    alone = sweep(load_experiment(str(config)), here)
    done = command_line("sweep", config, "--workers", 2, "--out", there)
    assert done.returncode == 0, done.stderr
    fanned = read_records(there / RECORDS_FILE)
    assert scores(fanned) == scores(alone)
    assert {r.key for r in fanned} == {r.key for r in alone}
    assert table(there) == table(here)
    for record in fanned:
        losses = [np.load(f / LOSSES_FOLDER / f"{record.key}.npy") for f in (here, there)]
        assert np.array_equal(*losses)


def test_without_ray_the_extra_is_named(config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match="package ray"):
        sweep(load_experiment(str(config)), tmp_path, num_workers=2)
