"""The kit: everything a site needs, and nothing of the labels."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.errors import PlanError
from predbayes_study.kit import kit as kit_module
from predbayes_study.kit.kit import FILES, Kit, Labels, freeze, inputs_digest
from predbayes_study.plan.schema import Plan
from predbayes_study.tables.coding import code_table, encode
from predbayes_study.tables.reading import read_frame

NUM_ROWS = 60
SALT = bytes(range(32))
CLASSES = """
[target]
name = "outcome"
task = "classification"
classes = ["canary-ill", "canary-well"]
"""
NUMBERS = """
[target]
name = "stay"
task = "regression"
unit = "days"
transform = "log"
"""
REST = """
[columns]
pulse = {{ type = "number", missing = "flag" }}
ward = {{ type = "category", categories = ["a", "b"] }}
scanner = {{ type = "number", optional = true, missing = "impute" }}
age = {{ type = "number" }}

[reference]
file = "rows.csv"
source = "us"
licence = "CC0"
legal_basis = "consent"
labelled = {labelled}
evaluate = {evaluate}
unlabelled = {unlabelled}
"""


def write_plan(folder, target=CLASSES, seed=0, labelled=20, evaluate=10, unlabelled=25):
    counts = {"labelled": labelled, "evaluate": evaluate, "unlabelled": unlabelled}
    path = folder / "plan.toml"
    path.write_text(f'format = 1\nname = "ward"\nseed = {seed}\n{target}{REST.format(**counts)}')
    return path


@pytest.fixture
def frame():
    """Ages are distinct, so a row is known by its age; a third has no label."""
    draw = np.random.default_rng(0)
    labelled = np.arange(NUM_ROWS) % 3 != 0
    pulse = draw.uniform(40, 120, NUM_ROWS).round(3)
    stay = 7777 + np.arange(NUM_ROWS) / 7
    return pd.DataFrame(
        {
            "stay": np.where(labelled, stay, np.nan),
            "pulse": np.where(draw.random(NUM_ROWS) < 0.2, np.nan, pulse),
            "patient": [f"canary-{i}" for i in range(NUM_ROWS)],
            "age": 20 + np.arange(NUM_ROWS),
            "ward": draw.choice(["a", "b", "elsewhere"], NUM_ROWS),
            "outcome": np.where(labelled, np.where(stay % 2 < 1, "canary-ill", "canary-well"), ""),
        }
    )


@pytest.fixture
def folder(tmp_path, frame):
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path


def frozen(folder, name="kit", salt=SALT, **plan):
    kit = freeze(write_plan(folder, **plan), folder / name, salt=salt)
    return kit, Labels.load(folder / f"{name}-labels.json", kit)


def ages(kit):
    return read_frame(kit.folder / "reference.csv")["age"].astype(int).to_numpy()


class TestKit:
    def test_no_label_no_role_and_no_other_column_is_in_it(self, folder):
        kit, _ = frozen(folder)
        assert sorted(path.name for path in kit.folder.iterdir()) == sorted(FILES)
        plan_text = (
            (kit.folder / "plan.toml")
            .read_text()
            .replace('classes = ["canary-ill", "canary-well"]', "")
        )
        others = [(kit.folder / name).read_text() for name in FILES if name != "plan.toml"]
        assert not any("canary" in text or "rows.csv" in text for text in [plan_text, *others])
        assert list(read_frame(kit.folder / "reference.csv")) == ["pulse", "ward", "age"]
        assert kit.plan.reference.num_rows == len(kit.inputs) == 55
        assert len(set(ages(kit))) == 55
        assert kit.fingerprint == kit.plan.fingerprint
        assert kit.fingerprint in (kit.folder / "FINGERPRINT.txt").read_text()
        assert Plan.load(kit.folder / "plan.toml") == kit.plan
        assert kit.plan.reference.file == ""
        (kit.folder / ".DS_Store").write_bytes(b"x" * 999)
        assert kit.num_bytes == sum((kit.folder / name).stat().st_size for name in FILES)
        kit, _ = frozen(folder, "number", target=NUMBERS)
        assert not any("7777" in (kit.folder / name).read_text() for name in FILES)

    def test_inputs_are_those_of_the_original_rows(self, folder, frame):
        kit, _ = frozen(folder)
        expected = encode(kit.plan, frame.iloc[ages(kit) - 20])
        assert torch.equal(kit.inputs, expected)
        assert kit.inputs.dtype == torch.float32
        assert kit.inputs.shape == (55, kit.plan.num_inputs)

    def test_centres_and_scales_are_those_of_its_rows_to_six_digits(self, folder, frame):
        kit, _ = frozen(folder)
        values = frame["pulse"].to_numpy()[ages(kit) - 20]
        pulse, scanner = kit.plan.columns["pulse"], kit.plan.columns["scanner"]
        assert (scanner.centre, scanner.scale) == (0.0, 1.0)  # which no row has
        assert pulse.centre == float(f"{np.nanmean(values):.6g}")
        assert pulse.scale == float(f"{np.nanstd(values):.6g}")

    def test_only_labelled_rows_scale_the_target(self, folder, frame):
        kit, labels = frozen(folder, target=NUMBERS)
        rows = ages(kit)[labels.order[labels.reference.labelled]] - 20
        logs = np.log(frame["stay"].to_numpy()[rows])
        assert kit.plan.target.centre == float(f"{logs.mean():.6g}")
        assert kit.plan.target.scale == float(f"{logs.std():.6g}")
        counts = {"labelled": 0, "evaluate": 10, "unlabelled": 50}  # or the plan states them
        stated = NUMBERS + "centre = 9\nscale = 2\n"
        kit, labels = frozen(folder, "stated", target=stated, **counts)
        assert (kit.plan.target.centre, kit.plan.target.scale) == (9.0, 2.0)
        assert len(labels.reference.targets) == 0

    def test_the_same_salt_gives_the_same_kit_another_one_another(self, folder):
        first, second, third = (
            frozen(folder, name, salt)[0]
            for name, salt in (("a", SALT), ("b", SALT), ("c", bytes(32)))
        )
        for name in FILES:
            assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
        assert first.digest == second.digest != third.digest
        assert list(ages(first)) != list(ages(third))
        drawn = freeze(folder / "plan.toml", folder / "d")  # without a salt one is drawn
        assert drawn.digest not in (first.digest, third.digest)

    def test_cells_are_written_alike_however_they_were_written(self, folder, frame):
        """A row's source may write 45.0 for 45, and must not show."""
        kit, _ = frozen(folder, "a")
        frame = frame.astype({"age": str})
        frame.loc[::2, "age"] += ".00"
        frame.to_csv(folder / "rows.csv", index=False)
        again, _ = frozen(folder, "b")
        assert again.digest == kit.digest
        texts = [(k.folder / "reference.csv").read_bytes() for k in (kit, again)]
        assert texts[0] == texts[1]


