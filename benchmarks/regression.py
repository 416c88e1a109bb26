"""Red wines at four sites, from light to strong, by commands alone: errors in points of quality.

Wines are dealt to sites by quartiles of their alcohol, so that no site has seen what the others
have. Each fits a model of its own choice; one of them measures in other units and marks in percent.
What each takes home is scored on wines to come (`benchmarks.by_commands`): RMSE, CRPS and the width
of intervals in points, and how many of the 95 % intervals hold the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.by_commands import Story, example, run_quietly, uci

NUM_SPLITS = 5
TEST_SHARE = 0.2
NUM_LABELLED, NUM_EVALUATE = 150, 200
UNIT = "points"
TABLE = "wines.csv"

PLAN = f"""\
format = 1
name = "red wines"
description = "How experts mark a red wine, 0 to 10, from eleven measurements; UCI, 2009."

[target]
name = "quality"
task = "regression"
unit = "{UNIT}"

[columns]
"fixed acidity" = {{ type = "number", unit = "g/l", range = [0, 30] }}
"volatile acidity" = {{ type = "number", unit = "g/l", range = [0, 5] }}
"citric acid" = {{ type = "number", unit = "g/l", range = [0, 5] }}
"residual sugar" = {{ type = "number", unit = "g/l", range = [0, 50] }}
chlorides = {{ type = "number", unit = "g/l", range = [0, 2] }}
"free sulfur dioxide" = {{ type = "number", unit = "mg/l", range = [0, 200] }}
"total sulfur dioxide" = {{ type = "number", unit = "mg/l", range = [0, 500] }}
density = {{ type = "number", unit = "g/ml", range = [0.9, 1.1] }}
pH = {{ type = "number", range = [2, 5] }}
sulphates = {{ type = "number", unit = "g/l", range = [0, 5] }}
alcohol = {{ type = "number", unit = "% vol", range = [5, 20] }}

[reference]
file = "reference.csv"
source = "Wines of all four sites, which stand in for reference rows here"
licence = "CC BY 4.0 (UCI Machine Learning Repository, Wine Quality)"
legal_basis = "published measurements of wines"
labelled = {NUM_LABELLED}
evaluate = {NUM_EVALUATE}

[model]
hidden = [32]

[learner]
name = "any"                    # each site its own choice

[pool]
own = "gaussian-process"

[rules]
quorum = 3
"""

OTHER_UNITS = """
[columns]
density = { column = "density (kg/m3)", factor = 0.001 }
"residual sugar" = { column = "residual sugar (g/dl)", factor = 10 }
[target]
column = "mark (%)"
factor = 0.1
"""


@dataclass(frozen=True)
class Cellar:
    """One site: its name and folder, its choice of model, whether it has units of its own."""

    name: str
    folder: str
    learner: str
    other_units: bool = False


SITES = (
    Cellar("Lightest", "lightest", "network"),
    Cellar("Light", "light", "linear-regression"),
    Cellar("Strong", "strong", "random-forest", other_units=True),
    Cellar("Strongest", "strongest", "gaussian-process"),
)


def run(splits: int = NUM_SPLITS) -> dict[str, Any]:
    """Run the study on every split, and score what comes home."""
    return {"unit": UNIT, **story().run(splits)}


def story() -> Story:
    """The study, with its commands in this process."""
    return Story(SITES, conduct, TABLE, ("rmse", "crps", "coverage_95"))


def conduct(out: Path, seed: int) -> None:
    """Deal the wines, and run every command."""
    prepare(read_wines(), out, np.random.default_rng(seed))
    example().conduct(out, SITES, run_quietly, TABLE)


def read_wines() -> pd.DataFrame:
    """Every wine once: the publisher has 240 rows twice, which would be trained and tested on."""
    return pd.read_csv(uci("winequality-red.csv", "wine"), sep=";").drop_duplicates()


def prepare(wines: pd.DataFrame, out: Path, rng: np.random.Generator) -> None:
    """Reference rows and a plan for the coordinator; a table and a site.toml for each site."""
    strength = pd.qcut(wines["alcohol"], len(SITES), labels=False).to_numpy()
    order = rng.permutation(len(wines))
    num_test = round(TEST_SHARE * len(wines))
    test, reference, rest = np.split(order, [num_test, num_test + NUM_LABELLED + NUM_EVALUATE])
    coordinator = out / "coordinator"
    coordinator.mkdir(parents=True)
    (coordinator / "plan.toml").write_text(PLAN, encoding="utf-8")
    wines.iloc[reference].to_csv(coordinator / "reference.csv", index=False)
    for number, site in enumerate(SITES):
        at = out / site.folder
        at.mkdir()
        units = OTHER_UNITS if site.other_units else ""
        (at / "site.toml").write_text(f'format = 1\nname = "{site.name}"\n{units}')
        table = wines.iloc[rest[strength[rest] == number]]
        table = in_other_units(table) if site.other_units else table
        table.to_csv(at / TABLE, index=False)
        wines.iloc[test[strength[test] == number]].to_csv(at / f"later-{TABLE}", index=False)


def in_other_units(wines: pd.DataFrame) -> pd.DataFrame:
    """Wines as `OTHER_UNITS` describes them."""
    converted = {
        "density (kg/m3)": 1000 * wines["density"],
        "residual sugar (g/dl)": wines["residual sugar"] / 10,
        "mark (%)": 10 * wines["quality"],
    }
    return wines.drop(columns=["density", "residual sugar", "quality"]).assign(**converted)
