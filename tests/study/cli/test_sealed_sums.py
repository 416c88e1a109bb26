"""A study of sealed sums, by commands alone: three sites, two key holders, one coordinator."""

from __future__ import annotations

import json

import pytest

from predbayes_study import Plan, Study
from predbayes_study.payloads.predictions import Predictions
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.analysis import Evidence, ResultMeta
from predbayes_study.result.conclude import conclude
from predbayes_study.result.schema import Result
from predbayes_study.site.fitting import Job
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from tests.study.cli.consortium import Consortium
from tests.study.cli.test_moments import patients
from tests.study.commands import predbayes

RESULT = "coordinator/study/results/1"
SITES = ("east", "north", "south")
CLASSES = 'name = "ill"\ntask = "classification"\nclasses = ["no", "yes"]'
PLAN = f"""
format = 1
name = "sealed"
description = "for a test"
[target]
{CLASSES}
[columns]
age = {{ type = "number", unit = "years" }}
marker = {{ type = "number", unit = "1" }}
sex = {{ type = "category", categories = ["female", "male"], other = false }}
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
PRIVACY = """[sealed]
holders = [%s]
minimum = 3
max_sites = 20
"""


def reference_rows():
    rows = patients(300, seed=99).drop(columns="days")
    rows.loc[180:, "ill"] = ""
    return rows


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("sealed"), ("trustee", "board"))


@pytest.fixture(scope="module")
def study(runs):
    """The study with three sites in."""
    runs.begin(PLAN, PRIVACY, reference_rows())
    for number, site in enumerate(SITES):
        runs.join(site, patients(seed=number))
    runs("south", "site", "check", runs.home / "kit", "patients.csv")
    return runs.root


@pytest.fixture(scope="module")
def finished(runs, study):
    assert "next: predbayes study request" in runs("coordinator", "study", "status")
    assert "the sum is sealed: give --opening" in runs("coordinator", "study", "finish", code=2)
    runs("coordinator", "study", "request")
    one, other = runs.opened("trustee", 1), runs.opened("board", 2)
    told = runs("coordinator", "study", "finish", "--opening", one, code=2)
    assert "the sum is sealed: give --opening" in told
    runs("coordinator", "study", "finish", "--opening", one, "--opening", other)
    return study


def result(root):
    return Result.model_validate_json((root / RESULT / "result.json").read_text())


def in_the_open(root):
    """The result of what the same sites would have sent without masks, under the same plan."""
    study = Study(root / "coordinator" / "study")
    kit, learner = study.kit, study.plan.learner.name
    rows = {site: site_rows(root, site) for site in SITES}
    uploads = {site: Job(kit, site, rows[site], learner).run(Predictions())[0] for site in SITES}
    accepted = [
        AcceptedUpload(
            site=site,
            digest=upload.digest(),
            file_digest=upload.digest(),
            num_bytes=1,
            num_rows=upload.info.num_rows,
            at="",
            number=1,
            key="",
            kind="predictions",
        )
        for site, upload in uploads.items()
    ]
    meta = ResultMeta(1, "", "")
    evidence = Evidence(study.kit, study.labels, accepted, lambda a: uploads[a.site], meta)
    return conclude(evidence).result


def site_rows(root, site):
    plan = Plan.load(root / "coordinator/kit/plan.toml")
    own = SiteFile.load(root / site / "site.toml")
    return SiteRows.of(plan, read_site_table(plan, own, root / site / "patients.csv"))


def assert_same(sealed, twin):
    """Two results have the same pool and scores, but for the grid of sealed sums."""
    assert sealed.pool.name == twin.pool.name
    for name, weight in twin.pool.weights.items():
        assert sealed.pool.weights[name] == pytest.approx(weight, abs=1e-5)
    for kind in ("pooled", "mixture", "server_only"):
        one, other = (getattr(found, kind).metrics["nll"].value for found in (sealed, twin))
        assert one == pytest.approx(other, abs=1e-6)


def test_the_result_is_that_of_the_same_uploads_in_the_open(finished):
    assert_same(result(finished), in_the_open(finished))


def test_what_needs_single_uploads_is_absent_and_said_to_be(finished):
    told = result(finished)
    for site in told.sites:
        assert (site.kind, site.alone, site.influence) == ("masked", None, None)
        assert site.class_rows is None
    assert "nobody saw what a single site sent" in told.cautions[0]
    page = (finished / RESULT / "report.html").read_text()
    assert "Nobody was screened" in page
    assert "No check would find a key holder who added numbers to the sum" in page


def test_evaluations_join_without_a_new_opening_and_it_can_be_made_again(runs, finished):
    assert "result 1" in runs("coordinator", "study", "finish")
    own = ("patients.csv", "--home", "out", "--out", "sent.safetensors")
    runs("south", "site", "evaluate", finished / RESULT, *own)
    runs("coordinator", "study", "add", finished / "south" / "sent.safetensors")
    assert "result 2" in runs("coordinator", "study", "finish")
    runs("coordinator", "study", "verify", "--rebuild")


def test_the_egress_page_says_who_could_read_it(study):
    page = (study / "south" / "out" / "egress.html").read_text()
    assert "all of it under masks" in page
    assert "Coordinator and all 2 key holders together could read this file" in page


class TestRefusals:
    """One line and exit code 2, as `runs` asserts."""

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda sites: sites.pop("north"), "the sum of 2 sites"),
            (lambda sites: sites.update(west=sites.pop("north")), "that this holder admitted"),
            (lambda sites: sites["north"].update(key=sites["south"]["key"]), "north has another"),
            (
                lambda sites: sites["north"].update(seal=sites["south"]["seal"]),
                "north: the site did not sign",
            ),
            (None, "this holder's key"),
        ],
    )
    def test_a_holder_opens_no_sum_of_others_keys_seals_or_sites(self, runs, study, change, why):
        runs("coordinator", "study", "request")
        asked = json.loads((study / "coordinator" / "holder-1.request").read_text())
        key = ()
        if change is None:
            runs("stranger", "holder", "keys")
            key = ("--key", study / "stranger" / "holder.key")
        else:
            change(asked["sites"])
        path = study / "trustee" / "changed.request"
        path.write_text(json.dumps(asked))
        told = runs("trustee", "holder", "open", study / "coordinator" / "kit", path, *key, code=2)
        assert why in told

    def test_no_site_is_left_out_of_a_sealed_sum(self, runs, study):
        told = runs("coordinator", "study", "finish", "--leave-out", "north", code=2)
        assert "no site can be left out of one" in told

    def test_an_upload_that_was_altered_on_its_way(self, study):
        path = study / "south" / "altered.safetensors"
        content = bytearray((study / "south" / "out" / "south.safetensors").read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        done = predbayes("study", "add", path, cwd=study / "coordinator")
        assert done.code == 2
        assert "altered.safetensors: the signature is not of this content" in done.err

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"quorum = 3": "quorum = 2"}, "sealed.minimum"),
            ({"[rules]": "[gate]\n[rules]"}, "gate"),
            ({"max_sites = 20": "max_sites = 9\nmax_rows = 900_000_000_000"}, "64"),
            ({"holders = [": "#"}, "holders"),
            (
                {
                    "logistic": "linear",
                    '"classification"': '"regression"',
                    'classes = ["no", "yes"]': "centre = 1.0\nscale = 1.0",
                },
                "does not go together with [sealed]",
            ),
        ],
    )
    def test_plans_that_cannot_be_sealed(self, runs, study, changes, why):
        text = (study / "coordinator" / "plan.toml").read_text()
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        (study / "coordinator" / "other.toml").write_text(text)
        assert why in runs("coordinator", "plan", "check", "other.toml", code=2)
