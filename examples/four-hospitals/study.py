"""Four hospitals, one study, and nothing but commands: `python study.py DATA OUT [from-nothing]`.

DATA is the folder with the four files of UCI's heart disease data (`predbayes data fetch heart`).
OUT becomes five folders, one for the coordinator and one for each hospital, with its table as that
hospital might export it. Then each hospital does its part in a process of its own, with a model of
its choice.

With `from-nothing` the coordinator has no reference row and no label, but a draft: names of
columns, units and words. Each hospital tells what its columns are like, in a survey, and the
reference rows are drawn from the surveys.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch

HERE = Path(__file__).parent
RAW = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
COLUMNS = [*RAW, "slope", "ca", "thal", "num"]
PAIN = {1: "typical angina", 2: "atypical angina", 3: "other pain", 4: "none"}
ECG = {0: "normal", 1: "ST-T", 2: "hypertrophy"}
NUM_REFERENCE, NUM_SYNTHETIC, TEST_SHARE = 97, 1000, 0.34


@dataclass(frozen=True)
class Hospital:
    """One site: its name in the study, its folder, its file in the data, its choice of model."""

    name: str
    folder: str
    file: str
    learner: str


HOSPITALS = (
    Hospital("Cleveland", "cleveland", "processed.cleveland.data", "gaussian-process"),
    Hospital("Budapest", "hungarian", "processed.hungarian.data", "random-forest"),
    Hospital("Zürich", "switzerland", "processed.switzerland.data", "network"),
    Hospital("Long Beach", "va", "processed.va.data", "logistic-regression"),
)

ALIKE = tuple(replace(hospital, learner="logistic-regression") for hospital in HOSPITALS)
"""The same hospitals, which all fit what is quick to fit."""

Run = Callable[[Path, Sequence[str]], None]
"""Runs one command of predbayes in a folder."""


def main(data: Path, out: Path, seed: int = 0, run: Run | None = None) -> None:
    """The whole story, from five folders to a recommendation for each hospital."""
    prepare(data, out, seed)
    conduct(out, HOSPITALS, run or as_process)


def from_nothing(data: Path, out: Path, seed: int = 0, run: Run | None = None) -> None:
    """The same without a reference row and without a label."""
    run = run or as_process
    prepare(data, out, seed, "draft.toml", num_reference=0)
    make_keys(out, ALIKE, run)
    plan_by_surveys(out, ALIKE, run, ["--reference", str(NUM_SYNTHETIC), "--seed", str(seed)])
    freeze(out / "coordinator", run)
    train_and_adopt(out, ALIKE, run)


def conduct(out: Path, sites: Sequence[Hospital], run: Run, table: str = "patients.csv") -> None:
    """Every command of a study, where somebody would give it."""
    freeze(out / "coordinator", run)
    make_keys(out, sites, run)
    train_and_adopt(out, sites, run, table)


def freeze(coordinator: Path, run: Run) -> None:
    """From a plan with its reference rows to a kit, and a study of it."""
    run(coordinator, ["plan", "check", "plan.toml"])
    run(coordinator, ["plan", "freeze", "plan.toml", "--out", "kit"])
    run(coordinator, ["study", "init", "kit", "--labels", "kit-labels.json"])


def make_keys(out: Path, sites: Sequence[Hospital], run: Run) -> None:
    """Each site makes a key; the coordinator gets its public part."""
    for site in sites:
        at = out / site.folder
        run(at, ["site", "key", site.name])
        shutil.copy(at / f"{site.name}.pub", out / "coordinator")


def plan_by_surveys(
    out: Path, sites: Sequence[Hospital], run: Run, drawn: Sequence[str] = ()
) -> None:
    """From a draft and what sites tell of their columns to a plan, perhaps with drawn rows."""
    coordinator = out / "coordinator"
    surveys, keys = [f"{site.name}.survey" for site in sites], []
    for site, survey in zip(sites, surveys, strict=True):
        at = out / site.folder
        shutil.copy(coordinator / "draft.toml", at)
        run(at, ["site", "survey", "draft.toml", "patients.csv", "--out", survey])
        shutil.copy(at / survey, coordinator)
        keys += ["--key", f"{site.name}.pub"]
    run(
        coordinator,
        ["plan", "merge", "draft.toml", *surveys, *keys, *drawn, "--out", "plan.toml"],
    )


def train_and_adopt(
    out: Path, sites: Sequence[Hospital], run: Run, table: str = "patients.csv"
) -> None:
    """From the sites' kits to a recommendation for each."""
    coordinator = out / "coordinator"
    for site in sites:
        shutil.copytree(coordinator / "kit", out / site.folder / "kit")  # on a USB stick
        run(coordinator, ["study", "admit", site.name, f"{site.name}.pub"])
        if (coordinator / f"{site.name}.survey").exists():
            run(coordinator, ["study", "add", f"{site.name}.survey"])  # for the report's Table 1
    # --8<-- [start:study]
    for site in sites:
        at = out / site.folder
        run(at, ["site", "check", "kit", table])
        run(at, ["site", "approve", "kit", "--by", "data protection"])
        run(at, ["site", "train", "kit", table, "--out", "out", "--learner", site.learner])
        shutil.copy(at / "out" / f"{site.name}.safetensors", coordinator)
        run(coordinator, ["study", "add", f"{site.name}.safetensors"])
    run(coordinator, ["study", "finish"])
    run(coordinator, ["study", "verify"])
    for site in sites:
        at = out / site.folder
        shutil.copytree(coordinator / "study" / "results" / "1" / "model", at / "model")
        run(at, ["site", "adopt", "model", table, "--home", "out", "--out", "adopted"])
    # --8<-- [end:study]


