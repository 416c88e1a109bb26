"""The OMOP example: the commands of its page give a table that fits, and its query is right."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from predbayes_study.cli.app import app

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "omop"


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, str]:
    """The folder after all commands of the page, and what the last one said."""
    folder = tmp_path_factory.mktemp("omop") / "omop"
    shutil.copytree(EXAMPLE, folder)
    page = (EXAMPLE / "README.md").read_text("utf-8")
    lines = re.findall(r"^    ((?:python|predbayes) .*)$", page, re.M)
    assert len(lines) == 6
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        with contextlib.chdir(folder):
            if program == "python":
                subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            else:
                run = CliRunner().invoke(app, arguments)
                assert run.exit_code == 0, run.output
    return folder, run.stdout


@pytest.fixture(scope="module")
def rows(done) -> pd.DataFrame:
    return pd.read_parquet(done[0] / "admissions.parquet")


@pytest.fixture(scope="module")
def cdm(done) -> dict[str, pd.DataFrame]:
    names = ("person", "visit_occurrence", "condition_occurrence", "measurement")
    with contextlib.closing(sqlite3.connect(done[0] / "cdm.sqlite")) as connection:
        return {name: pd.read_sql_query(f"SELECT * FROM {name}", connection) for name in names}


def test_the_table_fits_the_plan_as_the_page_says(done, rows):
    shown = (EXAMPLE / "README.md").read_text("utf-8")
    for line in (f"{len(rows)} rows, 5 of 5 columns found", "fits the plan: no errors, 0 warnings"):
        assert line in done[1]
        assert line in shown


def test_there_is_a_row_for_each_stay_and_none_for_other_visits(rows, cdm):
    visits = cdm["visit_occurrence"]
    assert len(rows) == (visits.visit_concept_id == 9201).sum() < len(visits)


def test_readmissions_are_those_within_thirty_days(rows, cdm):
    visits = cdm["visit_occurrence"]
    stays = visits[visits.visit_concept_id == 9201].sort_values("visit_occurrence_id")
    begins, ends = pd.to_datetime(stays.visit_start_date), pd.to_datetime(stays.visit_end_date)
    expected = []
    for person, end in zip(stays.person_id, ends, strict=True):
        days = (begins[stays.person_id == person] - end).dt.days
        expected.append("yes" if ((days > 0) & (days <= 30)).any() else "no")
    assert rows.readmitted.tolist() == expected
    assert 20 < expected.count("yes") < len(expected) / 2


def test_creatinine_is_in_one_unit(rows, cdm):
    measured = cdm["measurement"].query("measurement_concept_id == 3016723")
    assert set(measured.unit_concept_id) == {8840, 8749}
    factor = measured.unit_concept_id.map({8840: 88.42, 8749: 1.0})
    expected = (factor * measured.value_as_number).sort_values().tolist()
    assert sorted(rows.creatinine.dropna()) == pytest.approx(expected)
    assert 0 < rows.creatinine.isna().sum() < len(rows) / 4


def test_age_sex_and_heart_failure_are_those_of_the_person(rows, cdm):
    people = cdm["person"].set_index("person_id").loc[rows.person_id]
    assert rows.age.tolist() == (2024 - people.year_of_birth).tolist()
    assert (
        rows.sex.tolist() == people.gender_concept_id.map({8507: "male", 8532: "female"}).tolist()
    )
    failing = cdm["condition_occurrence"].query("condition_concept_id == 316139").person_id
    assert rows.heart_failure.tolist() == [
        "yes" if person in set(failing) else "no" for person in rows.person_id
    ]
