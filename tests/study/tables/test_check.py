from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from predbayes_study.plan.schema import Plan
from predbayes_study.tables.check import site_problems
from predbayes_study.tables.sitefile import SiteFile

CANARY = "Kanarienvogel"
NUM_ROWS = 300
PLAN = """
format = 1
name = "ward"
[target]
name = "outcome"
task = "classification"
classes = ["no", "yes", "perhaps"]
[columns]
age = { type = "number", unit = "years", range = [18, 100] }
sex = { type = "category", categories = ["female", "male"], other = false }
chol = { type = "number", unit = "mg/dl", range = [80, 700], missing = "flag" }
ward = { type = "category", categories = ["surgery", "burns"], missing = "flag", optional = true }
[reference]
"""


@pytest.fixture
def plan():
    return Plan.loads(PLAN)


def rows(num=NUM_ROWS, **columns):
    draw = np.random.default_rng(0)
    table = {
        "age": draw.uniform(30, 80, num).round(6).astype(str),
        "sex": draw.choice(["male", "female"], num),
        "chol": draw.uniform(150, 300, num).round(1).astype(str),
        "ward": draw.choice(["surgery", "burns"], num),
        "outcome": draw.choice(["no", "yes", "perhaps"], num),
    }
    return pd.DataFrame(table | columns)


@pytest.fixture
def check(plan, tmp_path):
    def check(table, text="", plan=plan, least=0):
        path = tmp_path / "rows.csv"
        table.to_csv(path, index=False)
        own = SiteFile.loads(f"format = 1\nname = 'B'\n{text}")
        return site_problems(plan, own, path, least)

    return check


def changed(lines, **cells):
    """A table in which some lines of its file are other."""
    table = rows()
    for column, cell in cells.items():
        table.loc[[line - 2 for line in lines], column] = cell
    return table


def texts(findings):
    return [finding.text for finding in findings]


class TestErrors:
    def test_a_table_that_fits_has_no_findings(self, check):
        checked = check(rows())
        assert checked.findings == ()
        assert checked.summary == (
            "300 rows, 4 of 4 columns found",
            "missing values: none",
            "240 rows to train on, 60 held out",
        )

    def test_everything_is_said_at_once_errors_first(self, check):
        table = changed([4, 9], age="17", sex="x", chol="?", ward="kitchen", outcome="maybe")
        table.loc[2, "age"] = "16"
        checked = check(table)
        columns = [text.split(":")[0] for text in texts(checked.errors)]
        assert columns == ["sex", "chol", "outcome"]
        assert [text.split(":")[0] for text in texts(checked.warnings)] == ["age", "ward"]
        assert checked.findings == (*checked.errors, *checked.warnings)
        assert all(
            "2 values" in text and "(lines 4, 9)" in text for text in texts(checked.findings)
        )

    def test_a_missing_column_is_said_with_the_likely_one(self, check):
        checked = check(rows().rename(columns={"chol": "Cholesterin"}))
        assert texts(checked.errors) == [
            'chol: the column is missing; write column = "Cholesterin" for chol in site.toml'
        ]
        checked = check(rows().rename(columns={"outcome": "Ausgang"}).drop(columns="chol"))
        assert 'write column = "Ausgang" under [target] in site.toml' in checked.errors[1].text
        assert 'write column = "your name for it" for chol' in checked.errors[0].text

    def test_a_code_that_recurs_is_proposed_as_missing(self, check):
        checked = check(changed(range(10, 16), chol="0"))
        assert texts(checked.errors) == [
            "chol: 6 values outside 80 to 700 (lines 10, 11, 12, 13, 14 and 1 more); "
            'perhaps write missing = ["0"] for chol in site.toml'
        ]
        assert not check(
            changed(range(10, 16), chol="0"), "[columns]\nchol = { missing = ['0'] }"
        ).errors

    def test_a_unit_is_proposed_and_mends_it(self, check):
        table = rows()
        table["chol"] = (table["chol"].astype(float) / 38.67).round(2)
        [error] = check(table).errors
        assert "perhaps write factor = 38.67 for chol in site.toml" in error.text
        assert not check(table, "[columns]\nchol = { factor = 38.67 }").errors

    def test_a_decimal_comma_and_a_point_too_many_are_explained(self, check):
        [error] = check(changed([3], age="33,5")).errors
        assert 'write decimal = "," under [file] in site.toml' in error.text
        commas = rows().map(lambda cell: cell.replace(".", ","))
        commas.loc[1, "age"] = "33.5"
        [error] = check(commas, "[file]\ndecimal = ','").errors
        assert "age: 1 value with a point, in a file that has decimal commas (line 3)" in error.text
        assert error.values == ("33.5",)

    @pytest.mark.parametrize(
        ("table", "site", "named"),
        [
            (changed([5], sex=""), "", "sex: 1 value missing (line 5)"),
            (rows(), f"[columns]\nsex = {{ recode = {{ male = '{CANARY}' }} }}", "sex: site.toml"),
            (rows(), "[columns]\nchl = {}", "'chl'; did you mean 'chol'?"),
            (rows(), "[columns]\nage = { column = 'Age' }", "'Age'; did you mean 'age'?"),
        ],
    )
    def test_what_the_plan_needs_and_names_that_nobody_has(self, check, table, site, named):
        found = texts(check(table, site).errors)
        assert any(named in text for text in found)
        assert CANARY not in " ".join(found)

    def test_too_few_rows(self, check):
        [text] = texts(check(rows(11)).errors)
        assert text.startswith("outcome: known in 11 rows; with fewer than min_rows = 10")
        assert not check(rows(12)).errors


