"""A sealed study of the time to an event, by commands alone."""

from __future__ import annotations

import pytest

from predbayes.study.result.schema import Result
from tests.cli.sealed import PRIVACY, Consortium
from tests.cli.test_sealed_sums import RESULT, SITES, in_the_open
from tests.cli.test_survival import patients

PLAN = """
format = 1
name = "sealed"
description = "for a test"
[target]
name = "days"
task = "survival"
event = "died"
codes = ["0", "1"]
times = [200, 500, 1000]
unit = "days"
[columns]
age = { type = "number", unit = "years" }
marker = { type = "number", unit = "1" }
sex = { type = "category", categories = ["female", "male"], other = false }
[reference]
file = "reference.csv"
source = "drawn"
licence = "none"
legal_basis = "nobody's"
labelled = 120
evaluate = 60
unlabelled = 120
[learner]
name = "logistic-regression"
[pool]
own = "logistic-regression"
[model]
hidden = [8]
[rules]
quorum = 3
"""

SITE_PROMISE = """[privacy.sites]
epsilon = 4.0
delta = 1e-5
adjacency = "zero-out"
unit = "site"
honest = 3
clip = 0.5
"""


def reference_rows():
    rows = patients(300, seed=99).astype(str)
    rows.loc[180:, ["days", "died"]] = ""
    return rows


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("sealed-survival"))


@pytest.fixture(scope="module")
def finished(runs):
    runs.begin(PLAN, PRIVACY, reference_rows())
    for number, site in enumerate(SITES):
        runs.join(site, patients(200, seed=number, older=4.0 * (number - 1)))
    runs("coordinator", "study", "request")
    runs("coordinator", "study", "finish", "--opening", runs.opened())
    return runs.root


def test_the_result_is_that_of_the_same_uploads_in_the_open(finished):
    sealed = Result.model_validate_json((finished / RESULT / "result.json").read_text())
    twin = in_the_open(finished)
    assert sealed.pool.name == twin.pool.name
    for name, weight in twin.pool.weights.items():
        assert sealed.pool.weights[name] == pytest.approx(weight, abs=1e-5)
    for kind in ("pooled", "mixture", "server_only"):
        one, other = (getattr(found, kind).metrics["nll"].value for found in (sealed, twin))
        assert one == pytest.approx(other, abs=1e-6)
    assert "nobody saw what a single site sent" in sealed.cautions[0]


def test_it_can_be_made_again(runs, finished):
    runs("coordinator", "study", "verify", "--rebuild")


def test_pages_speak_of_no_classes(finished):
    page = (finished / "south" / "out" / "egress.html").read_text()
    assert "all of it under masks" in page
    assert "ows of each class" not in page
    assert "ows of each class" not in (finished / RESULT / "report.html").read_text()


@pytest.mark.parametrize("more", ["scores = true", SITE_PROMISE])
def test_neither_scores_nor_a_promise_to_sites(runs, finished, more):
    text = (finished / "coordinator" / "plan.toml").read_text()
    (finished / "coordinator" / "other.toml").write_text(f"{text}\n{more}\n")
    told = runs("coordinator", "plan", "check", "other.toml", code=2)
    assert "a time to an event has neither" in told