class TestLoad:
    def test_line_endings_spaces_and_comments_change_nothing(self, folder):
        kit, _ = frozen(folder)
        for name in FILES:
            path = kit.folder / name
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        table = kit.folder / "reference.csv"
        table.write_bytes(table.read_bytes().replace(b",", b" , "))
        plan = kit.folder / "plan.toml"
        plan.write_bytes(plan.read_bytes() + b"# a note of ours\r\n")
        again = Kit.load(kit.folder)
        assert again.digest == kit.digest
        assert torch.equal(again.inputs, kit.inputs)
        Labels.load(folder / "kit-labels.json", again)

    def test_any_changed_cell_is_found(self, folder):
        kit, _ = frozen(folder)
        path = kit.folder / "reference.csv"
        frame = read_frame(path)
        changes = {"pulse": "77.5", "ward": "a", "age": "19"}
        for column, value in changes.items():
            for row in (0, 30, 54):
                changed = frame.copy()
                other = "b" if changed[column].iloc[row] == value else value
                changed.iloc[row, changed.columns.get_loc(column)] = other
                changed.to_csv(path, index=False)
                with pytest.raises(PlanError, match="is not the plan's: some row was changed"):
                    Kit.load(kit.folder)
        for moved in (frame.iloc[1:], frame.iloc[::-1], pd.concat([frame, frame.iloc[:1]])):
            moved.to_csv(path, index=False)
            with pytest.raises(PlanError, match=r"reference\.csv is not the plan's"):
                Kit.load(kit.folder)

    @pytest.mark.parametrize(
        ("old", "new", "named"),
        [
            ("quorum = 2", "quorum = 3", r"FINGERPRINT\.txt"),
            ("unlabelled = 25", "unlabelled = 26", r"reference\.csv has 55 rows"),
        ],
    )
    def test_another_plan_is_found(self, folder, old, new, named):
        kit, _ = frozen(folder)
        path = kit.folder / "plan.toml"
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(PlanError, match=named):
            Kit.load(kit.folder)

    def test_a_kit_that_is_not_whole_is_refused_in_one_line(self, folder):
        with pytest.raises(PlanError, match=r"cannot read .*plan\.toml"):
            Kit.load(folder / "nowhere")
        write_plan(folder)
        with pytest.raises(PlanError, match=r"is a draft: run `predbayes plan freeze`"):
            Kit.load(folder)
        kit, _ = frozen(folder)
        (kit.folder / "reference.csv").unlink()
        with pytest.raises(PlanError, match=r"reference\.csv is not the plan's: cannot read"):
            Kit.load(kit.folder)

    def test_the_digest_tells_columns_apart_but_not_ways_to_write_nothing(self, folder):
        kit, _ = frozen(folder)
        codes = code_table(kit.plan, read_frame(kit.folder / "reference.csv"))
        columns = {f"{name}2": column for name, column in kit.plan.columns.items()}
        renamed = kit.plan.model_copy(update={"columns": columns})
        assert inputs_digest(renamed, codes) != inputs_digest(kit.plan, codes)
        assert inputs_digest(kit.plan, codes * (1 + 1e-15)) != inputs_digest(kit.plan, codes)
        signed = torch.where(codes.isnan(), -codes, codes)
        assert inputs_digest(kit.plan, signed) == inputs_digest(kit.plan, codes)


