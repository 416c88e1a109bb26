"""The recipes of CONTRIBUTING: each adds something by its files alone, and a study has it."""

from __future__ import annotations

import importlib
import io
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from predbayes.errors import UploadError
from predbayes.learning import named
from predbayes.predictive import measures
from predbayes.predictive.families import Categorical
from predbayes.predictive.measures import Measure
from predbayes_study import extra
from predbayes_study.payloads.details import save_signed
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import Training
from tests.study.world import SITES, make_world, own_table

ROOT = Path(__file__).parents[2]
RECIPE = re.compile(r"^### (Add an? [\w ]+)\n(.*?)(?=^##)", re.M | re.S)
AIMS = {"Add a learner": 2, "Add a type of column": 3, "Add a measure": 1, "Add a payload": 2}


_LINEAR = """
[learner]
name = "logistic-regression"
min_steps = 200
num_epochs = 1
holdout = 0.0
holdout_reason = "drawn"
"""


def trained(world, site, out):
    """What a site makes of rows like the reference rows."""
    table = own_table((world.root / "reference.csv").read_text(encoding="utf-8"))
    frame = pd.read_csv(io.StringIO(table), dtype=str, keep_default_na=False)
    plan = world.kit.plan
    rows = SiteRows.of(plan, frame)
    approvals = Approvals(out.parent)
    training = Training(world.kit, site, world.key(site), approvals, out, plan.learner.name)
    return training.run(rows)


def files_of(text: str) -> tuple[set[str], set[str]]:
    """The source files that a recipe names, and its tests."""
    return set(re.findall(r"`(packages/[\w/.]+)`", text)), set(
        re.findall(r"`(tests/[\w/.]+)", text)
    )


def test_each_recipe_names_as_few_files_as_it_may_and_the_test_that_walks_it():
    recipes = dict(RECIPE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert recipes.keys() == AIMS.keys()
    for name, text in recipes.items():
        sources, tests = files_of(text)
        assert 1 <= len(sources) <= AIMS[name], name
        assert tests
        there = [path for path in sources if (ROOT / path).exists() or "yours" in path]
        assert len(there) == len(sources), name
        assert all((ROOT / path).exists() for path in tests), name


def test_a_learner_is_a_row_of_a_table(tmp_path, monkeypatch):
    """A plan may name it, a site trains with it, and the upload says what was fitted."""

    def nearest():
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(15)

    monkeypatch.setitem(named.CLASSIFIERS, "nearest-rows", nearest)
    learner = '[learner]\nname = "nearest-rows"\nholdout = 0.0\nholdout_reason = "drawn"\n'
    world = make_world(tmp_path / "world", learner=learner)
    table = own_table((tmp_path / "world/reference.csv").read_text(encoding="utf-8"))
    frame = pd.read_csv(io.StringIO(table), dtype=str, keep_default_na=False)
    rows = SiteRows.of(world.kit.plan, frame)
    made = Training(
        world.kit,
        "Alpha",
        world.key("Alpha"),
        Approvals(tmp_path),
        tmp_path / "out",
        "nearest-rows",
    ).run(rows)
    assert made.upload.info.learner == "nearest-rows"
    assert made.upload.predictive().log_probs.shape == (len(world.kit.inputs), 3)


@pytest.mark.usefixtures("quick_results")
def test_a_measure_is_a_row_of_a_table(tmp_path, monkeypatch):
    """Results have it with an interval, and the report has its label."""

    def missed(predictive, targets, _):
        return (predictive.log_probs.argmax(1) != targets).double()

    added = Measure(
        "missed", "Missed", "share of rows with a wrong class. Lower is better.",
        missed, family=Categorical, unit="share", bounds=(0.0, 1.0), headline=True,
    )  # fmt: skip
    monkeypatch.setattr(measures, "_TABLE", (*measures._TABLE, added))
    monkeypatch.setitem(measures.MEASURES, "missed", added)
    world = make_world(tmp_path / "world")
    study = world.begin()
    for site in ("Alpha", "Beta", "Gamma"):
        study.add(world.file(site))
    _, result = study.finish()
    found = result.pooled.metrics["missed"]
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(1 - result.pooled.metrics["accuracy"].value)
    assert "Missed" in (world.root / "study/results/1/report.html").read_text(encoding="utf-8")


_EXTRA = """
from typing import ClassVar

from predbayes_study.extra import Extra
from predbayes_study.plan.schema import Added


class Coarse(Added):
    sends: ClassVar[str] = "coarse"
    digits: int


extra = Extra("coarse", sections={"coarse": ":Coarse"}, payloads={"coarse": "payload:Coarsened"})
"""
_PAYLOAD = """
from dataclasses import replace

from predbayes.errors import UploadError
from predbayes_study.payloads.predictions import Predictions


class Coarsened(Predictions):
    kind = "coarse"
    permission = "coarse predictions"

    def rounded(self, plan, arrays):
        digits = plan.sections["coarse"].digits
        return {name: array.round(decimals=digits) for name, array in arrays.items()}

    def make(self, job):
        upload, own = super().make(job)
        info = upload.info.model_copy(update={"kind": self.kind})
        return replace(upload, info=info, arrays=self.rounded(job.kit.plan, upload.arrays)), own

    def check(self, plan, upload, key):
        super().check(plan, upload, key)
        for name, array in self.rounded(plan, upload.arrays).items():
            if (array != upload.arrays[name]).any():
                raise UploadError("it is finer than the plan allows")
"""


@pytest.mark.usefixtures("quick_results")
def test_a_payload_is_a_section_and_a_class(tmp_path, monkeypatch):
    """Sites send it, the coordinator refuses what is not of it, and makes a result of it."""
    (tmp_path / "coarse").mkdir()
    (tmp_path / "coarse" / "__init__.py").write_text(_EXTRA)
    (tmp_path / "coarse" / "payload.py").write_text(_PAYLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    found = {**extra.extras(), "coarse": importlib.import_module("coarse").extra}
    monkeypatch.setattr(extra, "_found", found)
    world = make_world(tmp_path / "world", gate="[coarse]\ndigits = 2\n", learner=_LINEAR)
    study = world.begin()
    for site in SITES[:3]:
        made = trained(world, site, tmp_path / site)
        assert made.upload.info.kind == "coarse"
        study.add(made.path)
    fine = world.upload("Delta")
    fine = replace(fine, info=fine.info.model_copy(update={"kind": "coarse"}))
    save_signed(fine, tmp_path / "fine.safetensors", world.key("Delta"))
    with pytest.raises(UploadError, match="finer than the plan allows"):
        study.add(tmp_path / "fine.safetensors")
    _, result = study.finish()
    assert [site.site for site in result.sites] == sorted(SITES[:3])
