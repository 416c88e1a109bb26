from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from predbayes.errors import DataError
from predbayes_study.plan.schema import Plan, Vector
from predbayes_study.tables.check import site_problems
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.tables.suggest import complete, suggest

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


def small_class(num):
    return rows(outcome=["no"] * 150 + ["yes"] * (150 - num) + ["perhaps"] * num)


def with_a_comma(table):
    table = table.map(lambda cell: cell.replace(".", ","))
    table.loc[1, "age"] = "33.5"
    return table


COMMA = "[file]\ndecimal = ','"
LOST = f"[columns]\nsex = {{ recode = {{ male = '{CANARY}' }} }}"
IDLE = f"[columns]\nchol = {{ missing = ['{CANARY}', '-9'] }}"
FINDS = [  # severity, key, a table and a site's file of which it is found, how each text begins
    ("error", "cells", changed([4, 9], age="17", sex="x"), "", ["sex: 2 values"]),
    ("error", "cells", changed([4, 9], outcome="maybe"), "", ["outcome: 2 values"]),
    ("error", "cells", changed([5], sex=""), "", ["sex: 1 value missing (line 5)"]),
    ("error", "cells", changed([3], age="33,5"), "", ["age: 1 value with a decimal comma"]),
    ("error", "cells", with_a_comma(rows()), COMMA, ["age: 1 value with a point"]),
    ("error", "recode", rows(), LOST, ["sex"]),
    ("error", "site.toml", rows(), "[columns]\nchl = {}", ["[columns]"]),
    ("error", "site.toml", rows(), "[columns]\nage = { column = 'Age' }", ["age"]),
    ("error", "rows", rows(11), "", ["outcome: known in 11 rows"]),
    ("warning", "cells", changed([2, 3, 4], ward=CANARY), "", ["ward: 3 values"]),
    ("warning", "cells", changed([4, 9], age="17"), "", ["age: 2 values"]),
    ("warning", "constant", rows(sex="male"), "", ["sex"]),
    ("warning", "missing", rows(chol=""), "", ["chol"]),
    ("warning", "missing", rows(ward=["burns"] + [""] * (NUM_ROWS - 1)), "", ["ward"]),
    ("warning", "absent", rows().drop(columns="ward"), "", ["ward"]),
    ("warning", "target", rows(outcome="no"), "", ["outcome"]),
    ("warning", "target", small_class(3), "", ["outcome"]),
    ("warning", "target", small_class(5), "", ["outcome"]),  # which the hold-out makes too small
    ("warning", "target", small_class(10), "", []),
    ("warning", "codes", rows(), IDLE, ["chol"]),
    ("warning", "rows", rows(40), "", ["32 rows to train on", "8 rows held out"]),
    ("warning", "rows", changed(range(2, 52), outcome=""), "", ["outcome: missing in 50 rows"]),
    ("warning", "repeated", pd.concat([rows(), rows().iloc[[0, 7]]]), "", ["2 rows are the same"]),
]


@pytest.mark.parametrize(("severity", "key", "table", "site", "begins"), FINDS)
def test_a_rule_finds_what_it_is_for(check, severity, key, table, site, begins):
    checked = check(table, site)
    assert CANARY not in " ".join((*texts(checked.findings), *checked.summary))
    found = [one.text for one in checked.findings if (one.severity, one.key) == (severity, key)]
    for text, begin in zip(found, begins, strict=True):
        assert text.startswith(begin)


def test_a_table_that_fits_has_no_findings(check):
    checked = check(rows())
    assert checked.findings == ()
    assert checked.summary == (
        "300 rows, 4 of 4 columns found",
        "missing values: none",
        "240 rows to train on, 60 held out",
    )
    assert "missing values: chol in 50 rows" in check(changed(range(2, 52), chol="")).summary


def test_errors_come_first(check):
    checked = check(changed([4, 9], age="17", sex="x", chol="?", ward="kitchen", outcome="maybe"))
    assert [text.split(":")[0] for text in texts(checked.errors)] == ["sex", "chol", "outcome"]
    assert checked.findings == (*checked.errors, *checked.warnings)


class TestAdvice:
    def test_a_missing_column_is_said_with_the_likely_one(self, check):
        (found,) = check(rows().rename(columns={"chol": "Cholesterin"})).errors
        assert 'write column = "Cholesterin" for chol in site.toml' in found.text
        checked = check(rows().rename(columns={"outcome": "Ausgang"}).drop(columns="chol"))
        assert 'write column = "Ausgang" under [target] in site.toml' in checked.errors[1].text
        assert 'write column = "your name for it" for chol' in checked.errors[0].text

    def test_a_code_that_recurs_is_proposed_as_missing(self, check):
        table = changed(range(10, 16), chol="0")
        (found,) = check(table).errors
        assert 'perhaps write missing = ["0"] for chol in site.toml' in found.text
        assert not check(table, "[columns]\nchol = { missing = ['0'] }").errors

    def test_a_unit_is_proposed_and_fixes_it(self, check):
        table = rows()
        table["chol"] = (table["chol"].astype(float) / 38.67).round(2)
        (found,) = check(table).errors
        assert "perhaps write factor = 38.67 for chol in site.toml" in found.text
        assert not check(table, "[columns]\nchol = { factor = 38.67 }").errors

    def test_small_classes_are_told_without_their_count(self, check):
        checked = check(small_class(3))
        (found,) = checked.warnings
        assert "3" not in found.text
        assert "147" not in " ".join((found.text, *checked.summary))

    def test_a_regression_that_is_constant(self, check, plan):
        tables = plan.model_dump() | {"target": {"name": "outcome", "task": "regression"}}
        (found,) = check(rows(outcome="7.5"), plan=Plan.model_validate(tables)).warnings
        assert found.key == "target"