class TestRoles:
    def test_rows_are_in_order_and_classes_those_of_the_original_rows(self, folder, frame):
        kit, labels = frozen(folder)
        assert torch.equal(labels.reference.inputs, kit.inputs[labels.order])
        assert sorted(labels.order.tolist()) == list(range(55))
        assert len(labels.reference.targets) == 20
        assert labels.reference.num_evaluate == len(labels.evaluate_targets) == 10
        original = frame["outcome"].to_numpy()[ages(kit)[labels.order] - 20]
        codes = {"canary-ill": 0, "canary-well": 1}
        assert [codes[name] for name in original[:20]] == labels.reference.targets.tolist()
        assert [codes[name] for name in original[-10:]] == labels.evaluate_targets.tolist()
        assert labels.reference.targets.dtype == torch.int64
        kit, labels = frozen(folder, "all", labelled=25, evaluate=15, unlabelled=20)
        assert set((ages(kit)[labels.order[25:45]] - 20) % 3) == {0}  # those without a label

    def test_numbers_are_those_of_the_original_rows_in_standard_units(self, folder, frame):
        kit, labels = frozen(folder, target=NUMBERS)
        original = np.log(frame["stay"].to_numpy()[ages(kit)[labels.order] - 20])
        part = json.loads((folder / "kit-labels.json").read_text())["evaluate"]
        assert part["labels"] == frame["stay"][ages(kit)[part["rows"]] - 20].to_list()
        target = kit.plan.target
        expected = torch.tensor((original - target.centre) / target.scale).float()
        torch.testing.assert_close(labels.reference.targets, expected[:20])
        torch.testing.assert_close(labels.evaluate_targets, expected[-10:])
        assert labels.reference.targets.dtype == torch.float32

    def test_position_in_the_kit_says_nothing_about_the_role(self, folder, frame):
        """Even if the table has all rows with labels first.

        The mean position of 20 of 55 rows; over 16 salts its z-score is standard normal.

        False alarms: |z| > 4, six in 100,000.
        """
        frame.sort_values("stay").to_csv(folder / "rows.csv", index=False)
        means = []
        for number in range(16):
            kit, labels = frozen(folder, f"kit{number}", bytes([number]) * 32)
            assert len(kit.inputs) == 55
            means.append(float(labels.order[:20].double().mean()))
        deviation = np.sqrt((55**2 - 1) / 12 / 20 * (35 / 54))
        assert abs(np.mean(means) - 27) / (deviation / np.sqrt(16)) < 4

    def test_the_plans_seed_alone_does_not_tell_the_roles(self, folder):
        """Sites know the seed: with one and the same, other salts deal other roles."""
        rows = []
        for name, salt in (("a", SALT), ("b", bytes(32))):
            kit, labels = frozen(folder, name, salt)
            rows.append(set(ages(kit)[labels.order[:20]]))
        assert rows[0] != rows[1]


