"""The committed results: every table is what its records give."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from predbayes.experiments import run
from predbayes.experiments.config import load_experiment
from predbayes.experiments.records import RECORDS_FILE, read_records
from predbayes.experiments.rendering import to_markdown
from predbayes.experiments.tables import best_table, build_table

RESULTS = Path(__file__).parents[2] / "results"
TABLES = sorted(RESULTS.glob("*/*.md"))


@pytest.mark.parametrize("path", TABLES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_tables_are_made_from_the_records(path):
    records = read_records(path.parent / RECORDS_FILE)
    metric, _, against = path.stem.partition("-against-")
    make = best_table if path.parent.name == "presets-regression" else build_table
    assert to_markdown(make(records, metric, against=against or None)) == path.read_text()


@pytest.mark.parametrize("folder", sorted({p.parent for p in TABLES}), ids=lambda p: p.name)
def test_results_are_complete(folder):
    """A record for every method, student, cell and seed of the config, and none twice."""
    experiment = load_experiment(folder.name)
    records = read_records(folder / RECORDS_FILE)
    found = [(repr(r.cell), r.method, r.seed) for r in records]
    assert len(found) == len(set(found))
    assert set(found) == {
        (repr(cell), label + suffix, seed)
        for cell in experiment.cells()
        for label, method in experiment.methods.items()
        for suffix in ("", " student")[: 1 + method.student]
        for seed in experiment.seeds
    }
    assert len({r.key for r in records}) == len(records)


@pytest.mark.parametrize("folder", sorted({p.parent for p in TABLES}), ids=lambda p: p.name)
def test_settings_that_came_later_leave_the_keys_of_the_records(folder, monkeypatch):
    """Else the next sweep would repeat everything, whatever `--any-code` says."""
    experiment = load_experiment(folder.name)
    records = read_records(folder / RECORDS_FILE)
    digests = {tuple(r.config["data"].values()): r.config["data-sha256"] for r in records}
    monkeypatch.setattr(run, "_data_digest", lambda name, variant: digests[name, variant])
    planned = {
        (repr(one.cell), label, one.seed): run.settings_part(key)
        for one in run.plan(experiment, experiment.seeds)
        for label, key in one.keys.items()
    }
    assert planned == {(repr(r.cell), r.method, r.seed): run.settings_part(r.key) for r in records}


def mean(experiment, method, metric="nll", **cell):
    records = read_records(RESULTS / experiment / RECORDS_FILE)
    wanted = {key.replace("__", "."): value for key, value in cell.items()}
    values = [r.scores[metric] for r in records if r.method == method and r.cell == wanted]
    assert values
    return math.fsum(values) / len(values)
