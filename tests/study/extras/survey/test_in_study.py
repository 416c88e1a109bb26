"""Surveys in a study: taken in as files of sites are, and shown in the report as Table 1."""

import shutil
from pathlib import Path

import pytest

from predbayes.errors import UploadError
from predbayes_study.coordinator.study import Study
from predbayes_study.extras.records.export import export
from predbayes_study.extras.survey.tableone import TableOne
from predbayes_study.trust.signing import SigningKey
from tests.study.invented import survey_of
from tests.study.world import SITES, World, _frame, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


NUM_ROWS = 200


def survey(world: World, site: str, *, num_rows: int = NUM_ROWS, key: SigningKey | None = None):
    """A site's survey as a file, signed with its key or with another one."""
    key = world.key(site) if key is None else key
    rows = _frame(num_rows, num_rows, regression=False)
    told = survey_of(rows, world.root, site, of=world.kit.plan, key=key, seen=world.seen)
    path = world.root / f"{site}.survey"
    path.write_bytes(told.file(key))
    return path


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path, method="mixture")


@pytest.fixture
def study(world):
    begun = world.begin()
    for site in SITES[:3]:
        begun.add(world.file(site))
        begun.add(survey(world, site))
    return begun


def stored(study: Study) -> set[str]:
    return {path.name for path in (study.folder / "uploads").glob("*.survey")}


class TestTable:
    def test_members_see_every_site_and_the_public_all_together(self, study):
        recorded, result = study.finish()
        assert [site.name for site in TableOne.of(result).sites] == sorted(SITES[:3])
        assert TableOne.of(result).total.rows == 3 * NUM_ROWS
        folder = study.result_folder(recorded.number)
        members, public = (
            (folder / name).read_text() for name in ("report.html", "report-public.html")
        )
        assert "(Table 1)" in members
        assert "n ≥ 200" in members
        assert "(Table 1)" in public
        assert "n ≥ 600" in public
        assert "n ≥ 200" not in public
        assert not any(site in public for site in SITES)
        assert study.verify(rebuild=True) == []

    def test_one_that_comes_later_gives_a_new_report_of_the_same_model(self, world):
        begun = world.begin(added=SITES[:3])
        first, _ = begun.finish()
        assert begun.finish()[0] == first
        begun.add(survey(world, "Alpha"))
        second, result = begun.finish()
        assert (second.number, second.outcome) == (2, first.outcome)
        assert second.model == first.model
        assert len(TableOne.of(result).sites) == 1
        assert "(Table 1)" not in (begun.result_folder(2) / "report-public.html").read_text()

    def test_a_site_that_is_not_in_the_result_is_not_in_the_table(self, study, world):
        study.add(survey(world, "Delta"))  # which sent no upload
        _, result = study.finish(leave_out=["Beta"])
        assert [site.name for site in TableOne.of(result).sites] == ["Alpha", "Gamma"]


class TestIntake:
    def test_the_same_again_is_in_already_and_a_newer_one_takes_its_place(self, study, world):
        before = stored(study)
        assert study.add(survey(world, "Alpha")) is None
        old = (world.root / "Alpha.survey").read_bytes()
        accepted = study.add(survey(world, "Alpha", num_rows=150))
        assert accepted.rows_in_words == "a survey of at least 150 rows"
        assert len(stored(study)) == len(before) == 3
        (world.root / "Alpha.survey").write_bytes(old)
        with pytest.raises(UploadError, match="newer survey"):
            study.add(world.root / "Alpha.survey")
        assert study.verify() == []

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (
                lambda w: survey(w, "Delta", key=SigningKey.generate()),
                "that Delta was admitted",
            ),
            (lambda w: survey(w, "Zeta"), "Zeta"),
            (lambda w: _altered(survey(w, "Delta")), "was altered"),
            (lambda w: _unsigned(survey(w, "Delta")), "not signed"),
        ],
    )
    def test_what_is_not_an_admitted_sites_is_refused(self, study, world, spoil, said):
        before = study.ledger.entries()
        with pytest.raises(UploadError, match=said):
            study.add(spoil(world))
        assert study.ledger.entries() == before
        assert len(stored(study)) == 3


class TestLeaving:
    def test_a_site_that_withdraws_takes_its_survey_along(self, study):
        study.withdraw("Alpha")
        assert len(stored(study)) == 2
        _, result = study.finish()
        assert [site.name for site in TableOne.of(result).sites] == ["Beta", "Gamma"]
        assert study.verify() == []

    def test_deleting_deletes_it_too(self, study):
        study.finish()
        study.delete("Alpha")
        assert len(stored(study)) == 2
        assert study.verify() == []

    def test_an_export_is_without_it(self, study, tmp_path):
        study.finish()
        export(study, tmp_path / "crate.zip")
        shutil.unpack_archive(tmp_path / "crate.zip", tmp_path / "crate")
        assert not list((tmp_path / "crate").rglob("*.survey"))
        assert Study(tmp_path / "crate").verify() == []


def _altered(path: Path) -> Path:
    path.write_bytes(path.read_bytes().replace(b'"rows": 200', b'"rows": 205'))
    return path


def _unsigned(path: Path) -> Path:
    content = path.read_bytes().rstrip(b"\n").rpartition(b"\n")[0]
    path.write_bytes(content + b"\n\n")
    return path