def as_process(folder: Path, arguments: Sequence[str]) -> None:
    """Run a command as a process of its own."""
    print(f"{folder.name}$ predbayes {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "predbayes_study", *arguments], cwd=folder, check=True)


def prepare(
    data: Path, out: Path, seed: int, plan: str = "plan.toml", num_reference: int = NUM_REFERENCE
) -> None:
    """Plan and reference rows for the coordinator; a table and a site.toml for each hospital."""
    if lacking := [h.file for h in HOSPITALS if not (data / h.file).is_file()]:
        sys.exit(f"{data} has no {lacking[0]}; `predbayes data fetch heart` says where it is")
    rng = torch.Generator().manual_seed(seed)
    tables = [_complete(pd.read_csv(data / h.file, header=None, names=COLUMNS)) for h in HOSPITALS]
    tests, rest = zip(*(_split(table, TEST_SHARE, rng) for table in tables), strict=True)
    everybody = pd.concat(rest, keys=range(len(rest)))
    drawn = torch.randperm(len(everybody), generator=rng)[:num_reference].tolist()
    coordinator = out / "coordinator"
    coordinator.mkdir(parents=True)
    if drawn:
        in_plan(everybody.iloc[drawn]).to_csv(coordinator / "reference.csv", index=False)
    shutil.copy(HERE / plan, coordinator)
    left = everybody.drop(everybody.index[drawn])
    for number, (hospital, test) in enumerate(zip(HOSPITALS, tests, strict=True)):
        at = out / hospital.folder
        at.mkdir()
        shutil.copy(HERE / "sites" / f"{hospital.folder}.toml", at / "site.toml")
        export(hospital, left.loc[number], at / "patients.csv")
        in_plan(test).to_csv(at / "later-patients.csv", index=False)


def in_plan(table: pd.DataFrame) -> pd.DataFrame:
    """Rows in the plan's columns, words and units."""
    yes = {0: "no", 1: "yes"}
    return pd.DataFrame(
        {
            "age": table["age"],
            "sex": table["sex"].map({0: "female", 1: "male"}),
            "pain": table["cp"].map(PAIN),
            "pressure": _measured(table["trestbps"]),
            "cholesterol": _measured(table["chol"]),
            "sugar": table["fbs"].map({0: "normal", 1: "high"}),
            "ecg": table["restecg"].map(ECG),
            "pulse": table["thalach"],
            "angina": table["exang"].map(yes),
            "depression": table["oldpeak"],
            "disease": (table["num"] > 0).astype(int).map(yes),
        }
    )


def export(hospital: Hospital, table: pd.DataFrame, path: Path) -> None:
    """A table as the hospital's own system writes it."""
    match hospital.folder:
        case "cleveland":
            table.to_csv(path, index=False)
        case "hungarian":
            _hungarian(table).to_csv(path, index=False, sep=";", decimal=",", encoding="utf-8")
        case "switzerland":
            _swiss(table).to_csv(path, index=False, sep=";", encoding="cp1252")
        case _:
            table.to_csv(path, index=False, sep="\t", na_rep="-9")


def _hungarian(table: pd.DataFrame) -> pd.DataFrame:
    names = ["életkor", "nem", "fájdalom", "vérnyomás", "koleszterin", "vércukor", "ekg"]
    renamed = table[RAW].set_axis([*names, "pulzus", "terheléses angina", "ST"], axis=1)
    renamed["nem"] = renamed["nem"].map({0: "nő", 1: "férfi"})
    renamed["terheléses angina"] = renamed["terheléses angina"].map({0: "nem", 1: "igen"})
    renamed["betegség"] = (table["num"] > 0).map({False: "nem", True: "igen"})
    return renamed


def _swiss(table: pd.DataFrame) -> pd.DataFrame:
    names = ["Alter", "Geschlecht", "Schmerz", "RR syst.", "Chol [mmol/l]", "Nüchternzucker > 120"]
    names += ["EKG", "Puls max.", "Angina bei Belastung", "ST-Senkung"]
    renamed = table[RAW].set_axis(names, axis=1)
    renamed["Geschlecht"] = renamed["Geschlecht"].map({0: "w", 1: "m"})
    renamed["Chol [mmol/l]"] = (renamed["Chol [mmol/l]"] / 38.67).round(1).map("{:g}".format)
    for name in ("Nüchternzucker > 120", "Angina bei Belastung"):
        renamed[name] = renamed[name].map({0: "nein", 1: "ja"})
    renamed["KHK"] = (table["num"] > 0).map({False: "nein", True: "ja"})
    return renamed


def _complete(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with every column that the plan has, as integers where they are."""
    known = table.replace("?", float("nan"))[[*RAW, "num"]].astype(float).dropna()
    whole = [name for name in known.columns if name != "oldpeak"]
    return known.astype(dict.fromkeys(whole, int)).reset_index(drop=True)


def _split(
    table: pd.DataFrame, share: float, rng: torch.Generator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    order = torch.randperm(len(table), generator=rng).tolist()
    num = -int(-share * len(table) // 1)  # rounded up
    return table.iloc[sorted(order[:num])], table.iloc[sorted(order[num:])]


def _measured(values: pd.Series) -> pd.Series:
    """A pressure or a cholesterol of 0 was not measured."""
    return values.where(values > 0)


if __name__ == "__main__":
    begin = from_nothing if sys.argv[3:] == ["from-nothing"] else main
    begin(Path(sys.argv[1]), Path(sys.argv[2]))
