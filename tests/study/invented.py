"""Invented tables of four hospitals, in the plan's terms until something is planted."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from predbayes_study.extras.survey.surveyfile import Survey
from predbayes_study.extras.survey.take import take_survey
from predbayes_study.plan.schema import Plan
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.signing import SigningKey

STEP = 5
SIZES = {"Graz": 2400, "Trieste": 1200, "Brno": 700, "Split": 350}
DRAFT = """
format = 1
name = "clinic"
description = "invented"
[target]
name = "death"
task = "classification"
classes = ["no", "yes"]
[columns]
age = { type = "number", unit = "years" }
sex = { type = "category", categories = ["female", "male"] }
creatinine = { type = "number", unit = "µmol/l" }
pressure = { type = "number", unit = "mm Hg" }
pulse = { type = "number", unit = "1/min" }
sodium = { type = "number", unit = "mmol/l" }
crp = { type = "number", unit = "mg/l" }
haemoglobin = { type = "number", unit = "g/dl" }
glucose = { type = "number", unit = "mg/dl" }
temperature = { type = "number", unit = "°C" }
diabetes = { type = "category", categories = ["no", "yes"] }
smoking = { type = "category", categories = ["never", "former", "current"] }
[reference]
[survey]
moments = true
"""


def _patients():
    path = Path(__file__).parents[2] / "examples" / "clinic" / "patients.py"
    spec = importlib.util.spec_from_file_location("patients", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


patients = _patients()
ADMISSIONS = {
    "Graz": patients.Admissions(2400, older=0.3),
    "Trieste": patients.Admissions(1200, sicker=0.5),
    "Brno": patients.Admissions(700, older=-0.5),
    "Split": patients.Admissions(350, older=0.2, sicker=-0.3),
}


def plan(text: str = DRAFT) -> Plan:
    return Plan.loads(text)


def table(name: str, seed: int = 0, num_rows: int | None = None) -> pd.DataFrame:
    """A hospital's patients in the plan's columns, words and units, as text."""
    rng = np.random.default_rng([seed, *name.encode()])
    rows = patients.draw(ADMISSIONS[name], num_rows or SIZES[name], rng)
    frame = patients.with_gaps(rows, 0.04, rng).drop(columns=patients.CHANCES)
    ill = (frame["diabetes"] == "yes").to_numpy()
    frame["glucose"] = (100 * np.exp(0.2 * rng.standard_normal(len(frame)) + 0.3 * ill)).round()
    return frame[list(plan().names)].astype(object).where(frame.notna(), "").astype(str)


def tables(seed: int = 0) -> dict[str, pd.DataFrame]:
    return {name: table(name, seed) for name in SIZES}


def survey_of(
    frame: pd.DataFrame,
    folder: Path,
    name: str = "Graz",
    *,
    of: Plan | None = None,
    step: int = STEP,
    key: SigningKey | None = None,
    moments: bool = True,
    patient: str = "",
    seen: str = "",
) -> Survey:
    """The survey of a table."""
    path = folder / f"{name}.csv"
    frame.to_csv(path, index=False)
    key = SigningKey.generate() if key is None else key
    site = SiteFile(format=1, name=name, patient=patient)
    of = plan() if of is None else of
    public = key.public.hex
    return take_survey(of, site, path, step=step, key=public, moments=moments, seen=seen)
