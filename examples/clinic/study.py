"""Four invented hospitals with a known truth, by commands alone: `python study.py OUT [SEED]`.

OUT becomes five folders. The coordinator has 2,000 reference rows, 400 of them with the outcome,
drafts a plan with `predbayes plan new` and fills in what no table can tell. Every hospital has its
table as its own system writes it (`export`), and a site.toml that says how it is written.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyreadstat
from patients import CHANCES, COLUMNS, TARGET, Admissions, draw, with_gaps

HERE = Path(__file__).parent
NUM_REFERENCE, NUM_LABELLED, NUM_LATER = 2000, 400, 20_000
UNITS = {
    "age": "years", "creatinine": "µmol/l", "pressure": "mm Hg", "pulse": "1/min",
    "sodium": "mmol/l", "crp": "mg/l", "haemoglobin": "g/dl", "lactate": "mmol/l",
    "temperature": "°C",
}  # fmt: skip
RANGES = {
    "age": (18, 110), "creatinine": (10, 1500), "pressure": (40, 280), "pulse": (20, 250),
    "sodium": (100, 180), "crp": (0, 700), "haemoglobin": (3, 22), "lactate": (0.1, 30),
    "temperature": (32, 43),
}  # fmt: skip
NO_YES = {0: "no", 1: "yes"}
LABELS = {
    "sex": {1: "male", 2: "female"},
    "smoking": {1: "never", 2: "former", 3: "current"},
    **dict.fromkeys(("diabetes", "copd", TARGET), NO_YES),
}
LABORATORY = ("sodium", "crp", "haemoglobin", "lactate", "temperature", "smoking")


@dataclass(frozen=True)
class Hospital:
    """One site: its name in the study, its folder, its table, and whom it admits."""

    name: str
    folder: str
    table: str
    admissions: Admissions


HOSPITALS = (
    Hospital("Graz", "graz", "patienten.csv", Admissions(2400, older=0.3)),
    Hospital("Trieste", "trieste", "pazienti.csv", Admissions(1200, sicker=0.5)),
    Hospital("Brno", "brno", "pacienti.xlsx", Admissions(700, older=-0.5)),
    Hospital("Split", "split", "bolesnici.sav", Admissions(350, older=0.2, sicker=-0.3)),
)

Run = Callable[[Path, Sequence[str]], None]
"""Runs one command of predbayes in a folder."""


def main(out: Path, seed: int = 0, run: Run | None = None) -> None:
    """The whole story, from five folders to a recommendation for each hospital."""
    prepare(out, seed)
    conduct(out, run or as_process)


def prepare(out: Path, seed: int) -> None:
    """Draw reference rows, patients to come, and for each hospital a table and a site.toml."""
    rng = np.random.default_rng(seed)
    coordinator = out / "coordinator"
    coordinator.mkdir(parents=True)
    reference = with_gaps(everybody(NUM_REFERENCE, rng), 0.05, rng).drop(columns=CHANCES)
    reference.loc[reference.index[NUM_LABELLED:], TARGET] = ""
    reference.to_csv(coordinator / "reference.csv", index=False)
    everybody(NUM_LATER, rng).to_csv(coordinator / "later.csv", index=False)
    for hospital in HOSPITALS:
        at = out / hospital.folder
        at.mkdir()
        shutil.copy(HERE / "sites" / f"{hospital.folder}.toml", at / "site.toml")
        drawn = draw(hospital.admissions, hospital.admissions.num_rows, rng)
        export(hospital, with_gaps(drawn, 0.06, rng).drop(columns=CHANCES), at)


def everybody(num_rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return patients of all hospitals in the shares that these have of all patients."""
    sizes = np.array([hospital.admissions.num_rows for hospital in HOSPITALS])
    counts = rng.multinomial(num_rows, sizes / sizes.sum())
    parts = [draw(h.admissions, n, rng) for h, n in zip(HOSPITALS, counts, strict=True)]
    return pd.concat(parts, ignore_index=True).sample(frac=1, random_state=rng, ignore_index=True)


def conduct(out: Path, run: Run) -> None:
    """Every command of the study, where somebody would give it."""
    coordinator = out / "coordinator"
    run(coordinator, ["plan", "new", "reference.csv", "--target", TARGET, "--name", "clinic"])
    fill_in(coordinator / "plan.toml")
    run(coordinator, ["plan", "check", "plan.toml"])
    run(coordinator, ["plan", "freeze", "plan.toml", "--out", "kit"])
    run(coordinator, ["study", "init", "kit", "--labels", "kit-labels.json"])
    for site in HOSPITALS:
        at = out / site.folder
        run(at, ["site", "key", site.name])
        shutil.copytree(coordinator / "kit", at / "kit")  # on a USB stick
        shutil.copy(at / f"{site.name}.pub", coordinator)
        run(coordinator, ["study", "admit", site.name, f"{site.name}.pub"])
    for site in HOSPITALS:
        at = out / site.folder
        run(at, ["site", "check", "kit", site.table])
        run(at, ["site", "train", "kit", site.table, "--out", "out"])
        shutil.copy(at / "out" / f"{site.name}.safetensors", coordinator)
        run(coordinator, ["study", "add", f"{site.name}.safetensors"])
    run(coordinator, ["study", "finish"])
    for site in HOSPITALS:
        at = out / site.folder
        shutil.copytree(coordinator / "study" / "results" / "1" / "model", at / "model")
        run(at, ["site", "adopt", "model", site.table, "--home", "out", "--out", "adopted"])
    run(coordinator, ["predict", "study/results/1", "later.csv", "--out", "predicted.csv"])


