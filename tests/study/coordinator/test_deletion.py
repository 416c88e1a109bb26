"""Uploads whose time is over: their bytes go, digests and results stay; the site has a receipt."""

from __future__ import annotations

import datetime
import json

import pytest

from predbayes.errors import StudyError
from predbayes_study.coordinator.status import status_of
from predbayes_study.site.witness import verify_files
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


KEY = CoordinatorKey.generate()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = make_world(tmp_path_factory.mktemp("world"), method="mixture", coordinator=KEY)
    study = world.begin(added=SITES[:3])
    study.finish()
    return world, study


@pytest.fixture(scope="module")
def deleted(world):
    """The same study without the bytes of Alpha's upload, and Alpha's receipt of that."""
    world, study = world
    return study, study.delete("Alpha")


class TestCoordinator:
    def test_the_bytes_go_and_all_else_stays(self, world, deleted):
        study, _ = deleted
        assert len([*study.folder.glob("uploads/*")]) == 2
        assert study.verify() == []
        assert study.state().uploads.keys() == set(SITES[:3])
        assert study.finish()[0].number == 1  # still the result of what came
        (site,) = [s for s in status_of(study).sites if s.site == "Alpha"]
        assert site.state == "deleted"

    def test_the_same_file_does_not_bring_them_back(self, world, deleted):
        study, _ = deleted
        assert study.add(world[0].file("Alpha")) is None
        assert len([*study.folder.glob("uploads/*")]) == 2

    def test_no_new_result_is_made_of_what_is_gone(self, world, deleted):
        study, _ = deleted
        assert "were deleted" in study.verify(rebuild=True)[0]
        with pytest.raises(StudyError, match="the upload of Alpha is deleted"):
            study.finish(leave_out=["Beta"])

    def test_the_receipt_is_signed_and_names_what_is_gone_and_what_is_not(self, world, deleted):
        study, receipt = deleted
        content, signature = receipt.splitlines()
        assert KEY.public.signing.verifies("deletion", content, signature.decode())
        said = json.loads(content)
        assert list(said["removed"]) == [study.state().uploads["Alpha"].digest]
        assert any("backups" in line for line in said["remains"])
        assert json.loads(study.delete("Alpha").splitlines()[0])["removed"] == said["removed"]


class TestSite:
    def test_it_verifies_the_receipt_with_its_own_copy(self, world, deleted, tmp_path):
        world, (study, receipt) = world[0], deleted
        (tmp_path / "Alpha.deletion").write_bytes(receipt)
        paths = [study.folder / "kit", tmp_path / "Alpha.deletion"]
        assert verify_files([*paths, world.signed("Alpha")]).problems == ()
        assert verify_files([*paths, world.signed("Beta")]).problems
        (tmp_path / "Alpha.deletion").write_bytes(receipt.replace(b'"Alpha"', b'"Alphb"'))
        assert "was altered" in verify_files(paths).problems[0]


def test_status_tells_what_is_due(tmp_path, monkeypatch):
    world = make_world(tmp_path, rules="retention_days = 30")
    study = world.begin()
    study.add(world.file("Alpha"))
    assert status_of(study).due == ()

    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=31)
    monkeypatch.setattr("predbayes_study.coordinator.status.now", later.isoformat)
    assert status_of(study).due == ("Alpha",)
    study.delete("Alpha")  # unsigned: the plan names no key
    assert status_of(study).due == ()
    assert study.verify() == []
