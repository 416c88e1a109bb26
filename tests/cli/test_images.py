"""A study of images, by commands alone: from files and a draft to predictions of a folder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from predbayes.errors import PlanError
from predbayes.study import Plan
from predbayes.study.kit.kit import Kit
from predbayes.study.result.model import CalibratedModel
from predbayes.study.tables.arraycells import images_in
from predbayes.study.tables.coding import sound
from tests.cli.test_survival import predbayes

__all__ = ["predbayes"]

SITES = ("north", "south")
SIDE = 6


def images(num, seed):
    """Crosses and rings on a noisy ground, and which is which."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, num)
    pictures = rng.integers(0, 90, (num, SIDE, SIDE))
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2 + 0.5
    marks = (abs(abs(x) - abs(y)) < 0.5, abs(np.hypot(x, y) - 2) < 0.6)
    for picture, kind in zip(pictures, kinds, strict=True):
        picture[marks[kind]] += rng.integers(60, 160)
    return pictures.astype(np.uint8), np.array(["cross", "ring"])[kinds]


def write(folder, num, seed):
    (folder / "pictures").mkdir(parents=True)
    pictures, kinds = images(num, seed)
    names = [f"pictures/{row}.png" for row in range(num)]
    for name, picture in zip(names, pictures, strict=True):
        Image.fromarray(picture).save(folder / name)
    pd.DataFrame({"picture": names, "kind": kinds}).to_csv(folder / "rows.csv", index=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for seed, (name, num) in enumerate({"coordinator": 160, "north": 90, "south": 90}.items()):
        write(root / name, num, seed)
    write(root / "later", 30, 9)
    return root


def fill_in(path):
    text = path.read_text()
    for key in ("source", "licence", "legal_basis", "description"):
        text = text.replace(f'{key} = ""', f'{key} = "made for a test"', 1)
    text = text.replace("[100, 100]", "[12]").replace("min_steps = 1000", "min_steps = 150")
    path.write_text(text)


@pytest.mark.ci("networks of images")
def test_study_from_pictures_to_predictions_of_a_folder(predbayes, folders):
    coordinator = folders / "coordinator"

    def run(at, *line):
        done = predbayes(*line, at=folders / at)
        assert done.code == 0, f"{line}: {done.err}"
        return done.out

    run("coordinator", "plan", "new", "rows.csv", "--target", "kind")
    fill_in(coordinator / "plan.toml")
    plan = Plan.load(coordinator / "plan.toml")
    assert plan.columns["picture"].form == (SIDE, SIDE, 1)
    assert plan.learner.name == "network"
    assert "no errors" in run("coordinator", "plan", "check", "plan.toml")
    run("coordinator", "plan", "freeze", "plan.toml", "--out", "kit")
    run("coordinator", "study", "init", "kit", "--labels", "kit-labels.json")
    for site in SITES:
        at = folders / site
        shutil.copytree(coordinator / "kit", at / "kit")
        (at / "site.toml").write_text(f'format = 1\nname = "{site}"\n')
        run(site, "site", "key", site)
        shutil.copy(at / f"{site}.pub", coordinator)
        run("coordinator", "study", "admit", site, f"{site}.pub")
        assert "fits the plan" in run(site, "site", "check", "kit", "rows.csv")
        run(site, "site", "train", "kit", "rows.csv", "--out", "out")
        shutil.copy(at / "out" / f"{site}.safetensors", coordinator)
        run("coordinator", "study", "add", f"{site}.safetensors")
    run("coordinator", "study", "finish")
    run("coordinator", "study", "verify")

    folder = coordinator / "study" / "results" / "1"
    result = json.loads((folder / "result.json").read_text())
    assert [one["column"] for one in result["importances"]] == ["picture"]
    assert "images of 6 x 6 x 1" in (folder / "model-card.html").read_text()
    out = ("--out", "predicted.csv", "--keep", "picture")
    run("later", "predict", folder, "pictures", *out)
    predicted = pd.read_csv(folders / "later" / "predicted.csv").set_index("picture")
    truth = pd.read_csv(folders / "later" / "rows.csv").set_index("picture")["kind"]
    truth.index = truth.index.str.removeprefix("pictures/")
    assert (predicted["predicted"] == truth.loc[predicted.index]).mean() > 0.8
    adopted = ("adopt", folder / "model", "rows.csv", "--home", "out")
    assert "NLL" in run("north", "site", *adopted)
    run("coordinator", "study", "export", "--out", "crate")
    assert not list((coordinator / "crate").rglob("reference.*"))
    _exports(folder / "model", folders / "later" / "pictures")
    _kit_is_bound(coordinator / "kit")


def _exports(folder, pictures):
    """The ONNX file says of arrays what `predict` says of their files."""
    model = CalibratedModel.load(folder)
    model.export_onnx(folder / "model.onnx")
    _, frame = images_in(model.plan, pictures)
    examined = sound(model.plan, frame)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    given = {"codes": examined.codes.numpy(), "picture": examined.arrays["picture"].numpy()}
    (told,) = session.run(None, given)
    expected = model.predict(frame).filter(like="probability").to_numpy()
    np.testing.assert_allclose(told, expected, atol=1e-6)


def _kit_is_bound(folder):
    """One pixel more, other arrays, or a file named in a cell: no such kit is read."""
    path, table = folder / "reference.safetensors", folder / "reference.csv"
    kept, rows = path.read_bytes(), table.read_text()
    arrays = load_file(path)
    arrays["picture"][0, 0, 0, 0] ^= 1
    for wrong in (arrays, {"picture": arrays["picture"][1:]}, {"other": arrays["picture"]}):
        save_file({name: np.ascontiguousarray(a) for name, a in wrong.items()}, path)
        with pytest.raises(PlanError, match=r"is not the plan's"):
            Kit.load(folder)
    path.unlink()
    with pytest.raises(PlanError, match=r"reference.safetensors does not hold the arrays"):
        Kit.load(folder)
    path.write_bytes(kept)
    table.write_text(rows.replace("\n0\n", "\n../../north/pictures/0.png\n"))
    with pytest.raises(PlanError, match=r"picture: 1 value without an array"):
        Kit.load(folder)
    table.write_text(rows)
    Kit.load(folder)
