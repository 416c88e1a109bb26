"""A study whose sum is differentially private for sites, by commands alone."""

from __future__ import annotations

import json

import pytest

from predbayes.exchange.header import Header
from predbayes.study.result.schema import Result
from tests.cli.sealed import PLAN, PRIVACY, Consortium
from tests.cli.test_moments import patients

SITES = ("east", "north", "south")
STATED = """[privacy.sites]
epsilon = 8.0
delta = 1e-5
adjacency = "replace-one"
unit = "site"
honest = 3
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("private"))


@pytest.fixture(scope="module")
def root(runs):
    return runs.root


@pytest.fixture(scope="module")
def finished(runs):
    runs.begin(PLAN, PRIVACY + STATED)
    for number, site in enumerate(SITES):
        runs.join(site, patients(seed=number))
    runs("coordinator", "study", "request")
    runs("coordinator", "study", "finish", "--opening", runs.opened())
    return runs.home / "study" / "results" / "1"


def test_the_result_says_what_is_promised_with_all_its_parts(finished):
    found = Result.model_validate_json((finished / "result.json").read_text())
    told = "epsilon 8 at delta 1e-05 for each site, replace-one, as long as 3 sites of a sum"
    assert any(told in caution for caution in found.cautions)
    assert "product" not in found.pool.weights
    assert told in (finished / "report.html").read_text()


def test_neither_rows_nor_the_learner_leave_a_site(finished, root):
    assert finished.exists()
    for site in SITES:
        info = Header.read(root / site / "out" / f"{site}.safetensors").info
        assert (info.num_rows, info.class_rows, info.learner) == (1, None, "")
        page = (root / site / "out" / "egress.html").read_text()
        assert "epsilon 8 at delta 1e-05 for each site" in page


def test_an_evaluation_has_no_noise_and_does_not_leave(finished, runs):
    own = ("patients.csv", "--home", "out", "--out", "sent.safetensors")
    told = runs("south", "site", "evaluate", finished, *own, code=2)
    assert "an evaluation has no noise, and may not leave" in told


def test_a_second_upload_of_a_site_is_not_opened(finished, runs, root):
    """Its noise would be drawn anew, and the mean of the two would have less."""
    assert finished.exists()
    home = root / "coordinator"
    asked = json.loads((home / "holder-1.request").read_text())
    runs("south", "site", "train", home / "kit", "patients.csv", "--out", "again")
    runs("other", "study", "init", home / "kit", "--labels", home / "kit-labels.json")
    for site, out in (("east", "out"), ("north", "out"), ("south", "again")):
        runs("other", "study", "admit", site, root / site / f"{site}.pub")
        runs("other", "study", "add", root / site / out / f"{site}.safetensors")
    runs("other", "study", "request")
    again = json.loads((root / "other" / "holder-1.request").read_text())
    assert again["sites"]["south"]["words"] != asked["sites"]["south"]["words"]
    line = ("holder", "open", home / "kit", root / "other" / "holder-1.request")
    assert "another upload of south was opened in a sum" in runs("trustee", *line, code=2)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("honest = 3", "honest = 4", "a sum of so few sites would have too little noise"),
        ("delta = 1e-5\n", "", "privacy.sites.delta"),
        ('adjacency = "replace-one"\n', "", "privacy.sites.adjacency"),
        ('unit = "site"\n', "", "privacy.sites.unit"),
        ("[privacy.sites]", "scores = true\n[privacy.sites]", "which tell of single sites"),
        ("[pool]", '[pool]\nmethod = "product"', "the mixture alone has noise"),
    ],
)
def test_plans_that_promise_too_much(finished, runs, root, old, new, why):
    assert finished.exists()
    text = (root / "coordinator" / "plan.toml").read_text()
    assert old in text
    (root / "coordinator" / "other.toml").write_text(text.replace(old, new))
    assert why in runs("coordinator", "plan", "check", "other.toml", code=2)
