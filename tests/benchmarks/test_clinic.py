"""The invented clinic: its truth, its awkward tables, and what is compared."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks import clinic
from benchmarks.by_commands import run_quietly
from predbayes_study.plan.schema import Plan
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.reading import read_frame
from predbayes_study.tables.sitefile import SiteFile

NUM_ROWS = 60


@pytest.fixture(scope="module")
def script():
    return clinic.example()


@pytest.fixture(scope="module")
def plan(script, tmp_path_factory):
    """What `plan new` drafts, filled in."""
    out = tmp_path_factory.mktemp("clinic") / "study"
    script.prepare(out, 0)
    at = out / "coordinator"
    run_quietly(at, ["plan", "new", "reference.csv", "--target", "death", "--name", "clinic"])
    script.fill_in(at / "plan.toml")
    return Plan.load(at / "plan.toml")


def test_15_percent_of_patients_die_and_chances_are_true(script):
    patients = script.everybody(50_000, np.random.default_rng(0))
    died = patients["death"] == "yes"
    assert died.mean() == pytest.approx(0.153, abs=0.01)
    for low in (0.0, 0.1, 0.3):
        those = patients["chance of death"].between(low, low + 0.1)
        assert died[those].mean() == pytest.approx(
            patients["chance of death"][those].mean(), abs=0.02
        )


@pytest.mark.parametrize("number", range(4))
def test_every_site_file_undoes_what_its_hospital_does_to_a_table(number, script, plan, tmp_path):
    hospital = script.HOSPITALS[number]
    rng = np.random.default_rng(1)
    drawn = script.draw(hospital.admissions, NUM_ROWS, rng)
    patients = script.with_gaps(drawn, 0.1, rng).drop(columns=script.CHANCES)
    script.export(hospital, patients, tmp_path)
    site = SiteFile.load(clinic.EXAMPLE / "sites" / f"{hospital.folder}.toml")
    assert site.name == hospital.name
    found = read_site_table(plan, site, tmp_path / hospital.table).iloc[:NUM_ROWS]
    patients.to_csv(tmp_path / "drawn.csv", index=False)
    expected = read_frame(tmp_path / "drawn.csv")
    assert ("lactate" in found) == (hospital.name != "Trieste")
    for name in found:
        if name in script.UNITS:
            numbers = [pd.to_numeric(frame[name].replace("", None)) for frame in (found, expected)]
            # Creatinine in mg/dl with two places is known to half of 0.88 µmol/l.
            np.testing.assert_allclose(*numbers, atol=0.5 if name == "creatinine" else 1e-6)
        else:
            assert found[name].tolist() == expected[name].tolist(), name
