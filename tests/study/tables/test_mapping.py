from __future__ import annotations

import gc
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import DataError, PlanError
from predbayes_study.plan.schema import Plan
from predbayes_study.tables.coding import code_table, code_targets
from predbayes_study.tables.column import to_number, to_point
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.tables.suggest import suggest

PLAN = """
format = 1
name = "tables"
[target]
name = "outcome"
task = "classification"
classes = ["no", "yes"]
[columns]
chol = { type = "number", unit = "mg/dl", range = [80, 700], missing = "flag" }
temp = { type = "number", unit = "C", range = [30, 45], missing = "flag" }
sex = { type = "category", categories = ["female", "male"], missing = "flag" }
[reference]
"""
CANARY = "Kanarienvogel"
LATE = ("a,b\n" + f"{CANARY},1\n" * 50_000 + "\xe4,2\n").encode("latin-1")
SITE = """
format = 1
name = "Basel"
[missing]
codes = ["leer"]
[columns]
chol = { column = "Größe X", factor = 40, missing = [0] }
temp = { column = "F", factor = 0.5, offset = -16.0 }
sex = { recode = { 1 = "male", 2 = "female" }, missing = ["9"] }
[target]
recode = { ja = "yes" }
"""
ROWS = [
    ["Größe X", "F", "sex", "outcome", "more"],
    ["5.5", "104", "1", "ja", "x"],
    ["0", "leer", "2", "no", "y"],
    ["0.0", "100.0", "9", "", "z"],
]


@pytest.fixture
def site():
    return SiteFile.loads(SITE)


def _opened(path):
    files = [o for o in gc.get_objects() if type(o) is io.TextIOWrapper and not o.closed]
    return [file for file in files if str(file.name) == str(path)]


def write(folder, rows=ROWS, *, delimiter=",", decimal=".", encoding="utf-8", end="\n"):
    cells = [[cell.replace(".", decimal) for cell in row] for row in rows]
    path = folder / "rows.csv"
    path.write_bytes(end.join(delimiter.join(row) for row in cells).encode(encoding))
    return path


def formed(site, **form):
    return SiteFile.model_validate(site.model_dump() | {"file": form})


class TestFile:
    def test_the_key_lies_beside_it_unless_it_says_otherwise(self, tmp_path):
        path = tmp_path / "site.toml"
        path.write_text('format = 1\nname = "Basel"\n')
        assert SiteFile.load(path).folder == tmp_path
        assert SiteFile.load(path).key_path == tmp_path / "Basel.key"
        path.write_text('format = 1\nname = "Basel"\nkey = "keys/b.key"\n')
        assert SiteFile.load(path).key_path == tmp_path / "keys" / "b.key"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("nmae = 'x'", "top level: no key 'nmae'; did you mean 'name'?"),
            ("[file]\ndelimeter = ';'", "file: no key 'delimeter'; did you mean 'delimiter'?"),
            ("[columns]\nage = { faktor = 2 }", "columns.age: no key 'faktor'; did you mean"),
            ("[target]\nrecodes = {}", "target: no key 'recodes'; did you mean 'recode'?"),
            ("[columns]\nage = { factor = 0 }", "columns.age.factor: must not be 0"),
            ("[file]\nencoding = 'klingon'", "file.encoding: no such encoding"),
            ("[file]\ndelimiter = ';;'", "file.delimiter"),
            (
                "[columns]\nage = { factor = inf }",
                "columns.age.factor: input should be a finite number",
            ),
        ],
    )
    def test_every_mistake_is_one_line_with_the_closest_key(self, text, said):
        with pytest.raises(PlanError) as raised:
            SiteFile.loads(f"format = 1\nname = 'Basel'\n{text}\n")
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        "line",
        [
            f'recode = {{ "{CANARY}" = [1] }}',
            f'recode = {{ {CANARY} = "a", {CANARY} = "b" }}',
            f'recode = {{ "{CANARY} = "b" }}',
            f'recode = "{CANARY}"',
            f'missing = "{CANARY}"',
        ],
    )
    def test_errors_do_not_repeat_what_may_be_a_cell(self, line):
        with pytest.raises(PlanError) as raised:
            SiteFile.loads(f"format = 1\nname = 'Basel'\n[target]\n{line}\n")
        assert CANARY not in str(raised.value)


