"""One malicious site of five, without a label: it is named, and costs little.

`benchmarks.malicious` runs the same strategies over several draws and prints the table of
docs/threat-model.md.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from benchmarks import malicious
from benchmarks.malicious import COST, UPLOADS, begun, from_surveys, patients
from predbayes.learning.distill import DISTILLATION
from predbayes_study.result import conclude

LATER = 4000


@pytest.fixture(scope="module", autouse=True)
def short_distillation():
    """A student of three inputs needs few steps."""
    short = replace(DISTILLATION, num_epochs=20, min_steps=300)
    with mock.patch.object(conclude, "DISTILLATION", short):
        yield


@pytest.fixture(scope="module")
def later():
    return patients(LATER, 0, 1000)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("gates"), 0)


@pytest.fixture(scope="module")
def honest(study, later):
    found = study.outcome(None, later)
    assert not found.named
    return found


@pytest.mark.parametrize("name", UPLOADS)
def test_an_upload_that_lies(study, honest, later, name):
    found = study.outcome(UPLOADS[name](study), later)
    assert honest.auroc - found.auroc < COST
    assert found.nll - honest.nll < 0.08
    assert found.named or name == "careful"


@pytest.mark.parametrize("name", ["high gate", "careful"])
def test_a_lie_where_the_gate_is_high_leaves_the_risk_of_those_who_are_ill(study, later, name):
    """Before gates were capped, the mean risk of these patients fell from .93 to .28."""
    risky = study.risky(later)
    fair, lied = (study.mean_risk(lie, risky) for lie in (None, UPLOADS[name](study)))
    assert fair > 0.8
    assert lied > fair - 0.2


def test_sums_of_turned_labels_and_ten_times_the_rows(tmp_path, later):
    """Before sums were capped, this brought the accuracy from .80 to .21, unnamed."""
    sums = begun(tmp_path, 0, sums=True)
    honest, found = sums.outcome(None, later), sums.outcome(malicious.moments(sums, 0), later)
    assert found.named
    assert not honest.named
    assert honest.auroc - found.auroc < COST


@pytest.mark.parametrize("lie", ["women turned", "age turned"])
def test_sums_that_lie_by_half(tmp_path, later, lie):
    """Before all were capped without labels, this cost .04 and .10, and nobody was named."""
    table = malicious.patients(900, 0, len(malicious.SITES) - 1)
    if lie == "women turned":
        turned = table["ill"].map({"no": "yes", "yes": "no"})
        table["ill"] = table["ill"].where(table["sex"] == "male", turned)
    else:
        risk = 1.3 * np.sin(2 * table["marker"].astype(float)) - table["age"].astype(float) / 10 + 6
        table["ill"] = np.where(risk > 0, "yes", "no")
    sums = begun(tmp_path, 0, sums=True)
    upload = malicious.times(sums, table, 3)
    honest, found = sums.outcome(None, later), sums.outcome(upload, later)
    sites = sums.concluded(upload).result.sites
    kinds = {site.site: [one.kind for one in site.findings] for site in sites}
    assert kinds == {key: [] for key in malicious.SITES} | {malicious.LIAR: ["opposed"]}
    assert not honest.named
    assert honest.auroc - found.auroc < COST


def test_a_survey_that_claims_all_rows(tmp_path, later):
    """Before surveys were capped, all reference rows were drawn from this one."""
    study, named = from_surveys(tmp_path / "lied", 0, lies=True)
    assert named
    women = (study.kit.inputs[:, -2] > 0).double().mean()
    assert women < 0.5 + 3 / 7 / 2 + 0.06
    fair, accused = from_surveys(tmp_path / "fair", 0, lies=False)
    assert not accused
    assert fair.outcome(None, later).auroc - study.outcome(None, later).auroc < COST
