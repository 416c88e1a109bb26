"""A study of vectors, by commands alone: from files and a draft to predictions."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from predbayes.errors import PlanError
from predbayes_study import Plan
from predbayes_study.kit.kit import Kit
from predbayes_study.result.model import CalibratedModel
from predbayes_study.tables.coding import sound
from predbayes_study.tables.reading import read_frame
from predbayes_study.tables.vectors import with_vectors
from tests.study.cli.consortium import Consortium

SIZE = 12


def write(folder, num, seed):
    """Write a table of two kinds, and a vector for each row, whose mean is that of its kind."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, num)
    centres = np.where(np.arange(SIZE) % 2 == kinds[:, None], 0.8, -0.8)
    np.save(folder / "code.npy", (centres + rng.normal(size=(num, SIZE))).astype(np.float32))
    table = pd.DataFrame({"code": range(num), "kind": np.array(["cross", "ring"])[kinds]})
    table.to_csv(folder / "patients.csv", index=False)


@pytest.mark.ci("networks of vectors")
def test_study_from_vectors_to_predictions(tmp_path):
    run = Consortium(tmp_path)
    coordinator = run.home
    for seed, (name, num) in enumerate({"coordinator": 160, "north": 90, "south": 90}.items()):
        write(tmp_path / name, num, seed)
    write(tmp_path / "later", 30, 9)
    run("coordinator", "plan", "new", "patients.csv", "--target", "kind")
    text = (coordinator / "plan.toml").read_text()
    for key in ("source", "licence", "legal_basis", "description"):
        text = text.replace(f'{key} = ""', f'{key} = "made for a test"', 1)
    text = text.replace("[100, 100]", "[12]").replace("min_steps = 1000", "min_steps = 150")
    plan = Plan.loads(text)
    assert plan.columns["code"].size == SIZE
    assert plan.learner.name == "network"
    run.begin(text)
    for site in ("north", "south"):
        run.join(site)
        assert "fits the plan" in run(site, "site", "check", coordinator / "kit", "patients.csv")
    run("coordinator", "study", "finish")
    run("coordinator", "study", "verify")

    folder = coordinator / "study" / "results" / "1"
    result = json.loads((folder / "result.json").read_text())
    assert [one["column"] for one in result["importances"]] == ["code"]
    assert f"vectors of {SIZE} numbers" in (folder / "model-card.html").read_text()
    out = ("--out", "predicted.csv", "--keep", "code")
    run("later", "predict", folder, "patients.csv", *out)
    predicted = pd.read_csv(tmp_path / "later" / "predicted.csv").set_index("code")
    truth = pd.read_csv(tmp_path / "later" / "patients.csv").set_index("code")["kind"]
    assert (predicted["predicted"] == truth.loc[predicted.index]).mean() > 0.8
    adopted = ("adopt", folder / "model", "patients.csv", "--home", "out")
    assert "NLL" in run("north", "site", *adopted)
    run("coordinator", "study", "export", "--out", "crate.zip")
    shutil.unpack_archive(coordinator / "crate.zip", coordinator / "crate")
    assert not list((coordinator / "crate").rglob("reference.*"))
    _exports(folder / "model", tmp_path / "later" / "patients.csv")
    _kit_is_bound(coordinator / "kit")


def _exports(folder, rows):
    """The ONNX file says of vectors what `predict` says of their files."""
    model = CalibratedModel.load(folder)
    model.export_onnx(folder / "model.onnx")
    frame = with_vectors(model.plan, read_frame(rows), rows)
    examined = sound(model.plan, frame)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    given = {"codes": examined.codes.numpy(), "code": examined.vectors["code"].numpy()}
    (told,) = session.run(None, given)
    expected = model.predict(frame).filter(like="probability").to_numpy()
    np.testing.assert_allclose(told, expected, atol=1e-6)


def _kit_is_bound(folder):
    """One number changed, other vectors, or a file named in a cell: no such kit is read."""
    path, table = folder / "reference.safetensors", folder / "reference.csv"
    kept, rows = path.read_bytes(), table.read_text()
    vectors = load_file(path)
    vectors["code"][0, 0] += 1
    for wrong in (vectors, {"code": vectors["code"][1:]}, {"other": vectors["code"]}):
        save_file({name: np.ascontiguousarray(a) for name, a in wrong.items()}, path)
        with pytest.raises(PlanError, match=r"is not the plan's"):
            Kit.load(folder)
    path.unlink()
    with pytest.raises(PlanError, match=r"reference.safetensors"):
        Kit.load(folder)
    path.write_bytes(kept)
    table.write_text(rows.replace("\n0\n", "\n../../north/code.npy\n"))
    with pytest.raises(PlanError, match=r"code: 1 value"):
        Kit.load(folder)
    table.write_text(rows)
    Kit.load(folder)
