"""Attack: one upload that intake takes breaks `finish`, or every later step, for everybody."""

import math

import pytest
import torch

from predbayes.errors import StudyError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import LOG_PROB_FLOOR, VAR_FLOOR
from predbayes_study.coordinator.status import status_of
from predbayes_study.payloads.details import save_signed
from predbayes_study.payloads.predictions import Predictions
from tests.study.world import make_world

pytestmark = pytest.mark.usefixtures("quick_results")


HONEST = ("Alpha", "Beta", "Gamma")


@pytest.fixture(scope="module", params=[False, True], ids=["classes", "numbers"])
def begun(request, tmp_path_factory):
    """A study of three honest sites, in which Delta is admitted."""
    world = make_world(tmp_path_factory.mktemp("malformed"), regression=request.param)
    study = world.begin(added=HONEST)
    return world, study


def send(world, arrays, num_rows=100, class_rows=None):
    """A file of Delta's with whatever arrays, signed."""
    info = UploadInfo(
        kind="predictions",
        num_rows=num_rows,
        class_rows=class_rows,
        site="Delta",
        plan=world.kit.digest,
        learner="x",
    )
    path = world.root / "evil.safetensors"
    save_signed(Upload(info, arrays), path, world.key("Delta"))
    return path


def above(arrays):
    arrays["log_probs"][0] = torch.tensor([0.005, -5.5, -5.5])


def extreme(arrays):
    arrays["log_probs"][:] = torch.tensor([0.0, -3.4e38, -3.4e38])


def unnormalised(arrays):
    arrays["log_probs"] -= 1


def tiny_variance(arrays):
    arrays["noise_var"][:], arrays["epistemic_var"][:] = 1e-45, 0


def no_noise(arrays):
    arrays["noise_var"][:], arrays["epistemic_var"][:] = 0, 1e-30


def huge(arrays):
    arrays["mean"][:] = 3e38


REFUSED = {False: [above, extreme, unnormalised], True: [tiny_variance, no_noise, huge]}


def test_what_finish_would_fail_on_is_refused_when_it_comes(begun):
    world, study = begun
    for alter in REFUSED[not world.kit.plan.target.classes]:
        arrays = {name: a.clone() for name, a in world.upload("Delta").arrays.items()}
        alter(arrays)
        with pytest.raises(UploadError):
            study.add(send(world, arrays))
    assert "Delta" not in study.state().uploads


def sure_and_wrong(world):
    """The furthest from the truth that is taken."""
    num_rows = len(world.kit.inputs)
    if world.kit.plan.target.classes:
        log_probs = torch.full((num_rows, 3), LOG_PROB_FLOOR)
        log_probs[:, 0] = 0
        return {"log_probs": log_probs}
    return {
        "mean": torch.full((num_rows,), 1e4),
        "epistemic_var": torch.zeros(num_rows),
        "noise_var": torch.full((num_rows,), 1.001 * VAR_FLOOR),
    }


def unsure_and_wrong(world):
    arrays = sure_and_wrong(world)
    if not world.kit.plan.target.classes:
        arrays |= {name: torch.full_like(a, 5e3) for name, a in arrays.items()}
        arrays["mean"] *= -2
    return arrays


@pytest.mark.parametrize("make", [sure_and_wrong, unsure_and_wrong])
def test_the_worst_that_is_taken_goes_through_every_step(begun, tmp_path, make):
    world, _ = begun
    study = world.begin(f"{tmp_path.name}", added=HONEST)
    counts = {sure_and_wrong: (0.0, 0.0, 0.0), unsure_and_wrong: (5e-324, 1e-310, 0.0)}[make]
    rows = counts if world.kit.plan.target.classes else None
    assert study.add(send(world, make(world), num_rows=10**9, class_rows=rows))
    _, result = study.finish()
    assert study.result(1) == result
    assert status_of(study).results[0].nll == result.student.scores.metrics["nll"].value
    assert study.verify() == []
    (delta,) = (site for site in result.sites if site.site == "Delta")
    assert math.isfinite(delta.alone.metrics["nll"].high)


def test_if_intake_were_blind_finish_would_go_on_without_the_site_and_name_it(begun, monkeypatch):
    world, _ = begun
    study = world.begin("blind")
    monkeypatch.setattr(Predictions, "check", lambda *_: None)
    arrays = {name: a.clone() for name, a in world.upload("Delta").arrays.items()}
    REFUSED[not world.kit.plan.target.classes][0](arrays)
    for path in (world.file("Alpha"), world.file("Beta"), send(world, arrays)):
        assert study.add(path)
    made, result = study.finish()
    assert made.screened == ("Delta",)
    (delta,) = (site for site in result.sites if site.left_out)
    assert [finding.kind for finding in delta.findings] == ["unusable"]
    assert "Delta" in (study.result_folder(1) / "report.html").read_text()
    assert study.verify(rebuild=True) == []
    study.withdraw("Delta")
    _, without = study.finish()
    assert [site.site for site in without.sites] == ["Alpha", "Beta"]
    assert without.student == result.student
    study.withdraw("Alpha")
    with pytest.raises(StudyError, match="quorum"):
        study.finish()
