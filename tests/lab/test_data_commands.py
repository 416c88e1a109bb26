from __future__ import annotations

import pytest
from typer.testing import CliRunner

from predbayes.errors import DataError
from predbayes_lab.commands import datasets as app
from predbayes_lab.data import fetch as fetch_module
from tests.lab.data.publishers import table, write_hospitals, write_idx_set, write_table


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("PREDBAYES_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_list_shows_what_is_there_and_where(root):
    write_table(root, *table("wine"))
    write_idx_set(root / "mnist", ("train", "t10k"))
    result = run("list")
    assert result.exit_code == 0
    rows = {cells[1].strip(): cells for cells in map(split_row, result.output.splitlines())}
    assert rows["wine"][2:5] == ["regression", "50", "yes"]
    assert rows["mnist"][2:5] == ["classification", "30", "yes"]
    assert rows["heart"][2:5] == ["classification", "", "no"]
    assert f"PREDBAYES_DATA is {root}" in result.output.replace("\n", "")


def split_row(line):
    cells = [cell.strip() for cell in line.replace("┃", "│").split("│")]
    return cells if len(cells) > 5 else ["", "", ""]


def test_check_shows_files_and_fingerprint_and_fails_if_they_differ(root):
    write_hospitals(root)
    result = run("check", "heart")
    assert isinstance(result.exception, DataError)
    assert "processed.va.data differs" in str(result.exception)
    assert "num_train: 71" in result.output
    assert "note: groups are the hospitals" in result.output


def test_fetch_says_what_was_written_and_whom_to_cite(root, monkeypatch):
    asked = []

    def fetch(name, *, progress):
        asked.append((name, progress))
        return [root / "uci" / "winequality-red.csv"]

    monkeypatch.setattr(fetch_module, "fetch", fetch)
    result = run("fetch", "wine")
    assert asked == [("wine", True)]
    assert "winequality-red.csv" in result.output
    assert f"wine is complete in {root / 'uci'}; licence: " in result.output.replace("\n", " ")
    assert "doi:10.24432/C56S3T" in result.output


def test_unknown_names_are_errors_of_the_user(root):
    for command in ("fetch", "check"):
        result = run(command, "vine")
        assert isinstance(result.exception, DataError)
        assert "did you mean 'wine'?" in str(result.exception)
