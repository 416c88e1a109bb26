"""A study: its steps, what they refuse, and that the result is a function of the set of files."""

import json
from dataclasses import asdict, replace

import pytest

from predbayes.errors import StudyError, UploadError
from predbayes_study.coordinator.status import status_of
from predbayes_study.payloads.details import save_signed
from predbayes_study.store.files import locked
from predbayes_study.trust.signing import SigningKey
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), method="mixture")


@pytest.fixture
def study(world, request):
    return world.begin(request.node.name[:60].replace("[", "-").replace("]", ""))


def weights(study, number):
    return (study.result_folder(number) / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def outcomes(world):
    """Three sites, in the order of their names."""
    study = world.begin("straight", added=SITES[:3])
    recorded, _ = study.finish()
    return recorded.outcome, weights(study, 1)


class TestFunctionOfTheSet:
    """The result depends on which files are in, and on nothing else."""

    def test_any_order_of_adding_gives_the_same_bits(self, world, outcomes):
        study = world.begin("order", added=(SITES[2], SITES[0], SITES[1]))
        recorded, _ = study.finish()
        assert (recorded.outcome, weights(study, 1)) == outcomes

    def test_withdrawal_gives_the_bits_of_the_study_without_the_site(self, world, outcomes):
        study = world.begin("withdrawn", added=SITES[3::-1])
        with_four, _ = study.finish()
        study.withdraw(SITES[3])
        without, _ = study.finish()
        assert with_four.outcome != outcomes[0]
        assert (without.outcome, weights(study, 2)) == outcomes


class TestSteps:
    def test_a_second_upload_of_a_site_is_refused(self, world, study):
        study.add(world.file("Alpha"))
        other = world.predictions("Alpha", noise=2.0)
        with pytest.raises(UploadError, match="withdraw it first"):
            study.add(world.file("Alpha", other))

    def test_two_processes_do_not_work_on_one_study(self, world, study):
        with locked(study.folder), pytest.raises(StudyError, match="another command is at work"):
            study.add(world.file("Alpha"))


class TestWithdrawal:
    def test_bytes_go_and_the_digest_stays(self, world, study):
        accepted = study.add(world.file("Alpha"))
        assert study.add(world.file("Alpha")) is None
        digest = study.withdraw("Alpha")
        assert digest == accepted.digest
        assert not list((study.folder / "uploads").iterdir())
        assert study.ledger.entries()[-1].data["digest"] == digest
        assert study.verify() == []

    def test_a_withdrawn_upload_cannot_be_put_back(self, world, study):
        path = world.file("Alpha")
        study.add(path)
        study.withdraw("Alpha")
        with pytest.raises(UploadError, match="no admitted site 'Alpha'"):
            study.add(path)
        with pytest.raises(StudyError, match="needs a new key"):
            study.admit("Alpha", world.key("Alpha").public)
        new_key = SigningKey.generate()
        study.admit("Alpha", new_key.public)
        with pytest.raises(UploadError, match="not signed with the key"):
            study.add(path)
        save_signed(world.upload("Alpha"), path, new_key)
        assert study.add(path) is not None

    def test_withdrawing_again_says_the_same(self, world, study):
        study.add(world.file("Alpha"))
        assert study.withdraw("Alpha") == study.withdraw("Alpha")
        with pytest.raises(StudyError, match="no upload of a site 'Zeta'"):
            study.withdraw("Zeta")


class TestKeys:
    def test_admitting_again_replaces_the_key(self, world, study):
        path = world.root / "rotated.safetensors"
        new_key = SigningKey.generate()
        assert study.admit("Alpha", new_key.public)
        assert not study.admit("Alpha", new_key.public)
        with pytest.raises(UploadError, match="not signed with the key"):
            study.add(world.file("Alpha"))
        save_signed(world.upload("Alpha"), path, new_key)
        assert study.add(path) is not None

    def test_two_sites_cannot_have_one_key(self, world, study):
        study.add(world.file("Alpha"))
        with pytest.raises(StudyError, match="the key of Alpha"):
            study.admit("Zeta", world.key("Alpha").public)

    def test_a_key_under_a_mistyped_name_moves_to_the_right_one(self, world):
        study = world.begin("mistyped", sites=())
        key = world.key("Alpha").public
        for wrong in ("Alhpa", "ALPHA"):
            study.admit(wrong, key, rows=105)
        assert study.admit("Alpha", key)
        assert study.state().keys == {"Alpha": key.hex}
        assert study.state().agreed == {}
        assert study.add(world.file("Alpha")) is not None
        assert not study.verify()

    def test_a_key_that_was_replaced_stays_so_for_its_site(self, world):
        study = world.begin("replaced", sites=("Alpha",))
        study.admit("Alpha", SigningKey.generate().public)
        with pytest.raises(StudyError, match="Alpha needs a new key"):
            study.admit("Alpha", world.key("Alpha").public)

    def test_a_key_of_which_something_was_in_moves_nowhere(self, world):
        study = world.begin("moved", sites=("Alpha",))
        study.add(world.file("Alpha"))
        study.withdraw("Alpha")
        with pytest.raises(StudyError, match="Zeta needs a new key"):
            study.admit("Zeta", world.key("Alpha").public)


class TestAgreedRows:
    """The site's upload states 105 rows."""

    @pytest.mark.parametrize(
        ("agreed", "taken"), [(96, True), (116, True), (95, False), (117, False)]
    )
    def test_an_upload_may_differ_by_a_tenth(self, world, study, agreed, taken):
        study.admit("Alpha", world.key("Alpha").public, rows=agreed)
        if taken:
            assert study.add(world.file("Alpha")).agreed_rows == agreed
        else:
            with pytest.raises(UploadError, match=f"105 rows; {agreed} were agreed"):
                study.add(world.file("Alpha"))

    def test_they_can_be_agreed_anew_with_the_same_key(self, world, study):
        key = world.key("Alpha").public
        assert study.admit("Alpha", key, rows=50)
        assert not study.admit("Alpha", key, rows=50)
        assert not study.admit("Alpha", key)  # nothing new is agreed
        assert study.admit("Alpha", key, rows=105)
        assert study.add(world.file("Alpha")).agreed_rows == 105

    def test_not_once_the_upload_is_in(self, world, study):
        key = world.key("Alpha").public
        study.add(world.file("Alpha"))
        with pytest.raises(StudyError, match=r"Alpha is in, with 105 rows; .* withdraw"):
            study.admit("Alpha", key, rows=105)

    def test_a_new_key_keeps_what_was_agreed_and_a_withdrawal_ends_it(self, world, study):
        study.admit("Alpha", world.key("Alpha").public, rows=105)
        study.admit("Alpha", SigningKey.generate().public)
        assert study.state().agreed == {"Alpha": 105}
        study.add(world.file("Beta"))
        study.withdraw("Beta")
        assert "Beta" not in study.state().agreed

    @pytest.mark.parametrize("rows", [0, -1, 10**9 + 1])
    def test_they_are_a_number_of_rows(self, world, study, rows):
        with pytest.raises(StudyError, match="agree on 1 to"):
            study.admit("Alpha", world.key("Alpha").public, rows=rows)


class TestVerify:
    def test_a_result_that_the_files_do_not_give_is_found(self, world):
        """An insider who writes the ledger anew, with a result of other uploads."""
        honest, forged = world.begin("honest"), world.begin("forged")
        for site in SITES[:2]:
            honest.add(world.file(site))
            forged.add(world.file(site, world.predictions(site, noise=3.0)))
        honest.finish()
        forged.finish()
        (one,), (other,) = (s.state().results for s in (honest, forged))
        content = honest.ledger.path.read_text().splitlines(keepends=True)
        entry = honest.ledger.entries()[-1]
        honest.ledger.path.write_text("".join(content[:-1]))
        data = dict(entry.data) | {"outcome": other.outcome}
        honest.ledger.append("finish", data, at=entry.at)
        assert honest.verify() == []
        assert honest.verify(rebuild=True) == ["rebuilding gives another result than number 1"]
        assert one.outcome != other.outcome

    def test_an_upload_altered_since_is_not_folded(self, world, study):
        for site in SITES[:2]:
            study.add(world.file(site))
        path = next((study.folder / "uploads").iterdir())
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
        with pytest.raises(StudyError, match="was altered"):
            study.finish()


class TestAudit:
    def test_every_step_and_refusal_is_a_line(self, world, study):
        study.add(world.file("Alpha"))
        study.add(world.file("Alpha"))
        (odd := world.root / "odd\n{}.safetensors").write_bytes(b"no upload")
        with pytest.raises(UploadError):
            study.add(odd)
        study.withdraw("Alpha")
        with pytest.raises(StudyError):
            study.finish()
        lines = [json.loads(line) for line in study.audit.path.read_text().splitlines()]
        told = [(line["act"], line["outcome"]) for line in lines[6:]]  # init, and five admitted
        assert told == [
            ("add", "done"),
            ("add", "done"),
            ("add", "refused"),
            ("withdraw", "done"),
            ("finish", "begun"),
            ("finish", "refused"),
        ]
        assert lines[6]["what"]["upload"] == lines[9]["what"]["upload"]
        assert lines[7]["what"]["again"] is True
        assert lines[11]["what"]["reason"] == "sites that are in: 0; the plan's quorum is 2"
        assert study.verify() == []


class TestStatus:
    def test_it_says_who_is_in_and_what_is_next(self, world, study):
        study.add(world.file("Alpha"))
        found = status_of(study)
        assert {site.site: site.state for site in found.sites}["Alpha"] == "in"
        assert found.next.startswith("1 more site for")
        study.add(world.file("Beta"))
        assert status_of(study).next == "predbayes study finish"
        study.finish()
        found = status_of(study)
        assert found.next == "results/1/report.html"
        assert found.results[0].sites == len(study.result(1).sites) == 2
        assert study.result(1, sites=False) == study.result(1).model_copy(update={"sites": ()})
        study.withdraw("Alpha")
        found = status_of(study)
        assert {site.site: site.state for site in found.sites}["Alpha"] == "withdrawn"
        assert not found.results[0].current
        json.dumps(asdict(found))


class TestKinds:
    def test_a_regression_comes_back_in_its_unit(self, tmp_path):
        world = make_world(tmp_path, regression=True, own="linear-regression")
        study = world.begin(added=SITES[:3])
        _, result = study.finish()
        scores = result.pooled
        # Noise of 3 cm was drawn; in standard units it is about a third.
        assert 2 < scores.metrics["rmse"].value < 6
        assert 8 < scores.metrics["width_95"].value < 30
        assert result.coverage is not None
        assert sum(result.coverage.pit) == result.num_scored == 40

    def test_a_regression_without_labels_claims_nothing(self, tmp_path):
        world = make_world(tmp_path, regression=True, labelled=0, evaluate=0)
        study = world.begin(added=SITES[:3])
        _, result = study.finish()
        assert (result.num_scored, result.scored_on) == (0, "nothing")
        assert result.coverage is None
        assert not result.can_judge

    def test_without_evaluate_rows_scores_are_cross_fitted(self, tmp_path):
        world = make_world(tmp_path, evaluate=0)
        study = world.begin(added=SITES[:2])
        _, result = study.finish()
        assert (result.scored_on, result.num_scored) == ("cross-fitted", 60)
        assert study.verify(rebuild=True) == []


def test_status_names_who_states_far_more_rows(tmp_path):
    world = make_world(tmp_path, method="mixture")
    study = world.begin(added=SITES[:-1])
    assert status_of(study).doubts == []
    sent = world.upload(SITES[-1])
    loud = sent.info.model_copy(update={"num_rows": 10**9, "class_rows": None})
    path = tmp_path / "loud.safetensors"
    save_signed(replace(sent, info=loud), path, world.key(SITES[-1]))
    study.add(path)
    (doubt,) = status_of(study).doubts
    assert SITES[-1] in doubt
    assert "1,000,000,000" in doubt
