"""Vectors of a table: every way to have them, and everything that may be wrong."""

from __future__ import annotations

import tempfile

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file

from predbayes import spill
from predbayes.errors import DataError, PlanError
from predbayes_study.extras.survey.take import take_survey
from predbayes_study.kit.review import Review, check
from predbayes_study.plan.schema import Plan
from predbayes_study.rules import errors_of
from predbayes_study.tables.check import site_problems
from predbayes_study.tables.coding import encode, examine
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.problem import Kind
from predbayes_study.tables.reading import read_frame
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.tables.vectors import guess_vectors, with_vectors

PLAN = """
format = 1
name = "vectors"
[target]
name = "ill"
task = "classification"
classes = ["no", "yes"]
[columns]
age = { type = "number", centre = 50, scale = 10 }
scan = { type = "vector", size = 4, centre = 100, scale = 50 }
code = { type = "vector", size = 5, range = [-10, 10], missing = "flag", centre = 1, scale = 2 }
[reference]
"""
NUM = 6
SITE = SiteFile.loads('format = 1\nname = "Basel"\n')


@pytest.fixture(scope="module")
def plan():
    return Plan.loads(PLAN)


@pytest.fixture(scope="module")
def scans():
    return np.random.default_rng(0).integers(0, 256, (NUM, 4)).astype(np.uint8)


@pytest.fixture(scope="module")
def codes():
    return np.random.default_rng(1).normal(size=(NUM, 5)).astype(np.float32)


