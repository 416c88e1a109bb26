"""Attack: a file that its site withdrew is taken in by a second study of the same kit.

Before, nothing in a file said for which study of a plan it was made.
"""

from __future__ import annotations

import shutil

import pytest

from predbayes.errors import StudyError, UploadError
from predbayes_study.coordinator.study import Study
from predbayes_study.extras.survey.surveyfile import read_survey
from predbayes_study.result.signed import load_signed, signed_result
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.commands import predbayes
from tests.study.extras.survey.test_in_study import survey
from tests.study.invented import survey_of
from tests.study.world import _frame, make_world, own_table

COORDINATOR = CoordinatorKey.generate()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), coordinator=COORDINATOR)


@pytest.fixture(scope="module")
def withdrawn(world):
    study = world.begin("first")
    path = world.file("Gamma")
    study.add(path)
    study.withdraw("Gamma")
    return path


def test_a_second_study_of_the_same_kit_refuses_it(world, withdrawn):
    second = world.begin("second")
    with pytest.raises(UploadError, match="it was made for another study"):
        second.add(withdrawn)
    assert second.state().uploads == {}


def test_a_coordinator_who_takes_it_in_all_the_same_is_found_out(world, withdrawn, monkeypatch):
    third = world.begin("third")
    monkeypatch.setattr("predbayes_study.coordinator.intake.Intake._check_study", lambda *_: None)
    third.add(withdrawn)
    assert third.verify() == ["Gamma has seen another ledger than this one before it sent its file"]


def test_a_file_that_names_no_study_is_refused(world):
    study = world.begin("named")
    world.seen = ""
    with pytest.raises(UploadError, match="it names no study"):
        study.add(world.file("Alpha"))


def test_nor_does_it_take_a_survey_of_the_kit(world, monkeypatch):
    first = world.begin("first-surveyed")
    first.add(world.file("Gamma"))
    path = survey(world, "Gamma")
    first.add(path)
    assert first.verify() == []
    first.withdraw("Gamma")
    second = world.begin("second-surveyed")
    with pytest.raises(UploadError, match="it was made for another study"):
        second.add(path)
    with monkeypatch.context() as patch:
        patch.setattr("predbayes_study.coordinator.intake.Intake._check_study", lambda *_: None)
        second.add(path)
    assert second.verify() == [
        "Gamma has seen another ledger than this one before it sent its file"
    ]


@pytest.mark.parametrize("of", ["kit", "draft"])
def test_a_survey_that_names_no_study_is_of_a_draft(world, tmp_path, of):
    study, key = world.begin(f"survey-of-{of}"), world.key("Alpha")
    plan = world.kit.plan
    if of == "draft":
        plan = plan.model_copy(update={"frozen": None})
    rows = _frame(200, 200, regression=False)
    path = tmp_path / "Alpha.survey"
    path.write_bytes(survey_of(rows, tmp_path, "Alpha", of=plan, key=key).file(key))
    if of == "draft":
        study.add(path)
        assert study.verify() == []
    else:
        with pytest.raises(UploadError, match="it names no study"):
            study.add(path)


def test_the_command_names_the_study_of_a_signed_kit(world, tmp_path):
    study = world.begin("by-command")
    rows = own_table((world.root / "reference.csv").read_text())
    (tmp_path / "rows.csv").write_text(rows)
    (tmp_path / "site.toml").write_text('format = 1\nname = "Alpha"\n')
    world.key("Alpha").save(tmp_path / "Alpha.key")
    kit = study.folder / "kit"
    line = ("site", "survey", kit, "rows.csv", "--out", "Alpha.survey")
    assert predbayes(*line, cwd=tmp_path).code == 0
    once = (tmp_path / "Alpha.survey").read_bytes()
    assert predbayes("site", "verify", kit, cwd=tmp_path).code == 0
    assert predbayes(*line, cwd=tmp_path).code == 0
    assert (tmp_path / "Alpha.survey").read_bytes() == once
    assert read_survey(tmp_path / "Alpha.survey").survey.seen == world.seen
    assert world.seen in (tmp_path / "Alpha.survey.html").read_text()
    assert study.add(tmp_path / "Alpha.survey").site == "Alpha"
    assert study.verify() == []


def test_the_kit_of_a_study_begins_no_other(world, tmp_path):
    first = world.begin("once")
    with pytest.raises(StudyError, match="the kit of a study that has begun"):
        Study.init(tmp_path / "again", first.folder / "kit", world.labels_path, world.key_path)


@pytest.mark.usefixtures("quick_results")
def test_a_result_of_another_study_is_none_of_the_model_beside_it(tmp_path):
    """Both are signed, of one plan and one number; `predict --coverage` reads the result."""
    world = make_world(tmp_path / "world", method="mixture", coordinator=CoordinatorKey.generate())
    folders = []
    for number, sites in enumerate((("Alpha", "Beta"), ("Alpha", "Gamma"), ("Alpha", "Beta"))):
        study = world.begin(f"study-{number}", added=sites)
        study.finish()
        folders.append(study.result_folder(1))
    for number, folder in enumerate(folders):
        beside = tmp_path / f"beside-{number}"
        shutil.copytree(folders[0] / "model", beside / "model")
        for name in ("result.json", "result.sig"):
            shutil.copy(folder / name, beside)
        found = load_signed(beside / "model")
        if number == 0:
            assert [site.site for site in signed_result(found).sites] == ["Alpha", "Beta"]
        else:
            with pytest.raises(StudyError, match="of another study than the model beside it"):
                signed_result(found)
