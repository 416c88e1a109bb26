"""Records are repeated to the digit: the results versions in their keys tell the truth.

A record's key holds settings, data and results versions, not code. Where one of these tests fails,
a change of the code has changed numbers: mend the code, or raise the version of the method, learner
or student concerned (`predbayes_lab.methods`, `run.STUDENT_VERSION`) and sweep again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from predbayes_lab.config import load_experiment
from predbayes_lab.methods import METHODS
from predbayes_lab.records import RECORDS_FILE, Record, read_records
from predbayes_lab.run import plan, run_methods
from predbayes_lab.tables import is_outdated
from tests.lab.test_results import FOLDERS

RESULTS = Path(__file__).parents[2] / "results"
DIGITS = 1e-4  # relative; tables show three or four digits, and processors round differently

# One experiment with images, and three with tables.
ALWAYS = {"gates-auto", "gates-hospitals", "learners-regression", "regression"}
LONG = pytest.mark.slow("up to a minute each")
EXPERIMENTS = [
    pytest.param(folder.name, marks=[] if folder.name in ALWAYS else [LONG]) for folder in FOLDERS
]

pytestmark = pytest.mark.data


def records_of(experiment: str) -> list[Record]:
    return read_records(RESULTS / experiment / RECORDS_FILE)


def repeat(experiment_name: str, chosen: list[Record]) -> dict[str, Record]:
    """Run the methods of some records, all of one cell and seed, again."""
    experiment = load_experiment(experiment_name)
    keys = {record.key for record in chosen}
    runs = [one for one in plan(experiment, [chosen[0].seed]) if keys & set(one.keys.values())]
    return {record.key: record for record, _ in run_methods(experiment, runs)}


def assert_repeated(chosen: list[Record], again: dict[str, Record]) -> None:
    for record in chosen:
        found = again[record.key].scores  # with measures that came later
        scores = {name: found[name] for name in record.scores}
        assert scores == pytest.approx(record.scores, rel=DIGITS), record.method
        assert again[record.key].error == record.error


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_cheapest_cell_of_every_experiment_repeats(name):
    records = [r for r in records_of(name) if not r.method.endswith("student")]
    records = [r for r in records if not is_outdated(r)]
    cheapest = min(records, key=lambda record: (record.seconds, record.key))
    assert_repeated([cheapest], repeat(name, [cheapest]))


@pytest.mark.slow("every method is trained")
def test_every_method_repeats():
    """Every method for numbers and its student, in the cheapest cell of the regressions."""
    methods, students = set(), set()
    for name in ("regression", "gates-regression", "moments", "auto-moments"):
        found = [r for r in records_of(name) if r.cell == {"data.name": "real-estate"}]
        chosen = [r for r in found if r.seed == 0 and not is_outdated(r)]
        methods |= {record.config["method"]["name"] for record in chosen}
        students |= {record.method for record in chosen if record.method.endswith("student")}
        assert_repeated(chosen, repeat(name, chosen))
    assert students
    assert methods == METHODS.keys() - {"fedkt", "ridge-stacker"}  # of classes


@pytest.mark.slow("the whole of FedKT")
def test_the_method_for_classes_only_repeats():
    cheap = [r for r in records_of("classification") if r.config["method"]["name"] == "fedkt"]
    cheapest = min(cheap, key=lambda record: (record.seconds, record.key))
    assert_repeated([cheapest], repeat("classification", [cheapest]))
