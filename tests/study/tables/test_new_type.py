"""A type of column is added in two files: its form in the plan, and its codes and inputs."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.exchange.strict import Finite
from predbayes_study.kit.kit import _scaled, _table
from predbayes_study.plan.schema import Missing, Names, Plan, Positive, Section
from predbayes_study.report.report import column_groups
from predbayes_study.tables import column
from predbayes_study.tables.coding import Encoder, examine
from predbayes_study.tables.column import Cells, Coded, Input
from predbayes_study.tables.mapping import translate
from predbayes_study.tables.problem import Kind
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.tables.suggest import propose

PLAN = """
format = 1
name = "pain"

[target]
name = "outcome"
task = "classification"
classes = ["no", "yes"]

[columns]
pain = { type = "category", categories = ["mild", "some", "much"] }

[reference]
"""


# In `plan.schema`, where it also joins `Scalar` and `Column`.
class Ordinal(Section):
    """Words in an order; their place enters the network as a number does."""

    range: ClassVar[None] = None
    is_scaled: ClassVar[bool] = True
    type: Literal["ordinal"]
    levels: Names
    missing: Missing = "refuse"
    optional: bool = False
    unit: Literal[""] = ""
    centre: Finite | None = None
    scale: Positive | None = None

    @property
    def words(self) -> tuple[str, ...]:
        return self.levels

    @property
    def width(self) -> int:
        return 1 + (self.missing == "flag")


# In `tables.column`, where `_TYPES` has both.
def code_level(form: Ordinal, cells: Cells, _: str) -> Coded:
    texts, places = cells.distinct
    known = {word: float(k) for k, word in enumerate(form.levels)}
    codes = np.array([known.get(text, np.nan) for text in texts])
    strange = np.array([text not in known and text != "" for text in texts], bool)
    return Coded(codes[places], {Kind.UNLISTED: strange[places]})


def level_input(form: Ordinal, source: int) -> list[Input]:
    return [Input(source, form.centre, form.scale, is_number=True)]


@pytest.fixture
def plan(monkeypatch):
    types = {**column._TYPES, "ordinal": column._Type(code_level, level_input)}
    monkeypatch.setattr(column, "_TYPES", types)
    pain = Ordinal(type="ordinal", levels=("mild", "some", "much"), missing="flag")
    return Plan.loads(PLAN).model_copy(update={"columns": {"pain": pain}})


def test_its_way_from_a_site_to_the_network(plan):
    raw = pd.DataFrame({"Schmerz": ["Mild", "much", "", "lots"]}, dtype=object)
    found = propose(plan, "pain", Cells.of(raw.loc[raw.index.repeat(5)], "Schmerz"))
    assert found.entry.recode == {"Mild": "mild"}
    site = SiteFile(format=1, name="Graz", columns={"pain": found.entry})
    frame, _ = translate(plan, site, raw)
    examined = examine(plan, frame)
    assert [(p.kind, p.lines) for p in examined.problems] == [(Kind.UNLISTED, (5,))]

    known = examine(plan, frame[:3])
    roles = type("Roles", (), {"kit": torch.arange(3), "labelled": []})
    scaled = _scaled(plan, known, frame[:3], roles)
    assert (scaled.columns["pain"].centre, scaled.columns["pain"].scale) == (1.0, 1.0)
    inputs = Encoder(scaled).in_blocks(known)
    assert inputs.tolist() == [[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert _table(scaled, frame[:3], known.codes)["pain"].tolist() == ["mild", "much", ""]


def test_the_report_has_its_words(plan):
    (group,) = column_groups(plan.columns)
    assert (group.kind, group.values) == ("ordinal", "mild, some, much")
