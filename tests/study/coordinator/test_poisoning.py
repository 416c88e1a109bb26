"""One poisoned site of five: it is named, left out, and the result is as without it."""

import pytest
import torch

from predbayes.predictive.families import Categorical, Gaussian
from tests.study.world import SITES, make_world

BAD = "Epsilon"


def permuted(world):
    honest = world.predictions(BAD)
    return Categorical(honest.log_probs[:, [1, 2, 0]])


def overconfident_and_wrong(world):
    least = world.predictions(BAD).log_probs.argmin(1)
    return Categorical((12.0 * torch.nn.functional.one_hot(least, 3)).log_softmax(-1))


def constant(world):
    row = torch.tensor([[0.8, 0.1, 0.1]]).log()
    return Categorical(row.expand(len(world.kit.inputs), -1).clone())


def copied(world):
    return world.predictions("Alpha")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), screening="leave-out", evaluate=140)


@pytest.fixture(scope="module")
def without(world):
    study = world.begin("without", added=SITES[:4])
    _, result = study.finish()
    assert not any(site.left_out for site in result.sites)
    return result


@pytest.mark.parametrize(
    "poison",
    [
        permuted,
        *(
            pytest.param(poison, marks=pytest.mark.slow("a study of five sites"))
            for poison in (overconfident_and_wrong, constant, copied)
        ),
    ],
)
def test_it_is_named_and_costs_little(world, without, poison):
    study = world.begin(poison.__name__, added=SITES[:4])
    study.add(world.file(BAD, poison(world)))
    recorded, result = study.finish()
    found = {site.site: site for site in result.sites}
    assert found[BAD].findings
    named = {site for site, line in found.items() if line.findings}
    assert named == ({BAD, "Alpha"} if poison is copied else {BAD})
    nll = result.student.scores.metrics["nll"].value
    assert nll <= 1.05 * without.student.scores.metrics["nll"].value
    report = (study.result_folder(recorded.number) / "report.html").read_text()
    assert found[BAD].findings[0].text.split(";")[0].split(".")[0][:40] in report


@pytest.mark.slow("another study of five sites")
def test_a_plan_that_only_reports_leaves_nobody_out(tmp_path):
    world = make_world(tmp_path, screening="report")
    study = world.begin(added=SITES[:4])
    study.add(world.file(BAD, overconfident_and_wrong(world)))
    _, result = study.finish()
    found = {site.site: site for site in result.sites}
    assert found[BAD].findings
    assert not any(site.left_out for site in result.sites)


@pytest.mark.slow("another study of five sites")
def test_a_site_of_a_regression_that_turns_its_targets_round(tmp_path):
    world = make_world(tmp_path, regression=True, screening="leave-out")
    study = world.begin(added=SITES[:4])
    honest = world.predictions(BAD)
    study.add(world.file(BAD, Gaussian(-honest.mean, honest.var, honest.epistemic_var)))
    _, result = study.finish()
    found = {site.site: site for site in result.sites}
    assert found[BAD].findings
    assert found[BAD].left_out
