"""What a site checks of the coordinator's, and the heads that it remembers."""

import json
import shutil

import pytest

from predbayes.errors import PlanError, StudyError
from predbayes_study.kit.kit import Kit
from predbayes_study.payloads.details import save_signed, seen_by
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.witness import Heads, verify_files
from predbayes_study.store.ledger import Ledger
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.statement import FilesStatement, Signed
from tests.study.world import make_world

pytestmark = pytest.mark.usefixtures("quick_results")


COORDINATOR = CoordinatorKey.generate()
PUBLIC = COORDINATOR.public
KEY = PUBLIC.signing
STUDY = "bb" * 32


def statement(number, head, study=STUDY):
    place = {"plan": "aa" * 32, "study": study, "head": head * 32, "number": number}
    return FilesStatement(kind="kit", files={}, **place)


class TestHeads:
    def test_the_newest_head_of_a_study_is_remembered(self, tmp_path):
        heads = Heads(tmp_path)
        assert heads.note(statement(1, "11"), KEY) == "11" * 32
        assert heads.note(statement(9, "99"), KEY) == "99" * 32
        assert Heads(tmp_path).note(statement(1, "11"), KEY) == "99" * 32
        assert heads.note(statement(1, "22", "cc" * 32), KEY) == "22" * 32
        assert len((tmp_path / "heads.jsonl").read_text().splitlines()) == 3

    def test_two_heads_of_one_entry_are_two_ledgers(self, tmp_path):
        heads = Heads(tmp_path)
        heads.note(statement(4, "11"), KEY)
        with pytest.raises(StudyError, match="has shown two ledgers: their entries 4 differ"):
            heads.note(statement(4, "22"), KEY)

    def test_another_key_says_nothing_about_a_study(self, tmp_path):
        heads, courier = Heads(tmp_path), CoordinatorKey.generate().public.signing
        heads.note(statement(10**6, "cd"), courier)
        heads.note(statement(1, "ab"), courier)
        assert heads.note(statement(1, "11"), KEY) == "11" * 32
        assert heads.note(statement(2, "22"), KEY) == "22" * 32

    def test_an_altered_file_is_named(self, tmp_path):
        (tmp_path / "heads.jsonl").write_text("{}\n")
        with pytest.raises(StudyError, match=r"^entry 1 of heads\.jsonl was altered$"):
            Heads(tmp_path).note(statement(1, "11"), KEY)
        (tmp_path / "heads.jsonl").write_text("{}")
        with pytest.raises(StudyError, match=r"^the end of heads\.jsonl is not what a crash"):
            Heads(tmp_path).note(statement(1, "11"), KEY)

    @pytest.mark.parametrize(
        "forged",
        [
            {"study": STUDY, "head": "11" * 32, "key": KEY.hex},
            {"study": STUDY, "head": "11" * 32, "key": KEY.hex, "number": "1"},
            {"study": STUDY, "head": "11" * 32, "key": KEY.hex, "number": -1},
            {"study": STUDY, "number": 1, "key": KEY.hex},
            {"study": STUDY, "head": 5, "number": 1, "key": KEY.hex},
            {"number": 1},
        ],
    )
    def test_a_forged_entry_is_one_line(self, tmp_path, forged):
        Ledger(tmp_path / "heads.jsonl").append("saw", forged)
        with pytest.raises(StudyError, match=r"^entry 1 of heads\.jsonl is not [^\n]*$"):
            Heads(tmp_path).note(statement(1, "11"), KEY)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), method="mixture", coordinator=COORDINATOR)


@pytest.fixture(scope="module")
def study(world):
    study = world.begin(sites=("Alpha", "Beta"), added=("Alpha", "Beta"))
    study.finish()
    return study


@pytest.fixture
def held(study, world, tmp_path):
    """What Alpha has."""
    shutil.copytree(study.folder / "kit", tmp_path / "kit")
    shutil.copytree(study.result_folder(1), tmp_path / "result")
    shutil.copytree(study.result_folder(1) / "model", tmp_path / "model")
    shutil.copyfile(world.signed("Alpha"), tmp_path / "Alpha.safetensors")
    (tmp_path / "Alpha.receipt").write_bytes(study.receipt("Alpha"))
    return tmp_path


