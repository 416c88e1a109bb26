"""Sites that are honest where labels can check them, and lie elsewhere (finding 4 of the review).

Before sites were compared on all rows, the first and the third of these cost 12 to 22 points and
nobody was named.
"""

from __future__ import annotations

import pytest
import torch

from predbayes.predictive.families import Gaussian
from predbayes.seeding import generator
from tests.study.attacks.wine import BAD, flipped, make_wines

pytestmark = pytest.mark.data

POINTS = 0.02


@pytest.fixture(scope="module")
def wines(tmp_path_factory):
    return make_wines(tmp_path_factory.mktemp("wines"))


@pytest.fixture(scope="module")
def honest(wines):
    return wines.run("honest")


def half(rows):
    return rows & (torch.rand(len(rows), generator=generator(0, "half")) < 0.5)


@pytest.mark.parametrize(
    "num_rows", [480, pytest.param(10**9, marks=pytest.mark.slow("a study of wines"))]
)
def test_a_site_that_flips_unlabelled_rows(wines, honest, num_rows):
    lie = flipped(wines.honest[BAD], wines.unlabelled)
    found = wines.run(f"flips {num_rows}", {BAD: lie}, {BAD: num_rows})
    assert found.named == {BAD}
    assert "rows without labels it predicts otherwise" in found.first
    assert found.left_out == {BAD}
    assert found.score >= honest.score - POINTS


@pytest.mark.slow("a study of wines")
def test_a_plan_that_only_reports_names_it_and_calls_nothing_sound(tmp_path):
    wines = make_wines(tmp_path, screening="report", method="beta")
    lie = flipped(wines.honest[BAD], wines.unlabelled)
    found = wines.run("kept", {BAD: lie}, {BAD: 480})
    assert found.named == {BAD}
    assert found.left_out == set()
    assert {site.site: site.counted_rows for site in found.result.sites}[BAD] == 160
    assert "No miscalibration was found" not in found.report


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return make_wines(tmp_path_factory.mktemp("numbers"), regression=True)


@pytest.fixture(scope="module")
def honest_numbers(numbers):
    return numbers.run("honest")


@pytest.mark.slow("a study of wines")
def test_a_site_that_claims_to_be_sure(numbers, honest_numbers):
    """Pools that trust by epistemic variance would follow it alone."""
    own, rows = numbers.honest[BAD], numbers.unlabelled
    sure = torch.where(rows, 1e-4 * own.var, own.epistemic_var)
    mean = torch.where(rows, own.mean - 0.5, own.mean)
    found = numbers.run("sure", {BAD: Gaussian(mean, own.var, sure)})
    assert found.named == found.left_out == {BAD}
    assert found.score >= honest_numbers.score - POINTS
