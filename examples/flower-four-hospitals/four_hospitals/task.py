"""All that is this study's own; replace it by yours.

    network    the torch module that every site trains and everybody gets back; the plan names it
               by its entry point in pyproject.toml
    read       how a site's table becomes one in the plan's columns, words and units
    begin      for a simulation: hospitals to try it with

The plan beside this file has the digest of this package once it is frozen, so all run the same.
What differs from site to site, such as a name or a unit, belongs into the site's own site.toml.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from predbayes.errors import DataError
from predbayes_flower.simulation import lay_out
from predbayes_lab.data.heart import HOSPITALS, KEPT, parse_hospital
from predbayes_study.kit.kit import freeze
from predbayes_study.plan.schema import Plan
from predbayes_study.tables.sitefile import SiteFile

SITES = ("Cleveland", "Budapest", "Zürich", "Long Beach")  # in the order of the data's files
NUM_REFERENCE = 200  # rows; as many as the plan asks for


def network(num_inputs: int, num_outputs: int) -> nn.Module:
    """What every hospital trains, what is sampled there, and what comes back."""
    return nn.Sequential(nn.Linear(num_inputs, 16), nn.Tanh(), nn.Linear(16, num_outputs))


def read(plan: Plan, site: SiteFile, path: Path) -> pd.DataFrame:
    """A hospital's table in the plan's columns: called at the site, with its own files."""
    return in_plan(pd.read_csv(path))


def in_plan(table: pd.DataFrame) -> pd.DataFrame:
    """Disease in degrees becomes yes or no; a pressure or a cholesterol of 0 was not measured."""
    measured = {name: table[name].where(table[name] > 0) for name in ("trestbps", "chol")}
    return table.assign(disease=(table["num"] > 0).map({False: "no", True: "yes"}), **measured)


def begin(root: Path, data: Path, seed: int = 0) -> None:
    """Make the study of a simulation, and four hospitals with a table and a key each.

    Args:
        root: A folder that does not exist yet.
        data: The folder with the four files of UCI's heart disease data.
        seed: Of the draw of reference rows, which in a real study are nobody's patients.
    """
    patients = pd.concat(
        [_table(data / f"processed.{name}.data") for name in HOSPITALS], keys=SITES
    )
    order = torch.randperm(len(patients), generator=torch.Generator().manual_seed(seed))
    is_reference = pd.Series(False, index=patients.index)
    is_reference.iloc[order[:NUM_REFERENCE].numpy()] = True
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        in_plan(patients[is_reference]).to_csv(scratch / "reference.csv", index=False)
        shutil.copy(Path(__file__).with_name("plan.toml"), scratch)
        freeze(scratch / "plan.toml", scratch / "kit", scratch / "labels.json")
        tables = {site: patients[~is_reference].loc[site] for site in SITES}
        lay_out(root, scratch / "kit", scratch / "labels.json", tables)


def _table(path: Path) -> pd.DataFrame:
    """One hospital's complete rows as published."""
    try:
        rows = parse_hospital(path.read_bytes(), path.name)
    except OSError as error:
        raise DataError(f"there is no {path}; `predbayes data fetch heart` has it") from error
    return pd.DataFrame(rows.numpy(), columns=list(KEPT))
