"""Vectors and images of a table: every way to have them, and everything that may be wrong."""

from __future__ import annotations

import struct
import tempfile
import zlib

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from predbayes import spill
from predbayes.errors import DataError, PlanError
from predbayes.study.kit.review import check
from predbayes.study.plan.schema import Plan
from predbayes.study.plan.text import dump
from predbayes.study.tables.arraycells import guess_arrays, images_in, with_arrays
from predbayes.study.tables.cells import read_frame
from predbayes.study.tables.check import site_problems
from predbayes.study.tables.coding import code_table, encode, examine
from predbayes.study.tables.mapping import read_site_table
from predbayes.study.tables.problem import errors_of
from predbayes.study.tables.sitefile import SiteFile
from predbayes.study.tables.survey import take_survey

PLAN = """
format = 1
name = "arrays"
[target]
name = "ill"
task = "classification"
classes = ["no", "yes"]
[columns]
age = { type = "number", centre = 50, scale = 10 }
scan = { type = "image", shape = [4, 3, 3], centre = 100, scale = 50 }
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
    return np.random.default_rng(0).integers(0, 256, (NUM, 4, 3, 3)).astype(np.uint8)


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


def by_files(folder, scans, codes):
    for row, scan in enumerate(scans):
        Image.fromarray(scan).save(folder / f"p{row}.png")
    names = [f"p{row}.png" for row in range(NUM)]
    table(scan=names).to_csv(folder / "rows.csv", index=False)
    np.save(folder / "code.npy", codes)
    return folder / "rows.csv"


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


WAYS = (by_lists, by_files, by_order, by_number)


def read(plan, path):
    return read_site_table(plan, SITE, path)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_inputs(way, plan, scans, codes, tmp_path):
    inputs = encode(plan, read(plan, way(tmp_path, scans, codes)))
    pixels = torch.from_numpy(scans).permute(0, 3, 1, 2).flatten(1)  # channel by channel
    vectors = torch.from_numpy(codes)
    assert inputs.shape == (NUM, plan.num_inputs) == (NUM, 1 + 36 + 5 + 1)
    torch.testing.assert_close(inputs[:, plan.blocks["scan"]], (pixels.float() - 100) / 50)
    torch.testing.assert_close(inputs[:, plan.blocks["code"]][:, :5], (vectors - 1) / 2)
    assert inputs[:, 0].tolist() == pytest.approx([-1.0, -0.9, -0.8, -0.7, -0.6, -0.5])
    assert not inputs[:, -1].any()  # none is missing


@pytest.mark.parametrize("way", WAYS)
def test_plan_new_finds_them(way, scans, codes, tmp_path):
    path = way(tmp_path, scans, codes)
    found = guess_arrays(read_frame(path), path)
    assert {name: column.form for name, column in found.items()} == {
        "scan": (4, 3, 3),
        "code": (5,),
    }


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


def test_a_missing_vector_is_zeros_with_a_flag(plan, scans, codes, tmp_path):
    path = by_number(tmp_path, scans, codes)
    cells = pd.read_csv(path, dtype=str)
    cells.loc[2, "code"] = ""
    cells.to_csv(path, index=False)
    inputs = encode(plan, read(plan, path))
    assert inputs[2, plan.blocks["code"]].tolist() == [0, 0, 0, 0, 0, 1]
    assert inputs[:, -1].tolist() == [0, 0, 1, 0, 0, 0]


def test_a_missing_image_is_refused_where_the_plan_says_so(plan, scans, codes, tmp_path):
    path = by_files(tmp_path, scans, codes)
    path.write_text(path.read_text().replace("p3.png", ""))
    with pytest.raises(DataError, match="scan: 1 value missing"):
        encode(plan, read(plan, path))


def bomb(width, height):
    """A small PNG file of a large image."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(bytes(1_000_000)), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )


