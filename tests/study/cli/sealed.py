"""The plan and the reference rows of a study of sealed sums."""

from __future__ import annotations

from tests.study.cli.test_moments import patients

CLASSES = 'name = "ill"\ntask = "classification"\nclasses = ["no", "yes"]'
PLAN = f"""
format = 1
name = "sealed"
description = "for a test"
[target]
{CLASSES}
[columns]
age = {{ type = "number", unit = "years" }}
marker = {{ type = "number", unit = "1" }}
sex = {{ type = "category", categories = ["female", "male"], other = false }}
[reference]
file = "reference.csv"
source = "drawn"
licence = "none"
legal_basis = "nobody's"
labelled = 120
evaluate = 60
unlabelled = 120
[learner]
name = "logistic-regression"
[pool]
own = "logistic-regression"
[model]
hidden = [8]
[rules]
quorum = 3
"""
PRIVACY = """[sealed]
holders = [%s]
minimum = 3
max_sites = 20
"""


def reference_rows():
    rows = patients(300, seed=99).drop(columns="days")
    rows.loc[180:, "ill"] = ""
    return rows