class TestWarnings:
    @pytest.mark.parametrize(
        ("table", "site", "columns"),
        [
            (changed([2, 3, 4], ward=CANARY), "", ["ward"]),
            (rows(sex="male"), "", ["sex"]),
            (rows(chol=""), "", ["chol"]),
            (rows(ward=["burns"] + [""] * (NUM_ROWS - 1)), "", ["ward", "ward"]),
            (rows().drop(columns="ward"), "", ["ward"]),
            (rows(outcome="no"), "", ["outcome"]),
            (rows(outcome=["no", "yes"] * 150), "", ["outcome"]),
            (rows(), f"[columns]\nchol = {{ missing = ['{CANARY}', '-9'] }}", ["chol"]),
            (rows(40), "", ["32 rows to train on", "8 rows held out"]),
            (pd.concat([rows(), rows().iloc[[0, 7]]]), "", ["2 rows are the same"]),
        ],
    )
    def test_what_is_odd_is_named_and_passes(self, check, table, site, columns):
        checked = check(table, site)
        assert not checked.errors
        assert CANARY not in " ".join(texts(checked.warnings))
        for text, column in zip(texts(checked.warnings), columns, strict=True):
            assert text.startswith(column)

    def test_rows_without_a_target_or_a_value_are_counted(self, check):
        checked = check(changed(range(2, 52), outcome="", chol=""))
        (warning,) = checked.warnings
        assert warning.text.startswith("outcome: missing in 50 rows")
        assert checked.summary[1:] == (
            "missing values: chol in 50 rows",
            "200 rows to train on, 50 held out",
        )

    @pytest.mark.parametrize(("num", "warned"), [(3, True), (5, True), (10, False)])
    def test_small_classes_are_told_without_their_count(self, check, num, warned):
        """Those that the hold-out makes too small as well."""
        checked = check(rows(outcome=["no"] * 150 + ["yes"] * (150 - num) + ["perhaps"] * num))
        assert len(checked.warnings) == warned
        for warning in checked.warnings:
            assert "'perhaps'" in warning.text
            assert "3" not in warning.text
            assert str(150 - num) not in " ".join((warning.text, *checked.summary))

    def test_a_regression_that_is_constant(self, check, plan):
        tables = plan.model_dump() | {"target": {"name": "outcome", "task": "regression"}}
        number = Plan.model_validate(tables)
        [warning] = check(rows(outcome="7.5"), plan=number).warnings
        assert warning.text.startswith("outcome: the same in every row")


