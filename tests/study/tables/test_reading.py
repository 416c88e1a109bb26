"""Tables read from files: text however it is written, and files of other programs."""

from __future__ import annotations

import datetime

import openpyxl
import pandas as pd
import pyreadstat
import pytest

from predbayes.errors import DataError
from predbayes_study.plan.schema import Plan
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.reading import (
    Remedies,
    read_binary,
    read_csv,
    read_frame,
    read_raw,
    read_reference,
    sniff,
)
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
    [[50, 1.5, 2, 0], [61, None, 1, 1], [72, 12.0, 2, 0], [38, 0.25, 1, 0]],
    columns=["age", "crp", "sex", "death"],
)
LABELS = {"sex": {1: "male", 2: "female"}, "death": {0: "no", 1: "yes"}}
EXPECTED = {
    "age": ["50", "61", "72", "38"],
    "crp": ["1.5", "", "12", "0.25"],
    "sex": ["female", "male", "female", "male"],
    "death": ["no", "yes", "no", "no"],
}
GERMAN = pd.DataFrame(
    {
        "Größe": [f"{150 + row}.{row % 7}" for row in range(60)],
        "Station": ["süd", "nord", "ost"] * 20,
        "krank": ["ja", "nein"] * 30,
    }
)


class TestText:
    def test_every_cell_is_stripped_text_and_the_index_its_line(self, write):
        frame = read_frame(write("a, b \n 1 ,NA\n\n , \n,x\n"))
        assert frame.to_dict("list") == {"a": ["1", "", ""], "b": ["NA", "", "x"]}
        assert (list(frame.index), frame.index.name) == ([2, 4, 5], "line")
        assert list(read_frame(write('a,b\n"x\ny",1\nz,2\n')).index) == [2, 4]
        # A reference row may lack every value; a spreadsheet leaves such lines behind.
        remedies = Remedies("re-encode", "split anew")
        assert list(read_csv(write("a\n1\n\n2\n"), remedies).index) == [2, 4]
        assert list(read_raw(FileForm(), write("a,b\n1,2\n,\n3,4\n")).index) == [2, 4]

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("rows.xls", r"save the table as \.csv"),
            ("rows", r"save the table as \.csv"),
            ("none.csv", r"cannot read .*No such file"),
            ("none.parquet", r"cannot read .*No such file"),
            ("rows.parquet", "not a Parquet file"),
        ],
    )
    def test_another_kind_of_file_says_what_to_do(self, write, tmp_path, name, says):
        if name.startswith("rows"):
            write("a,b\n1,2\n", name)
        with pytest.raises(DataError, match=says):
            read_frame(tmp_path / name)


class TestReference:
    """Reference rows as spreadsheet programs write them."""

    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
    def test_every_form_is_found(self, tmp_path, delimiter, encoding):
        for decimal in ".,":
            table = GERMAN.assign(Größe=GERMAN["Größe"].str.replace(".", decimal))
            path = tmp_path / "t.csv"
            table.to_csv(path, index=False, sep=delimiter, encoding=encoding, lineterminator="\r\n")
            told = "utf-8" if encoding == "utf-8-sig" else encoding
            assert sniff(path) == FileForm(delimiter=delimiter, decimal=decimal, encoding=told)
            assert read_reference(path).reset_index(drop=True).equals(GERMAN.astype(object))

    def test_decimal_commas_are_told_from_delimiters_and_thousands(self, write):
        for title in ("", "Export 2024\n\n"):
            path = write(title + "a;b\n" + "1,5;x\n2,5;y\n" * 20)
            assert read_reference(path)["a"].tolist() == ["1.5", "2.5"] * 20
        path = write('a,b\n1.5,"1,5;x"\n,\n 2.50 ,y\n')
        assert read_reference(path).equals(read_frame(path))  # a plain table stays as it was
        with pytest.raises(DataError, match="a: some numbers"):
            read_reference(write("a;b\n1,5;x\n1.500;y\n2,5;z\n"))


def write_sheet(path, *sheets):
    book = openpyxl.Workbook()
    for number, rows in enumerate(sheets):
        sheet = book.create_sheet(f"more {number}") if number else book.active
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


