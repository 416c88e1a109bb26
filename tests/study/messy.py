"""A German hospital's export, as untidy as they come, and the heart study that it is to join.

The table has semicolons, decimal commas, latin-1, German names, cholesterol in mmol/l, four codes
for missing (0, -9, leer, n. gemessen), m and w, a word that the plan does not know, and remarks in
free text. Rows are drawn; they resemble published heart disease data in their ranges and in nothing
else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from predbayes_study.kit.kit import Kit, freeze

NUM_ROWS = 240
FILE = "herz.csv"
SITE = "Waldheim"

PLAN = """
format = 1
name = "heart"
[target]
name = "disease"
task = "classification"
classes = ["no", "yes"]
[columns]
age = { type = "number", unit = "years", range = [18, 100] }
sex = { type = "category", categories = ["female", "male"], other = false }
cp = { type = "category", categories = ["typical", "atypical", "non-anginal", "asymptomatic"] }
trestbps = { type = "number", unit = "mmHg", range = [70, 230], missing = "flag" }
chol = { type = "number", unit = "mg/dl", range = [80, 700], missing = "flag" }
fbs = { type = "category", categories = ["no", "yes"], other = false, missing = "flag" }
restecg = { type = "category", categories = ["normal", "st-t", "hypertrophy"], missing = "flag" }
thalach = { type = "number", unit = "/min", range = [50, 220], missing = "flag" }
exang = { type = "category", categories = ["no", "yes"], other = false, missing = "flag" }
oldpeak = { type = "number", unit = "mm", range = [-4, 8], missing = "flag" }
[reference]
file = "reference.csv"
source = "drawn"
licence = "CC0"
legal_basis = "nobody's data"
labelled = 120
evaluate = 80
unlabelled = 100
[learner]
name = "any"
[upload]
release = "manual"
"""


def write_messy(folder: Path) -> Path:
    """The hospital's table; the same whenever it is asked."""
    table = messy_patients()
    rows = pd.DataFrame(
        {
            "Pat.-Nr.": [f"{48000 + 17 * row}" for row in range(NUM_ROWS)],
            "Alter (Jahre)": table["age"].map(str),
            "Geschlecht": table["sex"].map({"male": "m", "female": "w"}),
            "Brustschmerz": table["cp"].map(
                {
                    "typical": "typisch",
                    "atypical": "atypisch",
                    "non-anginal": "nicht anginös",
                    "asymptomatic": "asymptomatisch",
                }
            ),
            "RR sys. [mmHg]": table["trestbps"].map(str),
            "Cholesterin [mmol/l]": (table["chol"] / 38.67).map(_comma),
            "Nüchtern-BZ > 120": table["fbs"].map({"yes": "ja", "no": "nein"}),
            "Ruhe-EKG": table["restecg"].map(str.upper),
            "Herzfrequenz max.": table["thalach"].map(str),
            "Belastungsangina": table["exang"].map({"yes": "ja", "no": "nein"}),
            "ST-Senkung": table["oldpeak"].map(_comma),
            "KHK": table["disease"].map({"yes": "1", "no": "0"}),
            "Bemerkung": "",
        }
    )
    rows.loc[rows.index % 9 == 1, "Cholesterin [mmol/l]"] = "0"
    rows.loc[rows.index % 11 == 2, "RR sys. [mmHg]"] = "-9"
    rows.loc[rows.index % 31 == 6, "RR sys. [mmHg]"] = "n. gemessen"
    rows.loc[rows.index % 13 == 3, "Ruhe-EKG"] = "leer"
    rows.loc[rows.index % 17 == 4, "Herzfrequenz max."] = "leer"
    rows.loc[rows.index % 10 == 5, "Brustschmerz"] = "unklar"
    rows.loc[60, "Bemerkung"] = "Rückruf Hr. Brandstätter; Tel. 0711"
    path = folder / FILE
    rows.to_csv(path, sep=";", index=False, encoding="latin-1", lineterminator="\r\n")
    return path


def messy_patients() -> pd.DataFrame:
    """The same rows in the plan's terms, before anything went wrong."""
    return _patients(NUM_ROWS, np.random.default_rng(7))


def write_kit(folder: Path, plan: str = PLAN) -> Kit:
    """The study's kit, with reference rows in the plan's own terms."""
    num_rows, num_labels = 300, 200
    table = _patients(num_rows, np.random.default_rng(1))
    table.loc[table.index >= num_labels, "disease"] = ""
    table.to_csv(folder / "reference.csv", index=False)
    (folder / "plan.toml").write_text(plan)
    return freeze(folder / "plan.toml", folder / "kit", folder / "kit-labels.json", salt=bytes(32))


def _patients(num_rows: int, draw: np.random.Generator) -> pd.DataFrame:
    age = draw.normal(55, 9, num_rows).clip(29, 79).round().astype(int)
    burden = 0.05 * (age - 55) + draw.normal(0, 1, num_rows)
    return pd.DataFrame(
        {
            "age": age,
            "sex": np.where(draw.random(num_rows) < 0.68, "male", "female"),
            "cp": draw.choice(["typical", "atypical", "non-anginal", "asymptomatic"], num_rows),
            "trestbps": draw.normal(131, 17, num_rows).clip(92, 200).round().astype(int),
            "chol": draw.normal(246, 50, num_rows).clip(126, 560).round().astype(int),
            "fbs": np.where(draw.random(num_rows) < 0.15, "yes", "no"),
            "restecg": draw.choice(["normal", "st-t", "hypertrophy"], num_rows),
            "thalach": (150 - 12 * burden).clip(71, 202).round().astype(int),
            "exang": np.where(burden + draw.normal(0, 1, num_rows) > 0.7, "yes", "no"),
            "oldpeak": (1 + burden).clip(0, 6).round(1),
            "disease": np.where(burden + draw.normal(0, 0.7, num_rows) > 0, "yes", "no"),
        }
    )


def _comma(value: float) -> str:
    return f"{value:.1f}".replace(".", ",")