class TestTable:
    def test_cells_come_out_in_the_plans_columns_units_and_words(self, plan, site, tmp_path):
        frame = read_site_table(plan, site, write(tmp_path))
        assert list(frame.columns) == ["chol", "temp", "sex", "outcome"]
        assert code_table(plan, frame).tolist()[0] == [220.0, 36.0, 1.0]
        assert frame.iloc[1:].to_numpy().tolist() == [
            ["", "", "female", "no"],
            ["", "34.0", "", ""],
        ]
        assert code_targets(plan, frame)[:2].tolist() == [1.0, 0.0]

    @pytest.mark.parametrize("delimiter", [";", "\t", "|"])
    @pytest.mark.parametrize("decimal", [".", ","])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_how_the_file_is_written_changes_nothing(
        self, plan, site, tmp_path, delimiter, decimal, encoding, end
    ):
        form = {"delimiter": delimiter, "decimal": decimal}
        path = write(tmp_path, encoding=encoding, end=end, **form)
        told = "utf-8" if encoding == "utf-8-sig" else encoding
        found = read_site_table(plan, formed(site, encoding=told, **form), path)
        pd.testing.assert_frame_equal(found, read_site_table(plan, site, write(tmp_path)))

    def test_parquet_gives_what_csv_gives(self, plan, site, tmp_path):
        typed = pd.DataFrame(
            {
                "Größe X": [5.5, 0.0, np.nan],
                "F": [104, 90, 100],
                "sex": pd.array([1, 2, None], dtype="Int64"),
                "outcome": ["ja", "no", None],
            }
        )
        typed.to_parquet(tmp_path / "rows.parquet")
        rows = [ROWS[0][:4], ["5.5", "104", "1", "ja"], ["0", "90", "2", "no"], ["", "100", "", ""]]
        expected = read_site_table(plan, site, write(tmp_path, rows))
        for decimal in ".,":
            told = formed(site, decimal=decimal)
            found = read_site_table(plan, told, tmp_path / "rows.parquet")
            pd.testing.assert_frame_equal(found, expected)

    def test_rows_keep_the_lines_of_the_file(self, plan, site, tmp_path):
        header, *rows = (",".join(row) for row in ROWS)
        text = "\n".join([header, rows[0], "", ",,,,", rows[1], '5,100,1,ja,"a\nb"', rows[2]])
        path = tmp_path / "rows.csv"
        path.write_text(text)
        frame = read_site_table(plan, site, path)
        assert list(frame.index) == [2, 5, 6, 8]
        assert frame.index.name == "line"

    @pytest.mark.parametrize("cell", ["0", "0.0", "0.00", "-0", "+0", "0e3"])
    def test_a_missing_code_is_found_in_every_spelling_of_its_number(
        self, plan, site, tmp_path, cell
    ):
        rows = [ROWS[0], ["5", "100", "1", "no", ""], [cell, "100", "1", "no", ""]]
        assert read_site_table(plan, site, write(tmp_path, rows))["chol"].tolist() == ["200.0", ""]

    def test_a_code_of_one_column_means_nothing_in_another(self, plan, site, tmp_path):
        rows = [ROWS[0], ["9", "0", "1", "no", ""], ["5", "90", "9", "no", ""]]
        frame = read_site_table(plan, site, write(tmp_path, rows))
        # What may be a code for missing is not converted where it is out of range: it is refused.
        assert frame.iloc[0].tolist() == ["360.0", "0.0", "male", "no"]
        assert frame.iloc[1].tolist() == ["200.0", "29.0", "", "no"]
        recode = "[columns]\nchol = { factor = 40, recode = { '<2' = 80 } }"  # in the plan's unit
        own = SiteFile.loads(f"format = 1\nname = 'B'\n{recode}")
        path = write(tmp_path, [["chol", "sex"], ["<2", "male"], ["5", "male"]])
        assert read_site_table(plan, own, path)["chol"].tolist() == ["80", "200.0"]


class TestDecimalComma:
    @pytest.mark.parametrize("text", ["1.234", "12.5", "0.5", "-3.0", "1.5e3"])
    def test_a_point_alone_is_refused_as_it_may_mean_thousands(self, plan, tmp_path, text):
        site = SiteFile.loads("format = 1\nname = 'B'\n[file]\ndelimiter = ';'\ndecimal = ','\n")
        path = write(tmp_path, [["chol", "sex"], ["5,5", "male"], [text, "male"]], delimiter=";")
        with pytest.raises(DataError, match="chol: fewer than 5 values with a point") as raised:
            read_site_table(plan, site, path)
        assert text not in str(raised.value)

    @given(st.integers(-(10**9), 10**9), st.integers(0, 6))
    def test_every_number_reads_back_with_or_without_thousands(self, digits, places):
        value = round(digits / 10**places, places)
        english = f"{value:,.{places}f}"
        german = english.translate(str.maketrans({",": ".", ".": ","}))
        if places or german.count(".") != 1:
            assert to_number(german, ",") == value
        else:
            assert to_point(german, ",") is None
        assert to_number(f"{value:.{places}f}".replace(".", ","), ",") == value