class TestVerify:
    def test_all_that_a_site_has_is_the_coordinators(self, held, world):
        names = ("kit", "result", "model", "Alpha.receipt", "Alpha.safetensors")
        paths = [held / name for name in names]
        for key, words in ((None, ""), (PUBLIC, ""), (None, world.kit.fingerprint)):
            found = verify_files(paths, key, words)
            assert found.problems == ()
            assert found.key == PUBLIC
            kinds = [statement.kind for statement in found.statements]
            assert kinds == ["kit", "result", "model", "receipt"]

    def test_a_receipt_needs_a_key_or_a_kit(self, held):
        (problem,) = verify_files([held / "Alpha.receipt"]).problems
        assert problem == "give the kit, too, or the coordinator's key"
        assert verify_files([held / "Alpha.receipt"], PUBLIC).problems == ()

    def test_another_coordinator_is_found(self, held):
        other = CoordinatorKey.generate().public
        problems = verify_files([held / "kit", held / "Alpha.receipt"], other).problems
        assert "its plan names another coordinator's key" in problems[0]
        assert "is not signed with the coordinator's key" in problems[1]

    def test_other_words_are_found(self, held):
        (problem,) = verify_files([held / "kit"], words="babab-" * 7 + "babab").problems
        assert problem == "the plan's words are others than those given"

    def test_an_upload_without_its_receipt_is_found(self, held, world):
        paths = [held / "kit", held / "Alpha.receipt"]
        beta = world.signed("Beta")
        assert "no receipt given here is of this file" in verify_files([*paths, beta]).problems[0]
        save_signed(world.upload("Alpha"), held / "other.safetensors", world.key("Beta"))
        (problem,) = verify_files([*paths, held / "other.safetensors"]).problems
        assert "not signed with the key that the site was admitted with" in problem

    def test_of_a_sealed_file_the_copy_that_stayed_is_compared(self, held, world):
        paths = [held / "kit", held / "Alpha.receipt"]
        (problem,) = verify_files([*paths, world.file("Alpha")]).problems
        assert problem.endswith("it is sealed: give held-back.safetensors, which stayed here")
        world.upload("Alpha").save(held / "held-back.safetensors")  # not signed
        assert verify_files([*paths, held / "held-back.safetensors"]).problems == ()
        world.upload("Beta").save(held / "held-back.safetensors")
        assert verify_files([*paths, held / "held-back.safetensors"]).problems

    def test_two_ledgers_in_one_hand_are_found(self, held, study):
        """The coordinator himself signs another history."""
        true = (held / "Alpha.receipt").read_bytes().splitlines()[0]
        forged = FilesStatement(
            kind="kit", files={}, **{k: json.loads(true)[k] for k in ("plan", "study", "number")},
            head="ee" * 32,
        )  # fmt: skip
        (held / "kit" / "kit.sig").write_bytes(Signed.of(forged, COORDINATOR.signing).file())
        problems = verify_files([held / "kit", held / "Alpha.receipt"]).problems
        assert "the coordinator has shown two ledgers: keep these files" in problems

    def test_without_a_key_in_the_plan_nothing_is_signed(self, tmp_path):
        world = make_world(tmp_path)
        (problem,) = verify_files([world.kit.folder]).problems
        assert problem.endswith("nothing of the coordinator's is signed")


class TestTraining:
    def test_an_unsigned_kit_trains_nothing(self, world):
        inputs = world.kit.inputs[:40]
        with pytest.raises(PlanError, match="is not signed: ask the coordinator for the kit"):
            make_upload(world.kit, "Alpha", (inputs, (inputs[:, 0] > 0).long()))

    def test_what_a_site_sends_names_the_study(self, study):
        kit = Kit.load(study.folder / "kit")
        inputs = kit.inputs[:40]
        upload = make_upload(kit, "Alpha", (inputs, (inputs[:, 0] > 0).long()), learner="network")
        assert seen_by(upload.info) == kit.head == study.state().study
