"""A study of many sites: many steps in one command, receipts, and what a command costs."""

from __future__ import annotations

import json
import shutil

import pytest

import predbayes_study.coordinator.step as step_module
from predbayes.errors import StudyError
from predbayes_study.coordinator.state import State
from predbayes_study.coordinator.study import Study
from predbayes_study.site.witness import verify_files
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import PublicKey
from predbayes_study.trust.statement import Receipt, Signed
from tests.study.world import SITES, make_world

KEY = CoordinatorKey.generate()


def replayed(study: Study) -> State:
    return State.of(study.ledger.read())


def public(number: int) -> PublicKey:
    """A key that nobody has."""
    return PublicKey(f"{number + 1000:064x}")


@pytest.fixture(scope="module", params=[None, KEY], ids=["no key", "key"])
def world(request, tmp_path_factory):
    return make_world(
        tmp_path_factory.mktemp("world"),
        coordinator=request.param,
        upload="" if request.param is None else "encrypt = false",
    )


@pytest.fixture
def study(world, tmp_path):
    return world.begin(f"study {tmp_path.name}", ())


@pytest.fixture
def files(world, study):
    study.admit_all({site: world.key(site).public for site in SITES})
    return [world.file(site) for site in SITES]


class TestMany:
    def test_each_step_is_an_entry_and_the_state_is_that_of_a_replay(self, study, files):
        list(study.add_all(files[:3]))
        steps = [entry.step for entry in study.ledger.read()]
        assert steps == ["init", *["admit"] * 5, *["add"] * 3]
        with step_module.begin_step(study) as step:
            step.withdraw("Beta")
            step.admit("Zeta", public(1), 50)
            step.delete("Alpha")
            assert step.state == replayed(study)
        assert study.verify() == []

    def test_refusals_are_told_in_their_place(self, study, files, tmp_path):
        (tmp_path / "x.safetensors").write_bytes(b"no")
        answers = list(study.add_all([files[0], tmp_path / "x.safetensors", files[0], files[1]]))
        assert [type(answer).__name__ for answer in answers] == [
            "AcceptedUpload", "UploadError", "NoneType", "AcceptedUpload",
        ]  # fmt: skip
        lines = map(json.loads, (study.folder / "audit.jsonl").read_text().splitlines())
        assert [line["outcome"] for line in lines][-4:] == ["done", "refused", "done", "done"]
        assert study.verify() == []

    def test_what_is_told_is_in_the_ledger(self, study, files):
        for answer in study.add_all(files[:3]):
            assert answer.site in replayed(study).uploads

    def test_what_fails_on_the_way_is_as_before(self, study, files):
        def paths():
            yield from files[:2]
            raise KeyboardInterrupt

        before = study.ledger.path.read_bytes()
        with pytest.raises(KeyboardInterrupt):
            list(study.add_all(paths()))
        assert study.ledger.path.read_bytes() == before
        assert b'"act":"add"' not in (study.folder / "audit.jsonl").read_bytes()
        study.add(files[0])
        assert study.verify() == []

    def test_what_a_killed_process_left_is_cleared_away(self, study, files):
        list(study.add_all(files[:2]))
        uploads = study.folder / "uploads"
        (uploads / f"{'0' * 64}.safetensors").write_bytes(b"left")
        (uploads / ".partial-upload").write_bytes(b"left")
        study.add(files[2])
        assert len(list(uploads.iterdir())) == 3
        assert study.verify() == []