class TestRefusals:
    @pytest.mark.parametrize(
        "content",
        [
            f"{CANARY},12,7.5\nx,13,8\n",
            f"{CANARY},male,ja\nx,male,nein\nx,female,ja\n",
            f"{CANARY};a\n1;2\n",
            f"a,b\n{CANARY}\n",
            f'a,b\n1,"{CANARY}"x\n',
            f"a,a\n{CANARY},1\n",
            f"\n{CANARY}\n",
            f"a,b\n{CANARY}\xe4,1\n".encode("latin-1"),
            f"a,b\n{CANARY}\0,1\n",
            f"a,b\n{CANARY},2\n1\n1,2,3\n",
            pytest.param(LATE, id="an error beyond the first block"),
            f"a,b\n{CANARY},1\n".encode("utf-16"),
            "a,b\n",
            b"",
        ],
    )
    def test_a_file_that_cannot_be_read_is_one_line_without_a_cell(self, plan, tmp_path, content):
        path = tmp_path / "rows.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataError) as raised:
            read_site_table(plan, SiteFile(format=1, name="B"), path)
        assert CANARY not in str(raised.value)
        assert "\n" not in str(raised.value)
        assert not _opened(path)  # although the error, and so every frame, is still held

    def test_names_that_neither_side_has_are_said_with_the_nearest(self, plan, tmp_path):
        site = SiteFile.loads(
            "format = 1\nname = 'B'\n[columns]\nchl = {}\nchol = { column = 'Chl' }\n"
            "[target]\ncolumn = 'Resultat'\n"
        )
        path = write(tmp_path, [["Chol", "Result"], ["5", "no"]])
        with pytest.raises(DataError) as raised:
            read_site_table(plan, site, path)
        assert "[columns]: no column of the plan 'chl'; did you mean 'chol'?" in str(raised.value)
        assert "chol: no column in the file 'Chl'; did you mean 'Chol'?" in str(raised.value)
        assert "outcome: no column in the file 'Resultat'; did you mean" in str(raised.value)


class TestLimitsDaysTitles:
    """What laboratories and registries write, read as site.toml says."""

    PLAN = Plan.loads(
        """
format = 1
name = "ward"
[target]
name = "ill"
task = "classification"
classes = ["no", "yes"]
[columns]
crp = { type = "number", unit = "mg/l", range = [0, 500], missing = "impute" }
age = { type = "number", unit = "years", range = [0, 120] }
stay = { type = "number", unit = "days", range = [0, 400] }
[reference]
"""
    )
    ROWS = (
        "crp;Geburtsdatum;ein;aus;ill\n"
        "<5;01.07.1960;01.07.2020;11.07.2020;no\n"
        "> 200;02.01.1990;02.01.2020;02.01.2020;yes\n"
        "7,5;31.12.1950;31.12.2020;01.01.2021;no\n"
    )
    AGE = 'age = { column = "Geburtsdatum", date = "%d.%m.%Y", until = "ein" }\n'
    STAY = 'stay = { column = "ein", date = "%d.%m.%Y", until = "aus" }\n'

    def read(self, tmp_path, crp, *, age=AGE, stay=STAY, title=""):
        path = tmp_path / "rows.csv"
        path.write_text(title + self.ROWS)
        head = 'format = 1\nname = "B"\n[file]\ndelimiter = ";"\ndecimal = ","\n'
        skip = f"skip = {title.count(chr(10))}\n[columns]\n"
        return read_site_table(self.PLAN, SiteFile.loads(head + skip + crp + age + stay), path)

    @pytest.mark.parametrize(
        ("limit", "cells"),
        [
            ("value", ["5.0", "200.0", "7.5"]),
            ("half", ["2.5", "200.0", "7.5"]),
            ("missing", ["", "", "7.5"]),
            ("refuse", ["<5", "> 200", "7.5"]),
        ],
    )
    def test_limits(self, tmp_path, limit, cells):
        assert [*self.read(tmp_path, f'crp = {{ limit = "{limit}" }}\n')["crp"]] == cells
        if limit == "value":  # which a factor is of, too
            read = self.read(tmp_path, 'crp = { limit = "value", factor = 10 }\n')
            assert [*read["crp"]] == ["50.0", "2000.0", "75.0"]

    def test_days_become_times_in_the_plans_unit(self, tmp_path):
        read = self.read(tmp_path, "")
        assert [round(float(cell)) for cell in read["age"]] == [60, 30, 70]
        assert [*read["stay"]] == ["10.0", "0.0", "1.0"]
        read = self.read(tmp_path, "", age=self.AGE.replace('"ein"', '"2030-07-01"'))
        assert round(float(read["age"].iloc[0])) == 70

    def test_all_of_it_is_proposed(self, tmp_path):
        path = tmp_path / "rows.csv"
        title, (names, *rows) = "Export 2024;;;;\n\n", self.ROWS.splitlines()
        path.write_text("\n".join([title + names, *(rows * 10)]))
        drafted = suggest(self.PLAN, path, "B")
        own = SiteFile.loads(drafted.sitefile_text)
        assert (own.file.skip, own.file.delimiter, own.file.decimal) == (2, ";", ",")
        assert own.columns["crp"].limit == "half"
        assert own.columns["age"].column == "Geburtsdatum"
        assert 'write date = "%d.%m.%Y"' in " ".join(drafted.notes)
        assert not any("200" in note for note in drafted.notes)
