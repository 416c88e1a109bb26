"""Reference rows as spreadsheet programs write them."""

from __future__ import annotations

import pandas as pd
import pytest

from predbayes.errors import DataError
from predbayes_study.kit.draft import draft
from predbayes_study.kit.kit import Kit, freeze
from predbayes_study.plan.text import dump
from predbayes_study.tables.reading import read_frame, read_reference

ROWS = pd.DataFrame(
    {
        "Größe": [f"{150 + row}.{row % 7}" for row in range(60)],
        "Station": ["süd", "nord", "ost"] * 20,
        "krank": ["ja", "nein"] * 30,
    }
)


def german(path, encoding="cp1252", sep=";"):
    table = ROWS.assign(Größe=ROWS["Größe"].str.replace(".", ","))
    table.to_csv(path, sep=sep, index=False, encoding=encoding, lineterminator="\r\n")
    return path


@pytest.mark.parametrize(
    ("name", "encoding", "sep"),
    [("r.csv", "cp1252", ";"), ("r.txt", "utf-16", "\t"), ("r.csv", "utf-8", ",")],
)
def test_whatever_a_sites_reader_reads(tmp_path, name, encoding, sep):
    read = read_reference(german(tmp_path / name, encoding, sep))
    assert read.reset_index(drop=True).equals(ROWS.astype(object))


def test_decimal_commas_are_told_from_delimiters_and_thousands(tmp_path):
    path = tmp_path / "r.csv"
    for title in ("", "Export 2024\n\n"):
        path.write_text(title + "a;b\n" + "1,5;x\n2,5;y\n" * 20)
        assert read_reference(path)["a"].tolist() == ["1.5", "2.5"] * 20
    path.write_text('a,b\n1.5,"1,5;x"\n,\n 2.50 ,y\n')
    assert read_reference(path).equals(read_frame(path))  # a plain table stays as it was
    path.write_text("a;b\n1,5;x\n1.500;y\n2,5;z\n")
    with pytest.raises(DataError, match="a: some numbers"):
        read_reference(path)


def test_from_a_german_file_to_a_kit(tmp_path):
    path = german(tmp_path / "rows.csv")
    plan = draft(read_reference(path), name="p", target="krank", file="rows.csv").plan
    told = {"source": "a", "licence": "b", "legal_basis": "c"}
    plan = plan.model_copy(update={"reference": plan.reference.model_copy(update=told)})
    (tmp_path / "plan.toml").write_text(dump(plan))
    kit = freeze(tmp_path / "plan.toml", tmp_path / "kit")
    assert Kit.load(tmp_path / "kit").inputs.equal(kit.inputs)
    assert kit.plan.columns["Größe"].centre == pytest.approx(179.8, abs=0.5)
    assert kit.plan.columns["Station"].categories == ("nord", "ost", "süd")
