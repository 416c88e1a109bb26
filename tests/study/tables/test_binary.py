"""Spreadsheets and files of statistics programs: real ones, read as text is."""

from __future__ import annotations

import datetime

import openpyxl
import pandas as pd
import pyreadstat
import pytest

from predbayes.errors import DataError
from predbayes_study.plan.schema import Plan
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.reading import read_binary, read_raw, read_reference
from predbayes_study.tables.sitefile import FileForm, SiteFile
from predbayes_study.tables.suggest import suggest

PLAN = """
format = 1
name = "home"
target = { name = "death", task = "classification", classes = ["no", "yes"] }
reference = {}
[columns]
age = { type = "number" }
crp = { type = "number", missing = "flag" }
sex = { type = "category", categories = ["female", "male"], other = false }
"""
FRAME = pd.DataFrame(
    {
        "age": [50, 61, 72, 38],
        "crp": [1.5, None, 12.0, 0.25],
        "sex": [2, 1, 2, 1],
        "death": [0, 1, 0, 0],
    }
)
LABELS = {"sex": {1: "male", 2: "female"}, "death": {0: "no", 1: "yes"}}
EXPECTED = {
    "age": ["50", "61", "72", "38"],
    "crp": ["1.5", "", "12", "0.25"],
    "sex": ["female", "male", "female", "male"],
    "death": ["no", "yes", "no", "no"],
}


def write_sheet(path, rows, *, more=()):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for number, cells in enumerate(more):
        sheet = book.create_sheet(f"more {number}")
        for row in cells:
            sheet.append(row)
    book.save(path)
    return path


def write(kind, folder, times=1):
    """The same four patients, as often as is said, as a program of that kind writes them."""
    path, table = folder / f"patients.{kind}", pd.concat([FRAME] * times, ignore_index=True)
    if kind == "csv":
        table.to_csv(path, index=False)
        return path
    if kind == "xlsx":
        words = table.astype(object).where(table.notna(), None)
        for name, labels in LABELS.items():
            words[name] = table[name].map(labels)
        return write_sheet(path, [list(words.columns), *words.to_numpy().tolist()])
    save = getattr(pyreadstat, f"write_{kind}")
    save(table, str(path), variable_value_labels=LABELS)
    return path


@pytest.mark.parametrize("kind", ["xlsx", "sav", "dta"])
class TestEveryKind:
    def test_cells_are_text_and_labelled_values_their_labels(self, kind, tmp_path):
        frame = read_raw(FileForm(), write(kind, tmp_path))
        assert {name: frame[name].tolist() for name in frame} == EXPECTED
        assert frame.index.tolist() == [2, 3, 4, 5]
        plan, site = Plan.loads(PLAN), SiteFile(format=1, name="Split")
        pd.DataFrame(EXPECTED).to_csv(tmp_path / "same.csv", index=False)
        found = read_site_table(plan, site, tmp_path / f"patients.{kind}")
        same = read_site_table(plan, site, tmp_path / "same.csv")
        pd.testing.assert_frame_equal(found, same, check_dtype=False)
        reference = read_reference(tmp_path / f"patients.{kind}")
        assert reference["crp"].tolist() == EXPECTED["crp"]

    def test_suggestions_use_the_labels(self, kind, tmp_path):
        """Codes that a program has words for need no recoding; those of a CSV do."""
        plan = Plan.loads(PLAN)
        coded = suggest(plan, write("csv", tmp_path, times=6), name="Split")
        assert "sex" in coded.sitefile_text.partition("[columns]")[2]
        labelled = suggest(plan, write(kind, tmp_path, times=6), name="Split")
        assert SiteFile.loads(labelled.sitefile_text).columns == {}

    def test_what_is_no_such_file_is_said_in_one_line(self, kind, tmp_path):
        path = tmp_path / f"x.{kind}"
        with pytest.raises(DataError, match="there is no such file"):
            read_binary(path)
        path.write_text("age,sex\n50,secret\n")
        with pytest.raises(DataError, match=f"x.{kind} is not a ") as refused:
            read_binary(path)
        assert "secret" not in str(refused.value)


class TestSheets:
    def test_dates_whole_numbers_marks_and_empty_lines(self, tmp_path):
        rows = [
            ["when", "n", "x", "yes"],
            [datetime.date(2024, 2, 29), 3.0, 0.5, True],
            [None, None, None, None],
            [datetime.datetime(2024, 2, 29, 12, 30), " 4 ", 1e-7, False],
        ]
        frame = read_binary(write_sheet(tmp_path / "a.xlsx", rows), decimal=",")
        assert frame["when"].tolist() == ["2024-02-29", "2024-02-29T12:30:00"]
        assert frame["n"].tolist() == ["3", "4"]
        assert frame["x"].tolist() == ["0,5", "1e-07"]
        assert frame["yes"].tolist() == ["true", "false"]
        assert frame.index.tolist() == [2, 4]

    def test_two_columns_of_one_name_are_refused_and_nameless_ones_left_out(self, tmp_path):
        book = openpyxl.Workbook()
        book.active.append(["age", None, "age", None])
        book.active.append([50, 1, 51, 2])
        book.save(tmp_path / "twice.xlsx")
        with pytest.raises(DataError, match="the same name"):
            read_reference(tmp_path / "twice.xlsx")
        book.active["C1"] = "sex"
        book.save(tmp_path / "once.xlsx")
        assert [*read_reference(tmp_path / "once.xlsx").columns] == ["age", "sex"]

    def test_title_lines_are_found(self, tmp_path):
        titles, names = [["Export of May"], [None]], ["age", "crp", "sex", "death"]
        rows = [[50 + n, 1.5, "male" if n % 2 else "female", "no"] for n in range(30)]
        path = write_sheet(tmp_path / "a.xlsx", [*titles, names, *rows])
        frame = read_reference(path)
        assert (list(frame.columns), frame.index[0]) == (names, 4)
        drafted = suggest(Plan.loads(PLAN), path, "Ward 7").sitefile_text
        assert SiteFile.loads(drafted).file.skip == 2
        assert len(read_site_table(Plan.loads(PLAN), SiteFile.loads(drafted), path)) == 30

    def test_empty_sheets_do_not_matter_and_two_tables_are_refused(self, tmp_path):
        rows = [["age"], [50]]
        assert len(read_binary(write_sheet(tmp_path / "a.xlsx", rows, more=[[]]))) == 1
        with pytest.raises(DataError, match="has 2 sheets with cells"):
            read_binary(write_sheet(tmp_path / "b.xlsx", rows, more=[rows]))
        with pytest.raises(DataError, match="column names"):
            read_binary(write_sheet(tmp_path / "c.xlsx", []))


class TestStatistics:
    def test_what_the_program_calls_missing_is_an_empty_cell(self, tmp_path):
        frame = pd.DataFrame({"age": [50.0, -9.0, 61.0], "ward": ["a", "c", ""]})
        path = tmp_path / "a.sav"
        pyreadstat.write_sav(frame, str(path), missing_ranges={"age": [-9]})
        found = read_binary(path)
        assert found["age"].tolist() == ["50", "", "61"]
        assert found["ward"].tolist() == ["a", "c", ""]

    def test_a_label_of_one_code_leaves_the_numbers(self, tmp_path):
        frame = pd.DataFrame({"age": [50.0, -9.0, 61.0]})
        path = tmp_path / "a.dta"
        pyreadstat.write_dta(frame, str(path), variable_value_labels={"age": {-9: "unknown"}})
        assert read_binary(path)["age"].tolist() == ["50", "unknown", "61"]
