"""Under a promise of privacy no person's row decides whether a site trains.

A refusal would be an answer without noise. So two tables that differ in one person both give an
upload, whatever the row is: a copy of reference rows, a code for missing, a word that is not
listed, an empty cell, or the row that a threshold lacked.
"""

from __future__ import annotations

import datetime

import openpyxl
import pandas as pd
import pyarrow
import pyarrow.parquet
import pyreadstat
import pytest
import torch

from predbayes.errors import DataError, PredbayesError
from predbayes_study.site.policy import SitePolicy
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import Training
from predbayes_study.tables.coding import code_targets, examine
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.problem import Kind
from predbayes_study.tables.reading import read_raw
from predbayes_study.tables.sitefile import FileForm, Policy, SiteFile
from predbayes_study.tables.vectors import is_vector
from tests.study.site.test_private import PRIVATE
from tests.study.world import make_world

OF_NO_ROW = {Kind.ABSENT, Kind.REPEATED, Kind.MISNAMED}
"""What is wrong with columns, by their names."""

NOT_HERE = {Kind.NOT_POSITIVE, Kind.NEGATIVE}
"""Of targets that are numbers or times, for which there is no promise."""

ROWS = {
    Kind.UNREADABLE: {"x": "high"},
    Kind.COMMA: {"x": "1,5"},
    Kind.POINT: {"x": "1.234"},  # in a file with decimal commas
    Kind.OUTSIDE: {"x": "999"},  # a code for missing, outside the range
    Kind.UNLISTED: {"kind": "purple"},
    Kind.MISSING: {"x": ""},
    Kind.NO_VECTOR: {"z": "torn"},
    Kind.SIZE: {"z": "1 2 3"},
}
"""A row that has each problem of a cell: how it differs from a sound one."""