class TestFaults:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"no image", "scan: 1 value without an array or image that can be read"),
            (None, "scan: 1 value without an array or image that can be read"),
            (bomb(60_000, 60_000), "scan: 1 value without an array or image that can be read"),
            (bomb(9_000, 9_000), "scan: 1 value other than images of 4 x 3 x 3"),
        ],
    )
    def test_files_that_are_no_image_of_the_plan(
        self, content, words, plan, scans, codes, tmp_path
    ):
        path = by_files(tmp_path, scans, codes)
        (tmp_path / "p4.png").unlink()
        if content is not None:
            (tmp_path / "p4.png").write_bytes(content)
        (problem,) = examine(plan, read(plan, path)).problems
        assert str(problem) == f"{words} (line 6)"

    @pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
    def test_modes(self, mode, plan, scans, codes, tmp_path):
        """Colours by a palette are colours; grey or transparent images are others."""
        path = by_files(tmp_path, scans, codes)
        Image.fromarray(scans[4]).convert(mode).save(tmp_path / "p4.png")
        problems = examine(plan, read(plan, path)).problems
        assert len(problems) == (mode != "P")

    @pytest.mark.parametrize(
        ("row", "words"),
        [
            ([1, 2, np.nan, 4, 5], "that cannot be read as a finite number"),
            ([1, 2, 3, 4, 11], "outside -10 to 10"),
            ([1, 2, 3, 4], "other than vectors of 5 numbers"),
        ],
    )
    def test_vectors(self, row, words, plan, codes, scans, tmp_path):
        np.save(tmp_path / "scan.npy", scans)
        lists = [list(map(float, one)) for one in codes]
        table(code=[*lists[:-1], row]).to_parquet(tmp_path / "rows.parquet")
        (problem,) = examine(plan, read(plan, tmp_path / "rows.parquet")).problems
        assert str(problem) == f"code: 1 value {words} (line 7)"

    def test_few_beyond_the_range_are_clipped_at_a_site(self, plan, scans, codes, tmp_path):
        many = np.tile(codes, (10, 1))
        many[7, 2] = 99
        np.savez(tmp_path / "rows.npz", scan=np.tile(scans, (10, 1, 1, 1)), code=many)
        pd.concat([table()] * 10).to_csv(tmp_path / "rows.csv", index=False)
        frame = read(plan, tmp_path / "rows.csv")
        examined = examine(plan, frame, "clip few")
        assert not examined.problems
        assert "outside -10 to 10" in str(examined.oddities[0])
        assert examined.arrays["code"][7, 2] == 10
        assert examine(plan, frame).problems

    def test_a_store_of_other_rows_is_refused(self, plan, scans, codes, tmp_path):
        path = by_order(tmp_path, scans[1:], codes)
        with pytest.raises(DataError, match=r"rows.npz has 5 rows, the table 6; give the table"):
            read(plan, path)

    @pytest.mark.parametrize("number", ["6", "-1", "1.5", "p1.png", "9" * 5000])
    def test_a_number_that_is_no_row_of_the_store(self, number, plan, scans, codes, tmp_path):
        path = by_number(tmp_path, scans, codes)
        cells = pd.read_csv(path, dtype=str)
        cells.loc[0, "scan"] = number
        cells.to_csv(path, index=False)
        (problem,) = examine(plan, read(plan, path)).problems
        assert "without an array or image that can be read (line 2)" in str(problem)

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

    def test_floats_are_no_bytes(self, plan, scans, codes, tmp_path):
        path = by_order(tmp_path, scans / 255, codes)
        (problem,) = examine(plan, read(plan, path)).problems
        assert "other than images of 4 x 3 x 3" in str(problem)


