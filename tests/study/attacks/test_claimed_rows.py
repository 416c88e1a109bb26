"""Rows are weight, and a site may claim any number (finding 4 of the review).

With 20 labels nobody can be screened. Before weights had a limit, the second of these brought the
accuracy from .73 to .29, under the words "No miscalibration was found".
"""

from __future__ import annotations

import pytest

from predbayes.errors import UploadError
from predbayes_study.coordinator.study import Study
from tests.study.attacks.wine import BAD, NUM_ROWS, flipped, make_wines

pytestmark = pytest.mark.data

POINTS = 0.02


@pytest.fixture(scope="module")
def wines(tmp_path_factory):
    return make_wines(tmp_path_factory.mktemp("wines"), labelled=20, unlabelled=380)


@pytest.fixture(scope="module")
def honest(wines):
    return wines.run("honest")


@pytest.mark.slow("a study of wines")
def test_too_few_labels_are_spoken_of_first(honest):
    assert "Could not check any site against labels: labelled rows are 20" in honest.first
    assert "No miscalibration was found" not in honest.report
    assert honest.named == set()


@pytest.mark.slow("two studies of wines")
def test_a_site_that_flips_everything_weighs_as_the_median_site(wines, honest):
    found = wines.run("flips", {BAD: flipped(wines.honest[BAD])}, {BAD: 16_000})
    assert found.named == {BAD}
    assert "go against those of the other sites" in found.first
    assert {site.site: site.counted_rows for site in found.result.sites}[BAD] == NUM_ROWS
    assert found.score >= honest.score - POINTS
    assert f"{BAD} states 16,000 rows, not agreed at admission" in found.first


@pytest.mark.slow("a study of wines")
def test_a_site_counts_for_three_times_the_median_site_at_most(tmp_path):
    wines = make_wines(tmp_path)
    rows = wines.run("claims", rows={BAD: 10**6, "Alpha": 400})
    counted = {site.site: site.counted_rows for site in rows.result.sites}
    assert counted == dict.fromkeys(counted, 160) | {BAD: 480, "Alpha": 400}
    assert rows.named == {BAD}


def test_other_rows_than_were_agreed_are_refused(wines):
    study = Study.init(wines.root / "agreed", wines.kit.folder, wines.root / "labels.json")
    study.admit(BAD, wines.keys[BAD].public, rows=NUM_ROWS)
    with pytest.raises(UploadError, match="it states 16,000 rows; 160 were agreed"):
        study.add(wines.file(BAD, None, 16_000))
