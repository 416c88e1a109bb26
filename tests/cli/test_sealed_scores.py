"""Sealed sums whose sites are screened by one opened number each, by commands alone."""

from __future__ import annotations

import json

import pytest

from predbayes.study.result.schema import Result
from predbayes.study.site.holder import Holder
from tests.cli.sealed import PLAN, PRIVACY, Consortium
from tests.cli.test_moments import patients

FOREIGN = "does not hold the labels that the plan was frozen with"
SITES = ("east", "north", "south", "turned")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("scores"))


@pytest.fixture(scope="module")
def asked(runs):
    """Four sites are in, one of which turned its labels round; the holders are asked."""
    plan = PLAN.replace("quorum = 3", 'quorum = 3\nscreening = "leave-out"')
    runs.begin(plan, PRIVACY + "scores = true\n")
    for number, site in enumerate(SITES):
        table = patients(seed=number)
        if site == "turned":
            table["ill"] = table["ill"].map({"no": "yes", "yes": "no"})
        runs.join(site, table)
    runs("coordinator", "study", "request")
    return runs.home


def score(home, *more):
    labels = home / "kit-labels.json"
    return "holder", "score", home / "kit", labels, home / "holder-1.request", *more


def test_labels_that_the_plan_was_not_frozen_with_are_refused(runs, asked):
    foreign = asked / "foreign.json"
    told = json.loads((asked / "kit-labels.json").read_text())
    told["labelled"]["labels"][0] = {"no": "yes", "yes": "no"}[told["labelled"]["labels"][0]]
    foreign.write_text(json.dumps(told))
    line = ("holder", "score", asked / "kit", foreign, asked / "holder-1.request")
    assert FOREIGN in runs("trustee", *line, code=2)
    one = {name: told["labelled"][name][:1] for name in told["labelled"]}
    foreign.write_text(json.dumps(told | {"labelled": one}))
    assert FOREIGN in runs("trustee", *line, code=2)
    plan = json.loads((asked / "holder-1.request").read_text())["plan"]
    assert Holder(runs.root / "trustee" / "holder").scored(plan) == []


def test_a_site_that_stands_out_is_left_out_before_the_sum_is_opened(runs, asked):
    page = (runs.root / "south" / "out" / "egress.html").read_text()
    assert "and one number of this site alone" in page
    runs("trustee", *score(asked, "--out", "one.scores"))
    scores = ("--score", runs.root / "trustee" / "one.scores")
    without = runs("coordinator", "study", "finish", code=2)
    assert "the plan leaves sites out by their scores: give --score" in without
    told = runs("coordinator", "study", "request", *scores)
    assert "turned (left out): agrees by -" in told
    assert "go against the labels" in told
    assert "3 sites, for the key holder" in told
    opening = ("holder", "open", asked / "kit", asked / "holder-1.request", "--out", "one.opening")
    assert "opened: east, north, south" in runs("trustee", *opening)
    opened = ("--opening", runs.root / "trustee" / "one.opening")
    runs("coordinator", "study", "finish", *scores, *opened)
    result = asked / "study" / "results" / "1"
    found = Result.model_validate_json((result / "result.json").read_text())
    assert found.out == {"turned"}
    agreements = {site.site: site.agreement for site in found.sites}
    assert agreements["turned"] < 0 < min(agreements[site] for site in SITES[:3])
    assert "of a single site one number was opened" in found.cautions[0]
    assert "Of each site one number was opened" in (result / "report.html").read_text()
    runs("coordinator", "study", "verify", "--rebuild")