class TestLabelsFile:
    def test_it_is_its_owners_alone_and_the_digest_in_the_plan_is_salted(self, folder):
        """Roles and labels alone do not give it: a site could try them all."""
        frozen(folder)
        assert stat.S_IMODE(os.stat(folder / "kit-labels.json").st_mode) == 0o600
        contents = json.loads((folder / "kit-labels.json").read_text())
        assert bytes.fromhex(contents["salt"]) == SALT
        digest = kit_module._Contents.model_validate(contents | {"salt": "00" * 32}).digest()
        assert kit_module._Contents.model_validate(contents).digest() != digest

    @pytest.mark.parametrize(
        "change",
        [
            lambda c: c["labelled"]["labels"].reverse(),
            lambda c: c["labelled"]["rows"].reverse(),
            lambda c: c.update(labelled=c["evaluate"], evaluate=c["labelled"]),
            lambda c: c.update(salt="00" * 32),
        ],
    )
    def test_labels_cannot_be_changed_after_freezing(self, folder, change):
        kit, _ = frozen(folder)
        path = folder / "kit-labels.json"
        contents = json.loads(path.read_text())
        change(contents)
        path.write_text(json.dumps(contents))
        with pytest.raises(PlanError, match="does not hold the labels that the plan was frozen"):
            Labels.load(path, kit)
        frozen(folder, "other", bytes(32))
        with pytest.raises(PlanError, match="does not hold the labels"):
            Labels.load(folder / "other-labels.json", kit)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "salt": "canary"}', "\x80"])
    def test_what_is_no_file_of_labels_is_refused_without_repeating_it(self, folder, text):
        kit, _ = frozen(folder)
        (folder / "x.json").write_text(text)
        with pytest.raises(PlanError, match=r"x\.json is not a file of labels") as error:
            Labels.load(folder / "x.json", kit)
        assert "canary" not in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("labelled", "evaluate", "said"),
        [
            (([0, 0], ["canary-ill"] * 2), ([], []), "as many rows in each role"),
            (([0], ["canary-ill"] * 2), ([], []), "do not fit the rows"),
            (([99], ["canary-ill"]), ([], []), "do not fit the rows"),
            ((range(20), ["x"] * 20), (range(20, 30), ["x"] * 10), "the labels are not the plan's"),
        ],
    )
    def test_a_plan_frozen_with_nonsense_is_refused(self, folder, labelled, evaluate, said):
        """The digest alone does not make labels fit: whoever made it may have been wrong."""
        kit, _ = frozen(folder)
        parts = {
            name: {"rows": list(rows), "labels": names}
            for name, (rows, names) in (("labelled", labelled), ("evaluate", evaluate))
        }
        contents = kit_module._Contents.model_validate({"salt": SALT.hex(), **parts})
        seal = kit.plan.frozen.model_copy(update={"labels_digest": contents.digest()})
        wrong = Kit(kit.folder, kit.plan.model_copy(update={"frozen": seal}), kit.rows)
        (folder / "x.json").write_text(contents.model_dump_json())
        with pytest.raises(PlanError, match=said):
            Labels.load(folder / "x.json", wrong)


class TestFreeze:
    def test_labels_never_go_into_the_kit(self, folder):
        for labels in (folder / "kit" / "labels.json", folder / "kit", folder / "kit" / "a" / "b"):
            with pytest.raises(PlanError, match="labels must not go into the kit"):
                freeze(write_plan(folder), folder / "kit", labels)
        assert not (folder / "kit").exists()

    def test_nothing_is_overwritten(self, folder):
        frozen(folder)
        with pytest.raises(PlanError, match="kit exists already"):
            freeze(folder / "plan.toml", folder / "kit", folder / "labels.json")
        with pytest.raises(PlanError, match=r"kit-labels\.json exists already"):
            freeze(folder / "plan.toml", folder / "other", folder / "kit-labels.json")
        with pytest.raises(PlanError, match="there is no folder"):
            freeze(folder / "plan.toml", folder / "a" / "b")
        with pytest.raises(PlanError, match="is frozen already"):
            freeze(folder / "kit" / "plan.toml", folder / "again")

    @pytest.mark.parametrize("fails_at", ["_write_text", "sync_tree", "put"])
    def test_what_goes_wrong_leaves_nothing_behind(self, folder, monkeypatch, fails_at):
        path = write_plan(folder)
        before = sorted(folder.iterdir())

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(kit_module, fails_at, fail)
        with pytest.raises(PlanError, match=r"cannot write .*: No space left on device"):
            freeze(path, folder / "kit")
        assert sorted(folder.iterdir()) == before

    def test_the_kit_comes_last(self, folder, monkeypatch):
        """Whoever is stopped in between has labels without a kit, never a kit without labels."""
        put, names = kit_module.put, []
        monkeypatch.setattr(kit_module, "put", lambda a, b: (names.append(b.name), put(a, b)))
        frozen(folder)
        assert names == ["kit-labels.json", "kit"]

    def test_parquet_and_csv_make_one_kit(self, folder, frame):
        kit, _ = frozen(folder, "a")
        frame.replace("", None).to_parquet(folder / "rows.parquet")
        path = write_plan(folder)
        path.write_text(path.read_text().replace("rows.csv", "rows.parquet"))
        assert freeze(path, folder / "b", salt=SALT).digest == kit.digest