class TestSecrecy:
    @pytest.mark.parametrize("column", ["age", "sex", "chol", "ward", "outcome"])
    @pytest.mark.parametrize("value", [CANARY, "-73519.25", "73519,25", "7.351.925,5"])
    def test_no_text_has_a_value_and_values_have_it(self, check, column, value):
        for count in (1, 20):
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

    @pytest.mark.parametrize("ending", ["40,male\n", '40,male,200,burns,"no" x\n'])
    def test_a_line_that_cannot_be_read_is_not_pointed_at(self, ending, plan, tmp_path):
        rows().to_csv(tmp_path / "rows.csv", index=False)
        with (tmp_path / "rows.csv").open("a") as file:
            file.write(ending)
        own, path = SiteFile(format=1, name="B"), tmp_path / "rows.csv"
        for read in (
            lambda: site_problems(plan, own, path),
            lambda: read_site_table(plan, own, path),
            lambda: suggest(plan, path, "B"),
            lambda: complete(plan, path, 'format = 1\nname = "B"\n'),
        ):
            with pytest.raises(DataError, match="--show-values names the lines") as refused:
                read()
            assert "302" not in str(refused.value)
            assert "1 line" not in str(refused.value)
        with pytest.raises(DataError, match="line 302"):
            site_problems(plan, own, path, 0)

    @pytest.mark.parametrize("num_rows", [244, 245, 300])
    def test_rows_without_a_target_are_not_the_rest_of_two_numbers(self, check, num_rows):
        for few in (range(1, 5), range(5, 10)):
            said = set()
            for num in few:
                table = rows(num_rows + num)
                table.loc[: num - 1, "outcome"] = ""
                checked = check(table, least=None)
                said.add((*checked.summary, *texts(checked.findings)))
            assert len(said) == 1
        assert f"{num_rows} rows with outcome, at least 5 rows without, 4 of 4" in said.pop()[0]

    @pytest.mark.parametrize("least", [5, 8])
    @pytest.mark.parametrize("num_rows", [12, 30, 70, 130])
    @pytest.mark.parametrize(("column", "value"), [("age", "500"), ("kind", "odd")])
    def test_nor_does_an_error_or_a_warning_tell_them(
        self, check, plan, column, value, num_rows, least
    ):
        rules = plan.rules.model_copy(update={"min_cell": least})
        kind = plan.columns["sex"].model_copy(update={"other": True})
        columns = {"age": plan.columns["age"], "kind": kind}
        plan = plan.model_copy(update={"rules": rules, "columns": columns})
        said = set()
        for num in range(1, least):
            table = rows(num_rows).rename(columns={"sex": "kind"})
            table.loc[: num - 1, column] = value
            checked = check(table, plan=plan, least=None)
            said.add(next(one for one in checked.findings if one.text.startswith(column)))
        assert len({(one.severity, one.text) for one in said}) == 1
        table[column] = value
        assert any(one.text.startswith(column) for one in check(table, plan=plan).errors)

    @pytest.mark.parametrize("min_cell", [1, 2, 5, 7])
    def test_nor_does_a_class(self, check, plan, min_cell):
        rules = plan.rules.model_copy(update={"min_cell": min_cell})
        plan = plan.model_copy(update={"rules": rules})
        for least, fewest in ((None, 5), (12, 12)):  # of a site's policy
            fewest = max(fewest, min_cell)
            said = {
                tuple(texts(check(small_class(num), plan=plan, least=least).findings))
                for num in range(1, fewest)
            }
            [[text]] = said
            assert f"fewer than {fewest} rows are of the class 'perhaps'" in text

    def test_nor_does_a_vector_column_tell_its_mean(self, plan, tmp_path):
        """A plan's scale decides how many digits of it some scales would be."""
        lab = Vector(type="vector", size=1, centre=0.0, scale=1e-9)
        plan = plan.model_copy(update={"columns": {"lab": lab}})
        rows(60).to_csv(tmp_path / "rows.csv", index=False)
        values = np.random.default_rng(0).normal(50, 9, (60, 1))
        np.save(tmp_path / "lab.npy", values)
        own, path = SiteFile(format=1, name="B"), tmp_path / "rows.csv"
        [text] = [t for t in texts(site_problems(plan, own, path).findings) if "unlike" in t]
        assert not re.search(r"\d", text)
        [text] = [t for t in texts(site_problems(plan, own, path, 0).findings) if "unlike" in t]
        assert f"their mean is {int(values.mean())}" in text

    def test_repeated_rows_are_not_pointed_at(self, check):
        table = pd.concat([rows(), rows().iloc[[0, 7]]])
        checked = check(table, least=None)
        [found] = checked.warnings
        assert found.text.startswith("fewer than 5 rows are the same as an earlier row")
        assert "line" not in found.text
        assert found.hides
