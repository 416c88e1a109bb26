"""A sealed study of the time to an event, by commands alone."""

from __future__ import annotations

import pytest

from tests.study.cli.consortium import Consortium
from tests.study.cli.test_sealed_sums import (
    CLASSES,
    PLAN,
    PRIVACY,
    RESULT,
    SITES,
    assert_same,
    in_the_open,
    result,
)
from tests.study.cli.test_survival import patients

TIMES = """name = "days"
task = "survival"
event = "died"
codes = ["0", "1"]
times = [200, 500, 1000]
unit = "days"
"""


def reference_rows():
    rows = patients(300, seed=99).astype(str)
    rows.loc[180:, ["days", "died"]] = ""
    return rows


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("sealed-survival"), ("trustee",))


@pytest.fixture(scope="module")
def finished(runs):
    runs.begin(PLAN.replace(CLASSES, TIMES), PRIVACY, reference_rows())
    for number, site in enumerate(SITES):
        runs.join(site, patients(200, seed=number, older=4.0 * (number - 1)))
    runs("coordinator", "study", "request")
    runs("coordinator", "study", "finish", "--opening", runs.opened())
    return runs.root


def test_the_result_is_that_of_the_same_uploads_in_the_open(finished):
    sealed = result(finished)
    assert_same(sealed, in_the_open(finished))
    assert "nobody saw what a single site sent" in sealed.cautions[0]
    page = (finished / "south" / "out" / "egress.html").read_text()
    assert "all of it under masks" in page
    assert "ows of each class" not in page
    assert "ows of each class" not in (finished / RESULT / "report.html").read_text()
