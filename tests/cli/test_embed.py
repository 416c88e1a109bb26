"""Vectors by a named encoder: made before a study, the same at every site, or refused."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from predbayes.errors import DataError, PlanError
from predbayes.study.kit.kit import Kit
from predbayes.study.plan.encoders import ImageEncoder
from predbayes.study.plan.schema import Plan
from predbayes.study.plan.text import dump
from predbayes.study.tables.coding import encode
from predbayes.study.tables.mapping import read_site_table
from predbayes.study.tables.sitefile import SiteFile
from tests.cli.test_survival import predbayes
from tests.flower.installed import install

__all__ = ["predbayes"]

CODE = """
import torch
from torch import nn

def build():
    head = nn.Conv2d(3, 2, 2, stride=2)
    torch.nn.init.constant_(head.weight, {weight})
    torch.nn.init.constant_(head.bias, 0.5)
    return nn.Sequential(head, nn.Flatten())
"""
PYPROJECT = """
[project]
name = "{name}"
version = "1.0.0"
[project.entry-points."predbayes.encoders"]
tiny = "{name}:build"
"""
PLAN = """
format = 1
name = "embedded"
description = "made for a test"
[target]
name = "kind"
task = "classification"
classes = ["dark", "light"]
[columns]
scan = { type = "vector", size = 8, encoder = "tiny", images = [4, 4, 3] }
[reference]
file = "rows.csv"
source = "made for a test"
licence = "none"
legal_basis = "none"
labelled = 8
unlabelled = 4
[learner]
name = "network"
"""
NUM = 12


def offer(folder, name, weight=0.1):
    """Install a package of its own name: Python keeps what it once imported."""
    example = folder / "example"
    (example / name).mkdir(parents=True)
    (example / name / "__init__.py").write_text(CODE.format(weight=weight))
    (example / "pyproject.toml").write_text(PYPROJECT.format(name=name))
    (folder / "packages").mkdir()
    return str(install(example, name, folder / "packages"))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    name = f"tiny{abs(hash(tmp_path))}"
    monkeypatch.syspath_prepend(offer(tmp_path / "installed", name))
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path):
    at = tmp_path / "coordinator"
    at.mkdir()
    rng = np.random.default_rng(0)
    for row in range(NUM):
        pixels = rng.integers(0, 120 + 120 * (row % 2), (4, 4, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(at / f"{row}.png")
    names = [f"{row}.png" for row in range(NUM)]
    table = pd.DataFrame({"scan": names, "kind": ["dark", "light"] * (NUM // 2)})
    table.to_csv(at / "rows.csv", index=False)
    (at / "plan.toml").write_text(PLAN)
    return at


ALLOWED = ("--allow-network", "tiny")
SITE = SiteFile.loads('format = 1\nname = "Basel"\n')


def frozen(predbayes, folder):
    done = predbayes("embed", "plan.toml", "rows.csv", *ALLOWED, at=folder)
    assert done.code == 0, done.err
    assert "rows.scan.safetensors" in done.out
    done = predbayes("plan", "freeze", "plan.toml", "--out", "kit", at=folder)
    assert done.code == 0, done.err
    return Kit.load(folder / "kit")


def refused(done, words):
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert words in done.err


def test_sites_have_the_vectors_of_the_plans_encoder(predbayes, folder, tiny):
    kit = frozen(predbayes, folder)
    stated = kit.plan.frozen.encoders["scan"]
    assert (stated.distribution, stated.version) == (tiny, "1.0.0")
    assert not list((folder / "kit").glob("*.png"))

    site = folder.parent / "site"
    shutil.copytree(folder, site)
    (site / "rows.scan.safetensors").unlink()
    with pytest.raises(DataError, match=r"scan: there is no rows.scan.safetensors; make it with"):
        read_site_table(kit.plan, SITE, site / "rows.csv")
    (site / "site.toml").write_text('format = 1\nname = "Basel"\nallow_networks = ["tiny"]\n')
    done = predbayes("embed", "kit", "rows.csv", "--site", "site.toml", at=site)
    assert done.code == 0, done.err
    inputs = encode(kit.plan, read_site_table(kit.plan, SITE, site / "rows.csv"))

    column, encoder = kit.plan.columns["scan"], ImageEncoder.load(kit.plan, "scan")
    images = [np.asarray(Image.open(site / f"{row}.png")) for row in range(NUM)]
    expected = encoder(torch.from_numpy(np.stack(images)))
    torch.testing.assert_close(inputs, (expected - column.centre) / column.scale)
    assert {tuple(row) for row in kit.inputs.tolist()} == {tuple(row) for row in inputs.tolist()}


def test_vectors_of_other_rows_are_refused(predbayes, folder, tiny):
    kit = frozen(predbayes, folder)
    table = pd.read_csv(folder / "rows.csv")
    table.iloc[::-1].to_csv(folder / "rows.csv", index=False)
    with pytest.raises(DataError, match=r"rows.scan.safetensors is of other rows than the table"):
        read_site_table(kit.plan, SITE, folder / "rows.csv")


def test_another_encoder_is_refused(predbayes, folder, tiny, tmp_path, monkeypatch):
    """Other code, other weights, or vectors that were made with either."""
    kit = frozen(predbayes, folder)
    plan = kit.plan
    other = {"scan": plan.frozen.encoders["scan"].model_copy(update={"weights": "0" * 64})}
    seal = plan.frozen.model_copy(update={"encoders": other})
    changed = plan.model_copy(update={"frozen": seal})
    with pytest.raises(PlanError, match="encoder 'tiny' has other weights than those of the plan"):
        ImageEncoder.load(changed, "scan")
    with pytest.raises(DataError, match="was made by another encoder than the plan's"):
        read_site_table(changed, SITE, folder / "rows.csv")
    source = tmp_path / "installed" / "packages" / tiny / "__init__.py"
    source.write_text(source.read_text() + "# more\n")
    refused(
        predbayes("embed", "kit", "rows.csv", *ALLOWED, at=folder),
        f"encoder 'tiny' of {tiny} 1.0.0 is installed here, but its files are not those",
    )
    refused(
        predbayes("plan", "freeze", "plan.toml", "--out", "again", at=folder),
        "rows.scan.safetensors was made by another encoder than is installed",
    )


def test_code_runs_only_where_it_is_allowed(predbayes, folder, tiny):
    refused(
        predbayes("embed", "plan.toml", "rows.csv", at=folder),
        "encoder 'tiny' is code that would run here; allow it with --allow-network tiny",
    )
    assert tiny not in sys.modules


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("size = 8", "size = 9"), "does not make 9 finite numbers of an image"),
        (("[4, 4, 3]", "[4, 5, 3]"), "scan: 12 values other than images of 4 x 5 x 3"),
        (('"tiny"', '"tinny"'), "no installed encoder 'tinny'"),
        ((', encoder = "tiny", images = [4, 4, 3]', ""), "the plan names no encoder"),
        ((", images = [4, 4, 3]", ""), "encoder and images go together"),
    ],
)
def test_what_does_not_fit_is_one_line(change, words, predbayes, folder, tiny):
    (folder / "plan.toml").write_text(PLAN.replace(*change))
    asked = ("--allow-network", "tinny", *ALLOWED)
    refused(predbayes("embed", "plan.toml", "rows.csv", *asked, at=folder), words)


def test_plans_without_an_encoder_say_nothing_of_it():
    bare = PLAN.replace(', encoder = "tiny", images = [4, 4, 3]', "")
    assert "encoder" not in Plan.loads(bare).model_dump_json()
    assert "encoder" not in dump(Plan.loads(bare))
