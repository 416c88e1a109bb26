"""Attack: sums of two evaluations that are finite each and infinite together."""

import pytest

from predbayes.errors import UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes_study.coordinator.status import status_of
from predbayes_study.payloads.details import Evaluation, Sums, save_signed, with_evaluation
from tests.study.world import make_world

pytestmark = pytest.mark.usefixtures("quick_results")


NUM_ROWS = 50


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    world = make_world(tmp_path_factory.mktemp("evaluations"), method="mixture")
    study = world.begin(added=("Alpha", "Beta", "Gamma"))
    return world, study, study.finish()[0].model


def evaluation(world, site, model, nll, brier):
    metrics = {"nll": nll, "accuracy": Sums(total=25.0, squares=25.0), "brier": brier}
    evaluation = Evaluation(model=model, metrics=metrics)
    info = with_evaluation(UploadInfo(kind="evaluation", num_rows=NUM_ROWS), evaluation)
    path = world.root / f"{site}-evaluation.safetensors"
    save_signed(Upload(info, {}).named(site).for_plan(world.kit.digest), path, world.key(site))
    return path


@pytest.mark.parametrize("squares", [1e100, 1e60, 2500.0])
@pytest.mark.parametrize("which", ["nll", "brier"])
def test_squares_that_no_rows_have_are_refused(finished, which, squares):
    world, study, model = finished
    sums = {name: Sums(total=40.0, squares=40.0) for name in ("nll", "brier")}
    sums[which] = Sums(total=40.0, squares=squares)
    with pytest.raises(UploadError, match=f"sums of {which}"):
        study.add(evaluation(world, "Alpha", model, **sums))


def test_the_largest_that_are_taken_add_up(finished):
    world, study, model = finished
    nll = Sums(total=1e6 * NUM_ROWS, squares=(1e6 * NUM_ROWS) ** 2)
    for site in ("Alpha", "Beta", "Gamma"):
        assert study.add(evaluation(world, site, model, nll, Sums(total=100.0, squares=200.0)))
    _, result = study.finish()
    assert result.at_sites.pooled.num_rows == 3 * NUM_ROWS
    assert study.result(result.number) == result
    assert status_of(study).results[-1].current