@pytest.mark.parametrize("kind", ["xlsx", "sav", "dta"])
class TestEveryProgram:
    def test_cells_are_text_and_labelled_values_their_labels(self, kind, tmp_path):
        path = tmp_path / f"patients.{kind}"
        if kind == "xlsx":
            words = FRAME.astype(object).where(FRAME.notna(), None)
            words = words.assign(**{n: FRAME[n].map(labels) for n, labels in LABELS.items()})
            write_sheet(path, [list(words.columns), *words.to_numpy().tolist()])
        else:
            save = getattr(pyreadstat, f"write_{kind}")
            save(FRAME, str(path), variable_value_labels=LABELS)
        frame = read_raw(FileForm(), path)
        assert {name: frame[name].tolist() for name in frame} == EXPECTED
        assert frame.index.tolist() == [2, 3, 4, 5]
        assert read_reference(path)["crp"].tolist() == EXPECTED["crp"]
        site = SiteFile(format=1, name="Split")
        pd.DataFrame(EXPECTED).to_csv(tmp_path / "same.csv", index=False)
        found, same = (
            read_site_table(Plan.loads(PLAN), site, one) for one in (path, tmp_path / "same.csv")
        )
        pd.testing.assert_frame_equal(found, same, check_dtype=False)

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
        assert frame.to_dict("list") == {
            "when": ["2024-02-29", "2024-02-29T12:30:00"],
            "n": ["3", "4"],
            "x": ["0,5", "1e-07"],
            "yes": ["true", "false"],
        }
        assert frame.index.tolist() == [2, 4]

    def test_two_columns_of_one_name_are_refused_and_nameless_ones_left_out(self, tmp_path):
        path = tmp_path / "a.xlsx"
        with pytest.raises(DataError, match="the same name"):
            read_reference(write_sheet(path, [["age", None, "age", None], [50, 1, 51, 2]]))
        write_sheet(path, [["age", None, "sex", None], [50, 1, 51, 2]])
        assert [*read_reference(path).columns] == ["age", "sex"]

    def test_title_lines_are_found(self, tmp_path):
        titles, names = [["Export of May"], [None]], ["age", "crp", "sex", "death"]
        rows = [[50 + n, 1.5, "male" if n % 2 else "female", "no"] for n in range(30)]
        path = write_sheet(tmp_path / "a.xlsx", [*titles, names, *rows])
        frame = read_reference(path)
        assert (list(frame.columns), frame.index[0]) == (names, 4)
        site = SiteFile.loads(suggest(Plan.loads(PLAN), path, "Ward 7").sitefile_text)
        assert site.file.skip == 2
        assert len(read_site_table(Plan.loads(PLAN), site, path)) == 30

    def test_empty_sheets_do_not_matter_and_two_tables_are_refused(self, tmp_path):
        rows, path = [["age"], [50]], tmp_path / "a.xlsx"
        assert len(read_binary(write_sheet(path, rows, []))) == 1
        with pytest.raises(DataError, match="has 2 sheets with cells"):
            read_binary(write_sheet(path, rows, rows))
        with pytest.raises(DataError, match="column names"):
            read_binary(write_sheet(path, []))


def test_what_a_program_calls_missing_is_an_empty_cell_and_a_label_leaves_numbers(tmp_path):
    frame, path = pd.DataFrame({"age": [50.0, -9.0, 61.0], "ward": ["a", "c", ""]}), tmp_path / "a"
    pyreadstat.write_sav(frame, f"{path}.sav", missing_ranges={"age": [-9]})
    found = read_binary(path.with_suffix(".sav"))
    assert (found["age"].tolist(), found["ward"].tolist()) == (["50", "", "61"], ["a", "c", ""])
    pyreadstat.write_dta(frame, f"{path}.dta", variable_value_labels={"age": {-9: "unknown"}})
    assert read_binary(path.with_suffix(".dta"))["age"].tolist() == ["50", "unknown", "61"]


class TestLineOfNames:
    """A first line that is a row has cells, which would be repeated as names."""

    ROWS = "id,born,sex,crp\n" + "".join(f"P-{n},19{n}-03-01,w,{n}.25\n" for n in range(40, 60))

    @pytest.mark.parametrize(
        ("first", "is_row"),
        [
            ("id,born,sex,crp", False),
            ("P-1,1939-03-01,w,3.75", True),  # a day, a word that is below, and a number
            ("P-1,1.3.1939,w,", True),
            ("P-1,1939-03-01 00:00:00,m,3", True),
            ("P-1,birth,m,3.75", False),
            ("3,birth,w,crp", True),
            ("id,2020-01,w,crp", False),
        ],
    )
    def test_is_told_from_a_row_by_each_of_its_cells(self, write, first, is_row):
        path = write("\n".join([first, *self.ROWS.splitlines()[1:]]))
        if not is_row:
            assert len(read_raw(FileForm(), path)) == 20
            return
        with pytest.raises(DataError, match="looks like a row"):
            read_raw(FileForm(), path)