def fill_in(plan: Path) -> None:
    """Write into a drafted plan what no table can tell, as somebody would in an editor."""
    lines = plan.read_text(encoding="utf-8").splitlines()
    told = {
        "source": "invented", "licence": "CC0", "legal_basis": "nobody's data",
        "description": "Death in hospital, from what is known on the day of admission.",
    }  # fmt: skip
    columns = {
        **{name: _number(name) for name in UNITS},
        "smoking": (
            'smoking = { type = "category", categories = ["current", "former", "never"], '
            'other = false, missing = "flag" }'
        ),
    }
    changed = [_filled(line, told, columns) for line in lines]
    plan.write_text("\n".join(changed) + "\n", encoding="utf-8")


def _number(name: str) -> str:
    low, high = RANGES[name]
    missing = "flag" if name in LABORATORY else "refuse"
    absent = ", optional = true" if name == "lactate" else ""
    return (
        f'{name} = {{ type = "number", unit = "{UNITS[name]}", range = [{low}, {high}], '
        f'missing = "{missing}"{absent} }}'
    )


def _filled(line: str, told: dict[str, str], columns: dict[str, str]) -> str:
    key = line.partition(" = ")[0]
    if key in told:
        return f'{key} = "{told[key]}"'
    return columns.get(key, line)


def export(hospital: Hospital, patients: pd.DataFrame, at: Path) -> None:
    """Write a table as the hospital's own system does."""
    path = at / hospital.table
    match hospital.folder:
        case "graz":
            _graz(patients).to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252")
        case "trieste":
            _trieste(patients).to_csv(path, index=False)
        case "brno":
            _brno(patients).to_excel(path, index=False)
        case _:
            pyreadstat.write_sav(_split(patients), str(path), variable_value_labels=LABELS)


def _graz(patients: pd.DataFrame) -> pd.DataFrame:
    """German names, creatinine in mg/dl, k.A. for no answer, and some rows exported twice."""
    names = [
        "Alter", "Geschlecht", "Krea [mg/dl]", "RR syst.", "Puls", "Natrium", "CRP", "Hämoglobin",
        "Laktat", "Körpertemp.", "Diabetes", "COPD", "Raucher", "verstorben",
    ]  # fmt: skip
    table = patients[[*COLUMNS, TARGET]].set_axis(names, axis=1)
    table["Geschlecht"] = table["Geschlecht"].map({"male": "m", "female": "w"})
    # Two ways to write the same word, as two wards do.
    table.loc[table.index[::7], "Geschlecht"] = table["Geschlecht"].map({"m": "Mann", "w": "Frau"})
    table["Krea [mg/dl]"] = (table["Krea [mg/dl]"].astype(float) / 88.42).round(2)
    for name in ("Diabetes", "COPD", "verstorben"):
        table[name] = table[name].map({"no": "nein", "yes": "ja"})
    table["Raucher"] = table["Raucher"].map({"never": "nie", "former": "früher", "current": "ja"})
    table["Raucher"] = table["Raucher"].fillna("k.A.")
    return pd.concat([table, table.iloc[:40]])


def _trieste(patients: pd.DataFrame) -> pd.DataFrame:
    """Numbers for words, 999 where nothing was measured, and no lactate at all."""
    table = patients[[*COLUMNS, TARGET]].drop(columns="lactate")
    table["sex"] = table["sex"].map({"male": 1, "female": 2})
    table["smoking"] = table["smoking"].map({"never": 0, "former": 1, "current": 2})
    for name in ("diabetes", "copd", TARGET):
        table[name] = table[name].map({"no": 0, "yes": 1})
    return table.fillna(999).rename(columns={"pressure": "PAS", "pulse": "FC", TARGET: "decesso"})


def _brno(patients: pd.DataFrame) -> pd.DataFrame:
    """Haemoglobin in g/l, words in Czech."""
    table = patients[[*COLUMNS, TARGET]].copy()
    table["haemoglobin"] = (table["haemoglobin"].astype(float) * 10).round()
    table["sex"] = table["sex"].map({"male": "muž", "female": "žena"})
    for name in ("diabetes", "copd", TARGET):
        table[name] = table[name].map({"no": "ne", "yes": "ano"})
    smoking = {"never": "nekuřák", "former": "bývalý", "current": "kuřák"}
    table["smoking"] = table["smoking"].map(smoking)
    czech = {"age": "věk", "sex": "pohlaví", "pulse": "puls", "temperature": "teplota"}
    return table.rename(columns={**czech, TARGET: "úmrtí"})


def _split(patients: pd.DataFrame) -> pd.DataFrame:
    """Codes of SPSS, whose labels are the plan's words; -9 for missing."""
    table = patients[[*COLUMNS, TARGET]].copy()
    table["sex"] = table["sex"].map({"male": 1, "female": 2})
    table["smoking"] = table["smoking"].map({"never": 1, "former": 2, "current": 3})
    for name in ("diabetes", "copd", TARGET):
        table[name] = table[name].map({"no": 0, "yes": 1})
    return table.fillna(-9)


def as_process(folder: Path, arguments: Sequence[str]) -> None:
    """Run a command as a process of its own."""
    print(f"{folder.name}$ predbayes {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "predbayes_study", *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