def world_of(folder, unit="row", **options):
    learner = PRIVATE.format(unit=unit, holdout=0.25).replace("replace-one", "add-or-remove")
    return make_world(folder, learner=learner, **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return world_of(tmp_path_factory.mktemp("world"))


def table(num_rows=40, **last):
    """People like the reference rows, and one more if anything is said of that one."""
    rng = torch.Generator().manual_seed(7)
    x, y = (10 * torch.randn(2, num_rows, generator=rng)).round(decimals=2).tolist()
    kinds = ["red" if a < -3 else "blue" if a > 3 else "green" for a in x]
    frame = pd.DataFrame({"x": map(str, x), "y": map(str, y), "kind": kinds})
    if last:
        frame.loc[num_rows] = {"x": "1.5", "y": "2.5", "kind": "red"} | last
    return frame


def train(world, folder, frame, *, policy=None, patient="", decimal="."):
    """What a site does with a file, from reading it to the upload."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / "rows.csv", index=False, sep=";")
    patient = f'patient = "{patient}"\n' if patient else ""
    (folder / "site.toml").write_text(
        f'format = 1\nname = "Alpha"\n{patient}[file]\ndelimiter = ";"\ndecimal = "{decimal}"\n'
    )
    own = SiteFile.load(folder / "site.toml")
    plan = world.kit.plan
    world.key("Alpha").save(folder / "Alpha.key")
    rows = SiteRows.to_train(plan, own, read_site_table(plan, own, folder / "rows.csv"))
    policy = SitePolicy() if policy is None else SitePolicy((("site.toml", policy),))
    training = Training(
        world.kit, "Alpha", world.key("Alpha"), Approvals(folder, policy=policy), folder / "out",
        plan.learner.name,
    )  # fmt: skip
    return training.run(rows).upload


def test_every_problem_of_a_cell_is_among_these_rows():
    assert ROWS.keys() | OF_NO_ROW | NOT_HERE == set(Kind)


@pytest.mark.parametrize("kind", [kind for kind in ROWS if "z" not in ROWS[kind]])
def test_a_problem_of_one_row_that_an_ordinary_plan_refuses_refuses_nothing(
    kind, world, tmp_path_factory, tmp_path
):
    """Each row is seen to be refused by the same plan without the promise."""
    decimal = "," if kind is Kind.POINT else "."
    frames = table(), table(**ROWS[kind])
    if decimal == ",":
        frames = tuple(frame.assign(x=_commas(frame.x), y=_commas(frame.y)) for frame in frames)
    plain = world.kit.plan.model_copy(update={"sections": {}})
    strict = plain.columns["x"].model_copy(update={"missing": "refuse"})
    plain = plain.model_copy(update={"columns": dict(plain.columns) | {"x": strict}})
    own = SiteFile(format=1, name="Alpha", file=FileForm(delimiter=";", decimal=decimal))
    for frame, is_fine in zip(frames, (True, False), strict=True):
        frame.to_csv(tmp_path / "rows.csv", index=False, sep=";")
        try:
            read = read_site_table(plain, own, tmp_path / "rows.csv")
            examine(plain, read, "clip few").require_sound()
            code_targets(plain, read)
            assert is_fine
        except DataError:
            assert not is_fine
    for name, frame in zip(("without", "with"), frames, strict=True):
        assert train(world, tmp_path / name, frame, decimal=decimal).info.kind == "predictions"


def _commas(column):
    return [text if text == "1.234" else text.replace(".", ",") for text in column]


@pytest.mark.parametrize("num_rows", [1, 2, 9, 13, 14])
def test_nor_do_few_rows(num_rows, world, tmp_path):
    """The plan's minimum is 10 rows, and a quarter is held out."""
    assert train(world, tmp_path, table(num_rows)).info.kind == "predictions"


@pytest.mark.parametrize("unit", ["row", "person"])
@pytest.mark.parametrize("num_held_out", [0, 1, 2])
def test_nor_do_coins(unit, num_held_out, tmp_path):
    """Of two rows some, none or all are held out, so nobody may be left to train on."""
    world, frame = world_of(tmp_path / "world", unit), table(2).assign(who=["a", "b"])
    plan, own = world.kit.plan, SiteFile(format=1, name="Alpha", patient="who")
    home = tmp_path / "site"
    home.mkdir()
    frame.to_csv(home / "read.csv", index=False)
    read = read_site_table(plan, own, home / "read.csv")
    secret = next(
        secret
        for secret in (bytes([number]) * 32 for number in range(256))
        if len(SiteRows.of(plan, read, secret=secret).split_for(world.kit, "Alpha")[1])
        == num_held_out
    )
    (home / "Alpha.secret").write_text(secret.hex())
    assert train(world, home, frame, patient="who").info.kind == "predictions"


def test_nor_do_many_that_are_outside_or_a_target_that_looks_swapped(world, tmp_path):
    frame = table(40)
    frame.loc[:1, "x"] = "60"
    assert train(world, tmp_path / "few", frame)
    frame.loc[:20, "x"] = "60"
    assert train(world, tmp_path / "many", frame)
    frame["kind"] = frame["kind"].map({"red": "blue", "blue": "red", "green": "green"})
    assert train(world, tmp_path / "swapped", frame)
    assert train(world, tmp_path / "one class", frame.assign(kind="red"))


def test_nor_does_a_copy_of_reference_rows(tmp_path):
    """Of a policy that allows none at all, too."""
    world = world_of(tmp_path / "world")
    reference = pd.read_csv(world.kit.folder / "reference.csv", dtype=str, keep_default_na=False)
    copies = reference.loc[:, ["x", "y"]].assign(kind="red")
    for name, frame in (("without", table()), ("with", pd.concat([table(), copies]))):
        assert train(world, tmp_path / name, frame, policy=Policy(max_near=0))


def test_nor_does_an_audit_that_was_not_made_of_these_rows(world, tmp_path):
    """What a promise allows at most is known without rows, and is what a policy is asked."""
    bound = world.kit.plan.promise.auc
    assert train(world, tmp_path, table(), policy=Policy(max_membership_auc=bound + 1e-6))
    with pytest.raises(PredbayesError, match="max_membership_auc"):
        train(world, tmp_path / "no", table(), policy=Policy(max_membership_auc=bound - 1e-6))


def test_nor_does_a_row_that_names_no_patient(tmp_path):
    world = world_of(tmp_path / "world", unit="person")
    people = [f"p{number % 15}" for number in range(40)]
    known = table().assign(who=people)
    more = table(x="2.5").assign(who=[*people, ""])
    for name, frame in (("without", known), ("with", more)):
        assert train(world, tmp_path / name, frame, patient="who")
    with pytest.raises(DataError, match="patient = COLUMN"):
        train(world, tmp_path / "no column", table())


@pytest.mark.parametrize(
    "row",
    [
        b"x;y;kind\n",  # the names again, as where two exports are one file
        b"1.5;2.5;red;and more\n",
        b"1.5\n",
        b"1.5;2.5;gr\xfcn\n",  # not in the file's encoding
        b"1.5;2.5;r\0d\n",
    ],
)
def test_nor_does_a_line_that_is_written_in_another_way(row, world, tmp_path):
    """Each is seen to be refused without the promise."""
    plan, own = world.kit.plan, SiteFile(format=1, name="Alpha", file=FileForm(delimiter=";"))
    table().to_csv(tmp_path / "rows.csv", index=False, sep=";")
    known = read_site_table(plan, own, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open("ab") as file:
        file.write(row)
    with pytest.raises(DataError):
        read_site_table(plan.model_copy(update={"sections": {}}), own, tmp_path / "rows.csv")
    found = read_site_table(plan, own, tmp_path / "rows.csv")
    assert found[: len(known)].equals(known)
    assert len(SiteRows.to_train(plan, own, found).inputs) == len(known)


def test_cells_are_read_one_by_one(world):
    """What becomes of a row is the same whatever the other rows are."""
    plan, strange = world.kit.plan, [row for row in ROWS.values() if "z" not in row]
    frames = [table(3, **row) for row in strange]
    together = pd.concat([frames[0][:3], *(frame[3:] for frame in frames)], ignore_index=True)
    whole = SiteRows.of(plan, together, secret=b"s" * 32)
    alone = [
        SiteRows.of(plan, frame[3:].reset_index(drop=True), secret=b"s" * 32) for frame in frames
    ]
    kept = torch.cat([one.inputs for one in alone])
    assert torch.equal(whole.inputs[3:], kept)
    assert torch.equal(whole.targets[3:], torch.cat([one.targets for one in alone]))


CELLS = {
    "day": [20200131, 20200229, 20211231],
    "ward": [1, 2, 1],
    "dose": [0.5, 2.0, 1e-7],
    "born": [datetime.date(1950, 1, 31), datetime.date(1960, 2, 29), datetime.date(1970, 12, 31)],
    "word": ["red", "blue", "1"],
}
IN_PARQUET = {
    "who": [2**62 + 1, 2**62 + 2, 2**62 + 3],
    "yes": [True, False, True],
    "scan": [[1, 2], [3, 4], [5, 6]],
    "marks": [[True, False], [False, True], [True, True]],
    "places": [{"x": 1}, {"x": 2}, {"x": 3}],
}


def _write(path, columns):
    match path.suffix:
        case ".csv":
            pd.DataFrame(columns, dtype=object).to_csv(path, index=False)
        case ".xlsx":
            book = openpyxl.Workbook()
            for row in (list(columns), *zip(*columns.values(), strict=True)):
                book.active.append(row)
            book.save(path)
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.table(columns), path)
        case suffix:
            getattr(pyreadstat, f"write_{suffix[1:]}")(pd.DataFrame(columns), str(path))


def _cells(path, decimal="."):
    frame = read_raw(FileForm(decimal=decimal), path)
    return frame.map(lambda cell: cell.read().tolist() if is_vector(cell) else cell)


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet", ".sav", ".dta"])
def test_nor_does_an_empty_cell_change_how_others_are_read(suffix, decimal, tmp_path):
    """Many programs give a column with an empty cell another type."""
    columns = CELLS | (IN_PARQUET if suffix == ".parquet" else {})
    _write(tmp_path / f"full{suffix}", columns)
    full = _cells(tmp_path / f"full{suffix}", decimal)
    for name, cells in columns.items():
        nothing = "" if name == "word" and suffix == ".sav" else None  # which has no other
        _write(tmp_path / f"one{suffix}", columns | {name: [*cells[:2], nothing]})
        one = _cells(tmp_path / f"one{suffix}", decimal)
        assert one.loc[4, name] == ""
        one.loc[4, name] = full.loc[4, name]
        assert one.to_dict() == full.to_dict(), name
    if suffix == ".parquet":
        for name in ("scan", "marks"):  # one number of a list
            columns[name] = [*columns[name][:2], [None, columns[name][2][1]]]
        _write(tmp_path / "one.parquet", columns)
        one = _cells(tmp_path / "one.parquet", decimal)
        assert one[:2].to_dict() == full[:2].to_dict()
        # As pandas writes whole numbers of which one is missing.
        _write(tmp_path / "one.parquet", columns | {"day": [20200131.0, 20200229.0, None]})
        assert list(_cells(tmp_path / "one.parquet", decimal)["day"]) == [*full["day"][:2], ""]