class TestCheck:
    def test_says_nothing_of_what_is_like_the_plan(self, plan, scans, codes, tmp_path):
        found = site_problems(plan, SITE, by_files(tmp_path, scans, codes))
        assert not any("scan" in f.text or "code" in f.text for f in found.findings)
        assert found.summary[0] == "6 rows, 3 of 3 columns found"

    def test_doubts_images_of_another_brightness(self, plan, scans, codes, tmp_path):
        path = by_order(tmp_path, np.full_like(scans, 250), codes)
        texts = [finding.text for finding in site_problems(plan, SITE, path).warnings]
        assert any(
            text.startswith("scan: its values are unlike those of the plan") for text in texts
        )

    def test_no_message_has_a_name_of_a_file_or_a_pixel(self, plan, scans, codes, tmp_path):
        path = by_files(tmp_path, scans, codes)
        (tmp_path / "p4.png").write_bytes(b"no image")
        found = site_problems(plan, SITE, path)
        assert not any("p4" in f.text or "p4" in str(f.values) for f in found.findings)
        assert "fewer than 5 values without an array" in found.errors[0].text

    def test_says_what_to_do_where_there_is_none(self, plan, tmp_path):
        table().to_csv(tmp_path / "rows.csv", index=False)
        (error, *_) = site_problems(plan, SITE, tmp_path / "rows.csv").errors
        assert error.text.startswith("scan: the column is missing; the table must have a column")


def test_a_survey_is_of_numbers_and_words(plan, tmp_path):
    with pytest.raises(PlanError, match="leave scan, code out of the draft"):
        take_survey(plan, SITE, tmp_path / "rows.csv", step=5, key="", moments=False)


@pytest.mark.parametrize("name", ["../key", "a/b", "a\\\\b", "c:d", ".x", "__metadata__", "codes"])
def test_a_name_that_is_no_files_is_refused(name):
    with pytest.raises(PlanError, match=r"cannot be the name of a vector or image"):
        Plan.loads(PLAN.replace("scan =", f'"{name}" ='))


def test_an_array_that_no_computer_holds_is_refused():
    with pytest.raises(PlanError, match=r"numbers in a row are more than 100,000,000"):
        Plan.loads(PLAN.replace("[4, 3, 3]", "[1000000, 1000000, 3]"))


def test_images_that_no_reference_row_has_are_an_error_of_the_plan(tmp_path):
    table().to_csv(tmp_path / "rows.csv", index=False)
    asked = PLAN.replace("[4, 3, 3]", "[4, 3, 3], optional = true") + 'file = "rows.csv"\n'
    texts = [finding.text for finding in errors_of(check(Plan.loads(asked), tmp_path))]
    assert any(text.startswith("scan: no reference row has it") for text in texts)


def test_a_column_is_one_line_whatever_its_size():
    large = PLAN.replace("[4, 3, 3]", "[640, 640, 3]")
    assert Plan.loads(dump(Plan.loads(large))) == Plan.loads(large)
    assert len(dump(Plan.loads(large)).splitlines()) == len(dump(Plan.loads(PLAN)).splitlines())


def test_tensors_in_files_are_like_others(plan, scans, codes, tmp_path, monkeypatch):
    path = by_order(tmp_path, scans, codes)
    expected = encode(plan, read(plan, path))
    monkeypatch.setattr(spill, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(spill, "_BLOCK_BYTES", 200)
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


def test_a_folder_of_images_is_a_table(scans, codes, tmp_path, plan):
    by_files(tmp_path, scans, codes)
    alone = PLAN.replace('age = { type = "number", centre = 50, scale = 10 }\n', "")
    alone = "\n".join(line for line in alone.splitlines() if not line.startswith("code"))
    names, frame = images_in(Plan.loads(alone), tmp_path)
    assert list(names["scan"]) == [f"p{row}.png" for row in range(NUM)]
    assert encode(Plan.loads(alone), frame).shape == (NUM, 36)
    with pytest.raises(
        DataError, match="is a folder; the model needs a table with age, scan, code"
    ):
        images_in(plan, tmp_path)


def test_predicting_needs_no_site_file(plan, scans, codes, tmp_path):
    path = by_files(tmp_path, scans, codes)
    frame = with_arrays(plan, read_frame(path), path)
    torch.testing.assert_close(encode(plan, frame), encode(plan, read(plan, path)))
    assert code_table(plan, frame)[:, 1].tolist() == [0] * NUM