class TestSecrecy:
    @pytest.mark.parametrize("column", ["age", "sex", "chol", "ward", "outcome"])
    @pytest.mark.parametrize("value", [CANARY, "-73519.25", "73519,25", "7.351.925,5"])
    @pytest.mark.parametrize("count", [1, 4, 20])
    def test_no_text_has_a_value_and_values_have_it(self, check, column, value, count):
        checked = check(changed(range(2, 2 + count), **{column: value}))
        shown = " ".join((*texts(checked.findings), *checked.summary, repr(checked)))
        assert value not in shown
        assert any(finding.values == (value,) for finding in checked.findings)

    def test_hints_name_no_words_of_a_column(self, check):
        """They had named frequent ones: a recode's words are cells."""
        table = rows()
        table["sex"] = table["sex"].map({"male": "herr", "female": "frau"})
        [found] = check(table, least=5).errors
        assert "a recode, which --suggest drafts" in found.text
        assert not {"herr", "frau"} & set(re.findall(r"\w+", found.text))
        [found] = check(table, least=0).errors
        assert 'recode = { frau = "female", herr = "male" }' in found.text

    def test_at_most_five_different_values_are_kept(self, check):
        table = rows()
        table.loc[:19, "ward"] = [f"w{i // 2}" for i in range(20)]
        [warning] = check(table).warnings
        assert warning.values == ("w0", "w1", "w2", "w3", "w4")


class TestWhatMayLeave:
    """Without lines, and with counts in steps: a plan's range may be about one person."""

    def told(self, check, table, plan=None, least=None):
        checked = check(table, least=least, **({} if plan is None else {"plan": plan}))
        return [*texts(checked.findings), *checked.summary]

    @pytest.mark.parametrize("column", ["age", "sex", "chol", "ward", "outcome"])
    @pytest.mark.parametrize("value", [CANARY, "-73519", ""])
    def test_from_one_to_four_rows_everything_reads_the_same(self, check, column, value):
        said = {
            tuple(self.told(check, changed(places, **{column: value})))
            for places in ([7], [30], [8, 9, 50], [2, 3, 4, 5])
        }
        num_known = {line for lines in said for line in lines if "rows to train on" in line}
        assert len(said) == len(num_known)  # rows without a target are not trained on
        assert all("fewer than 5 " in " ".join(lines) for lines in said)

    def test_a_narrow_range_tells_nobody_inside(self, check, plan):
        narrow = plan.columns["age"].model_copy(update={"range": (44.0, 44.2)})
        plan = plan.model_copy(update={"columns": {**plan.columns, "age": narrow}})
        table = rows(age="50.5")
        texts_of = set()
        for num_inside in (1, 2, 3, 4):
            table.loc[: num_inside - 1, "age"] = "44.1"
            texts_of.add(self.told(check, table, plan)[0])
        assert texts_of == {
            "age: at least 295 values outside 44 to 44.2; correct them, or write their code as "
            "missing = [...] for age in site.toml; if all rows are in another unit, write a factor"
        }

    def test_no_plan_lowers_it(self, check, plan):
        rules = plan.rules.model_copy(update={"min_cell": 1})
        lax = plan.model_copy(update={"rules": rules})
        [text, *_] = self.told(check, changed([4, 9], chol="0"), lax)
        assert text.startswith("chol: fewer than 5 values outside 80 to 700; correct them")
        assert '"0"' not in text  # a code that two rows have is theirs
        [text, *_] = self.told(check, changed(range(4, 20), chol="0"), least=10)
        assert text.startswith("chol: at least 10 values")

    def test_repeated_rows_are_not_pointed_at(self, check):
        table = pd.concat([rows(), rows().iloc[[0, 7]]])
        checked = check(table, least=None)
        [found] = checked.warnings
        assert found.text.startswith("fewer than 5 rows are the same as an earlier row")
        assert "line" not in found.text
        assert found.hides