def table(**columns):
    return pd.DataFrame({"age": range(40, 40 + NUM), "ill": ["no", "yes"] * (NUM // 2), **columns})


def numbered(order):
    return {"scan": order, "code": order}


def by_lists(folder, scans, codes):
    table(code=list(codes)).to_parquet(folder / "rows.parquet")
    np.save(folder / "scan.npy", scans)
    return folder / "rows.parquet"


def by_order(folder, scans, codes):
    table().to_csv(folder / "rows.csv", index=False)
    np.savez(folder / "rows.npz", scan=scans, code=codes)
    return folder / "rows.csv"


def by_number(folder, scans, codes):
    order = np.random.default_rng(2).permutation(NUM)
    table(**numbered(np.argsort(order))).to_csv(folder / "rows.csv", index=False)
    arrays = {"scan": scans[order].copy(), "code": codes[order].copy()}
    save_file(arrays, folder / "rows.safetensors")
    return folder / "rows.csv"


WAYS = (by_lists, by_order, by_number)


def read(plan, path):
    return read_site_table(plan, SITE, path)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_inputs(way, plan, scans, codes, tmp_path):
    inputs = encode(plan, read(plan, way(tmp_path, scans, codes)))
    assert inputs.shape == (NUM, plan.num_inputs) == (NUM, 1 + 4 + 5 + 1)
    expected = (torch.from_numpy(scans).float() - 100) / 50, (torch.from_numpy(codes) - 1) / 2
    torch.testing.assert_close(inputs[:, plan.blocks["scan"]], expected[0])
    torch.testing.assert_close(inputs[:, plan.blocks["code"]][:, :5], expected[1])
    assert inputs[:, 0].tolist() == pytest.approx([-1.0, -0.9, -0.8, -0.7, -0.6, -0.5])
    assert not inputs[:, -1].any()  # none is missing
    path = way(tmp_path, scans, codes)
    found = guess_vectors(read_frame(path), path)  # as `plan new` does
    assert {name: column.size for name, column in found.items()} == {"scan": 4, "code": 5}
    frame = with_vectors(plan, read_frame(path), path)  # as `predict` does, without a site file
    torch.testing.assert_close(encode(plan, frame), inputs)


@pytest.mark.parametrize("shape", [(NUM,), (NUM, 4, 3)])
def test_plan_new_refuses_arrays_that_are_no_vectors(shape, tmp_path):
    path = by_order(tmp_path, np.zeros(shape), np.zeros((NUM, 5)))
    with pytest.raises(DataError, match=r"rows.npz: scan"):
        guess_vectors(read_frame(path), path)


def test_site_toml_names_another_column_and_file(plan, scans, codes, tmp_path):
    np.save(tmp_path / "all scans.npy", scans)
    np.save(tmp_path / "code.npy", codes)
    table(number=range(NUM)).to_csv(tmp_path / "rows.csv", index=False)
    stated = '[columns]\nscan = { column = "number", file = "all scans.npy" }\n'
    site = SiteFile.loads(f'format = 1\nname = "Basel"\n{stated}')
    expected = encode(plan, read(plan, by_order(tmp_path, scans, codes)))
    table(number=range(NUM)).to_csv(tmp_path / "rows.csv", index=False)
    found = encode(plan, read_site_table(plan, site, tmp_path / "rows.csv"))
    torch.testing.assert_close(found, expected)


def without(path, name, row):
    """Empty a cell of a table."""
    cells = pd.read_csv(path, dtype=str)
    cells.loc[row, name] = ""
    cells.to_csv(path, index=False)


def test_a_missing_vector_is_zeros_with_a_flag(plan, scans, codes, tmp_path):
    path = by_number(tmp_path, scans, codes)
    without(path, "code", 2)
    inputs = encode(plan, read(plan, path))
    assert inputs[2, plan.blocks["code"]].tolist() == [0, 0, 0, 0, 0, 1]
    assert inputs[:, -1].tolist() == [0, 0, 1, 0, 0, 0]
    without(path, "scan", 3)
    with pytest.raises(DataError, match="scan: 1 value missing"):
        encode(plan, read(plan, path))


class TestFaults:
    @pytest.mark.parametrize(
        ("row", "kind"),
        [
            ([1, 2, np.nan, 4, 5], Kind.UNREADABLE),
            ([1, 2, 3, 4, 11], Kind.OUTSIDE),
            ([1, 2, 3, 4], Kind.SIZE),
        ],
    )
    def test_vectors(self, row, kind, plan, codes, scans, tmp_path):
        np.save(tmp_path / "scan.npy", scans)
        lists = [list(map(float, one)) for one in codes]
        table(code=[*lists[:-1], row]).to_parquet(tmp_path / "rows.parquet")
        (problem,) = examine(plan, read(plan, tmp_path / "rows.parquet")).problems
        assert (problem.kind, problem.column, problem.lines) == (kind, "code", (7,))

    def test_few_beyond_the_range_are_clipped_at_a_site(self, plan, scans, codes, tmp_path):
        many = np.tile(codes, (10, 1))
        many[7, 2] = 99
        np.savez(tmp_path / "rows.npz", scan=np.tile(scans, (10, 1)), code=many)
        pd.concat([table()] * 10).to_csv(tmp_path / "rows.csv", index=False)
        frame = read(plan, tmp_path / "rows.csv")
        examined = examine(plan, frame, "clip few")
        assert not examined.problems
        assert [oddity.kind for oddity in examined.oddities] == [Kind.OUTSIDE]
        assert examined.vectors["code"][7, 2] == 10
        assert examine(plan, frame).problems

    def test_a_store_of_other_rows_is_refused(self, plan, scans, codes, tmp_path):
        path = by_order(tmp_path, scans[1:], codes)
        with pytest.raises(DataError, match=r"rows.npz has 5 rows, the table 6"):
            read(plan, path)

    @pytest.mark.parametrize("number", ["6", "-1", "1.5", "p1.npy", "9" * 5000])
    def test_a_number_that_is_no_row_of_the_store(self, number, plan, scans, codes, tmp_path):
        path = by_number(tmp_path, scans, codes)
        cells = pd.read_csv(path, dtype=str)
        cells.loc[0, "scan"] = number
        cells.to_csv(path, index=False)
        (problem,) = examine(plan, read(plan, path)).problems
        assert (problem.kind, problem.column, problem.lines) == (Kind.NO_VECTOR, "scan", (2,))

    @pytest.mark.parametrize("name", ["scan.npy", "rows.npz", "rows.safetensors"])
    def test_a_damaged_store_is_one_line(self, name, plan, tmp_path):
        table().to_csv(tmp_path / "rows.csv", index=False)
        (tmp_path / name).write_bytes(b"\x93NUMPY no more")
        with pytest.raises(DataError, match=name):
            read(plan, tmp_path / "rows.csv")

    def test_nothing_is_unpickled(self, plan, scans, codes, tmp_path):
        path = by_order(tmp_path, scans, codes)
        np.save(tmp_path / "scan.npy", np.array([{}] * NUM), allow_pickle=True)
        with pytest.raises(DataError, match=r"scan.npy"):
            read(plan, path)


class TestCheck:
    def test_doubts_only_vectors_of_another_range(self, plan, scans, codes, tmp_path):
        found = site_problems(plan, SITE, by_number(tmp_path, scans, codes))
        assert not any("scan" in f.text or "code" in f.text for f in found.findings)
        path = by_order(tmp_path, np.full_like(scans, 250), codes)
        warnings = [finding.text for finding in site_problems(plan, SITE, path).warnings]
        assert any(text.startswith("scan: ") for text in warnings)

    def test_no_message_has_a_cell_or_an_exact_count(self, plan, scans, codes, tmp_path):
        table().to_csv(tmp_path / "rows.csv", index=False)
        (error, *_) = site_problems(plan, SITE, tmp_path / "rows.csv").errors
        assert error.text.startswith("scan: the column is missing")
        path = by_number(tmp_path, scans, codes)
        path.write_text(path.read_text().replace("40,no,", "40,no,secret"))
        found = site_problems(plan, SITE, path)
        assert not any("secret" in f.text or "secret" in str(f.values) for f in found.findings)
        assert "scan: fewer than 5 values" in found.errors[0].text


def test_a_survey_is_of_numbers_and_words(plan, tmp_path):
    with pytest.raises(PlanError, match="leave scan, code out of the draft"):
        take_survey(plan, SITE, tmp_path / "rows.csv", step=5, key="", moments=False)


@pytest.mark.parametrize("name", ["../key", "a/b", "a\\\\b", "c:d", ".x", "__metadata__", "codes"])
def test_a_name_that_is_no_files_is_refused(name):
    with pytest.raises(PlanError, match=r"cannot be the name of a vector"):
        Plan.loads(PLAN.replace("scan =", f'"{name}" ='))


def test_vectors_that_no_reference_row_has_are_an_error_of_the_plan(tmp_path):
    table().to_csv(tmp_path / "rows.csv", index=False)
    asked = PLAN.replace("size = 4", "size = 4, optional = true") + 'file = "rows.csv"\n'
    texts = [finding.text for finding in errors_of(check(Review(Plan.loads(asked), tmp_path)))]
    assert any("scan: no reference row has it" in text for text in texts)


def test_tensors_in_files_are_like_others(plan, scans, codes, tmp_path, monkeypatch):
    path = by_order(tmp_path, scans, codes)
    expected = encode(plan, read(plan, path))
    monkeypatch.setattr(spill, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(spill, "_BLOCK_BYTES", 40)
    found = encode(plan, read(plan, path))
    assert torch.equal(found, expected)
    rows = torch.tensor([4, 0, 4])
    assert torch.equal(spill.take(found, rows), expected[rows])
    in_file = spill.room((1000, 1000))
    assert _mapped_bytes() >= in_file.numel() * 4


def _mapped_bytes():
    """Bytes of the process that lie in nameless temporary files."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line.split()[0] for line in maps if tempfile.gettempdir() in line]
    ends = (line.split("-") for line in lines)
    return sum(int(end, 16) - int(start, 16) for start, end in ends)