@pytest.mark.parametrize("world", [KEY], indirect=True, ids=["key"])
class TestReceipt:
    @pytest.fixture
    def receipt(self, study, files, tmp_path):
        """The path of Beta's receipt, after the uploads of others."""
        list(study.add_all(files[:3]))
        (tmp_path / "Beta.receipt").write_bytes(study.receipt("Beta"))
        return tmp_path / "Beta.receipt"

    def test_it_has_the_entry_of_its_upload_and_nothing_of_other_sites(self, study, files, receipt):
        found = verify_files([receipt, files[1]], KEY.public)
        assert found.problems == ()
        (told,) = found.statements
        entry = study.ledger.entry(8)
        assert told.heads == {8: entry.digest, 9: study.state().last}
        assert study.verify(contains=told.heads.values()) == []
        assert b"Gamma" not in receipt.read_bytes()

    def test_an_entry_of_something_else_proves_nothing(self, study, receipt):
        told = Signed.read(receipt, Receipt).checked(KEY.public.signing)
        assert told.proves_upload()
        changes = [
            {"upload": study.state().uploads["Alpha"].digest},
            {"upload": None},
            {"site": "Alpha"},
            {"number": 7},
            {"number": 8},  # of which the head is another
            {"entry": ""},
            {"entry": "[]"},
            {"entry": told.entry.replace('"step":"add"', '"step":"evaluate"')},
            {"entry": told.entry.replace('"number":8', '"number":1e999')},
        ]
        for change in changes:
            false = told.model_copy(update=change)
            assert not false.proves_upload(), change
            receipt.write_bytes(Signed.of(false, KEY.signing).file())
            assert "does not prove" in verify_files([receipt], KEY.public).problems[0]

    def test_an_entry_that_the_ledger_lacks_is_found_by_its_digest(self, study, receipt):
        told = Signed.read(receipt, Receipt).checked(KEY.public.signing)
        invented = told.entry.replace('"num_rows":104', '"num_rows":109')
        false = told.model_copy(update={"entry": invented})
        assert false.proves_upload()
        assert study.verify(contains=false.heads.values()) != []
        receipt.with_name("Beta-2.receipt").write_bytes(Signed.of(false, KEY.signing).file())
        both = verify_files([receipt, receipt.with_name("Beta-2.receipt")], KEY.public)
        assert any("two ledgers" in problem for problem in both.problems)


class Counted(dict):
    """A mapping that counts what is asked of it one by one, and as a whole."""

    looked = 0

    def __getitem__(self, key):
        Counted.looked += 1
        return super().__getitem__(key)

    def __iter__(self):
        Counted.looked += len(self)
        return super().__iter__()

    def items(self):
        Counted.looked += len(self)
        return super().items()

    def values(self):
        Counted.looked += len(self)
        return super().values()


def test_admitting_a_site_looks_at_no_other(study):
    """So many sites are admitted in a time that is linear in their number."""
    study.admit_all({f"site {n}": public(n) for n in range(3000)})
    with step_module.begin_step(study) as step:
        for name in ("keys", "owners", "names", "uploads", "gone", "retired", "spent"):
            setattr(step.state, name, Counted(getattr(step.state, name)))
        Counted.looked = 0
        assert step.admit("one more", public(5000))
        assert not step.admit("site 7", public(7))
        with pytest.raises(StudyError, match="too like site 8"):
            step.admit("SITE 8", public(5001))
    assert Counted.looked < 20


def test_status_tells_of_many_sites_in_few_lines(study, capsys):
    from predbayes_study.cli.study import status

    study.admit_all({f"site {n:04}": public(n) for n in range(1500)})
    status(study.folder)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 60
    assert "1,500 of 1,500 sites are awaited, the first 40 shown; --all shows every site" in lines
    status(study.folder, everything=True)
    assert len(capsys.readouterr().out.splitlines()) > 1500
    status(study.folder, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (len(found["sites"]), found["num_sites"], found["num_awaited"]) == (1500, 1500, 1500)


def test_folders_of_keys_and_uploads_are_one_command_each(world, study, tmp_path, capsys):
    from predbayes_study.cli.study import add, admit_all

    for site in SITES:
        world.key(site).public.save(tmp_path / f"{site}.pub", site)
    admit_all([tmp_path], study.folder)
    assert "5 of 5 sites are new" in capsys.readouterr().out
    for site in SITES:
        shutil.copy(world.file(site), tmp_path)
    add([str(tmp_path)], study.folder)
    assert set(study.state().uploads) == set(SITES)
    assert [entry.step for entry in study.ledger.read()] == [
        "init", *["admit"] * 5, *["add"] * 5
    ]  # fmt: skip
    (tmp_path / "Alpha.pub").rename(tmp_path / "Zeta.pub")
    with pytest.raises(StudyError, match="1 key refused"):
        admit_all([tmp_path], study.folder)
    assert "says that it is the key of Alpha" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(StudyError, match="has no file that ends in"):
        add([str(tmp_path / "empty")], study.folder)
