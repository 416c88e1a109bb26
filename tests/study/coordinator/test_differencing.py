"""Before a result is made it is said from which earlier ones it differs by one site."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from predbayes.errors import StudyError
from predbayes.seeding import generator
from predbayes_study.cli.app import app
from predbayes_study.coordinator.differencing import told_apart
from predbayes_study.payloads.details import save_signed
from predbayes_study.result.evaluation import evaluation_upload
from predbayes_study.result.model import CalibratedModel
from tests.study.coordinator.test_poisoning import BAD, overconfident_and_wrong
from tests.study.extras.survey.test_in_study import survey
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("differencing"), method="mixture")


@pytest.fixture
def study(world, tmp_path):
    """With a result of all sites but the last."""
    found = world.begin(tmp_path / "study", added=SITES[:-1])
    found.finish()
    return found


def test_nothing_is_said_of_a_first_result_or_of_the_same_again(world, study, tmp_path):
    fresh = world.begin(tmp_path / "fresh")
    fresh.add(world.file(SITES[0]))
    assert fresh.told_apart() == []
    assert study.told_apart() == []


def test_a_late_site_is_told_apart(world, study):
    study.add(world.file(SITES[-1]))
    (line,) = study.told_apart()
    assert line.startswith(f"this result and result 1 differ by {SITES[-1]} alone")


def test_a_site_that_withdrew_or_is_left_out_is_told_apart(study):
    (line,) = study.told_apart([SITES[0]])
    assert f"differ by {SITES[0]} alone" in line
    study.withdraw(SITES[1])
    (line,) = study.told_apart()
    assert f"differ by {SITES[1]} alone" in line


def test_a_plan_may_forbid_it_and_it_is_said_once(tmp_path):
    world = make_world(tmp_path / "forbids", rules='differences = "forbid"')
    found = world.begin(tmp_path / "study", added=SITES[:-2])
    found.finish()
    found.add(world.file(SITES[-2]))
    with pytest.raises(StudyError, match=r"rules\.differences forbids it"):
        found.finish()
    assert found.told_apart() == []
    said = CliRunner().invoke(app, ["study", "finish", "--study", str(found.folder)])
    assert "differ by" not in said.output
    assert str(said.exception).count("differ by") == 1
    found.add(world.file(SITES[-1]))
    assert found.finish()[0].number == 2


@pytest.mark.slow("two results with screening")
def test_whom_screening_leaves_out_is_in_no_result(tmp_path):
    world = make_world(tmp_path, screening="leave-out", rules='differences = "forbid"')
    found = world.begin("study", added=SITES[:4])
    found.finish()
    found.add(world.file(BAD, overconfident_and_wrong(world)))
    recorded, result = found.finish()  # of the same sites, whatever came in
    assert (recorded.screened, recorded.out, result.out) == ((BAD,), {BAD}, {BAD})
    assert found.state().results == [*found.state().results[:1], recorded]
    assert told_apart(found.state(), result.out) == []


def test_a_site_that_left_is_told_apart_though_a_bad_one_came(tmp_path):
    world = make_world(tmp_path, screening="leave-out", rules='differences = "forbid"')
    found = world.begin("study", added=SITES[:4])
    found.finish()
    found.withdraw(SITES[3])
    found.add(world.file(BAD, overconfident_and_wrong(world)))
    assert told_apart(found.state(), ()) == []  # by their uploads two sites differ
    with pytest.raises(StudyError, match=f"differ by {SITES[3]} alone"):
        found.finish()
    assert len(found.state().results) == 1


def evaluation(world, found, recorded, site, num_rows):
    rng = generator(0, "evaluation", site)
    inputs = world.kit.inputs[torch.randint(len(world.kit.inputs), (num_rows,), generator=rng)]
    model = CalibratedModel.load(found.result_folder(recorded.number) / "model")
    targets = torch.randint(3, (num_rows,), generator=rng)
    said = model.predictive(inputs)
    made = evaluation_upload(found.plan, site, said, targets, model.weights_digest(), inputs=inputs)
    path = world.root / f"{site}-evaluation.safetensors"
    save_signed(made, path, world.key(site))
    return path


@pytest.mark.parametrize("rule", ["forbid", "say"])
@pytest.mark.parametrize("kind", ["evaluation", "survey"])
def test_nor_do_two_public_pages_tell_what_one_site_sent_beside_its_upload(tmp_path, kind, rule):
    world = make_world(tmp_path, method="mixture", rules=f'differences = "{rule}"')
    found = world.begin("study", added=SITES)
    first, _ = found.finish()

    def shown(**rows):
        """Whether the public pages of the next result have the figures, with files of these."""
        for site, num_rows in rows.items():
            if kind == "evaluation":
                found.add(evaluation(world, found, first, site, num_rows))
            else:
                found.add(survey(world, site, num_rows=num_rows))
        recorded, result = found.finish()
        assert result.at_sites or result.extras  # the coordinator's own report has them
        folder = found.result_folder(recorded.number)
        text = (folder / "report-public.html").read_text()
        if kind == "survey":
            return "Table 1" in text
        return f"{result.at_sites.pooled.num_rows:,}</td>" in text

    always = rule == "say"
    assert not shown(Alpha=60, Beta=70)  # of two
    assert shown(Gamma=80)
    assert shown(Delta=95) == always  # another one than those three
    assert shown(Epsilon=115) == always  # another two
    assert shown(Alpha=120)  # another three
    assert shown(Beta=130) == always
    assert found.verify(rebuild=True) == []
