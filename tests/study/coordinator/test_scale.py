"""A study of many sites: batches, checkpoints, and what a command costs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

import predbayes.study.coordinator.step as step_module
from predbayes.errors import StudyError, UploadError
from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.signing import PublicKey, SigningKey
from predbayes.exchange.statement import Receipt, read_signed, signed
from predbayes.study.coordinator.checkpoint import CHECKPOINT, checkpoint_problems, load_checkpoint
from predbayes.study.coordinator.state import State
from predbayes.study.coordinator.study import Study
from predbayes.study.site.witness import verify_files
from tests.study.world import SITES, make_world

KEY = CoordinatorKey.generate()
FIELDS = [name for name in State.__slots__ if name not in ("resumed", "since")]


def plain(state: State) -> dict:
    """A state as data, whether it is in dicts or in a database."""
    found = {name: getattr(state, name) for name in FIELDS}
    return {n: list(v.items()) if hasattr(v, "items") else v for n, v in found.items()}


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


@pytest.fixture
def often(monkeypatch):
    """A checkpoint at the end of every command."""
    monkeypatch.setattr(step_module, "MANY", 1)


class TestBatch:
    def test_it_is_one_entry_and_the_state_is_that_of_single_steps(self, world, study, files):
        list(study.add_all(files[:3]))
        assert [entry.step for entry in study.ledger.read()] == ["init", "batch", "batch"]
        assert study.verify() == []
        # The same steps, one entry each.
        *_, batch = study.ledger.read()
        single = State.of(list(study.ledger.read())[:2])
        for leaf in batch.leaves:
            single.do(leaf, batch.at)
        single.end(batch)
        assert plain(single) == plain(study.state())
        assert list(study.state().uploads) == list(SITES[:3])

    def test_one_step_alone_is_an_entry_as_it_was(self, study, files):
        study.add(files[0])
        assert list(study.add_all(files[:1])) == [None]
        assert [entry.step for entry in study.ledger.read()] == ["init", "batch", "add"]

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

    def test_a_refused_site_leaves_those_before_it_admitted(self, study):
        keys = {"Alpha": public(1), "Beta": public(2), "BETA": public(3), "Gamma": public(4)}
        with pytest.raises(StudyError, match="BETA is too like Beta"):
            study.admit_all(keys)
        assert list(study.state().keys) == ["Alpha", "Beta"]

    @pytest.mark.parametrize(
        "old", [b'"num_rows":105', b'"site":"Beta"', b'"count":3', b'"leaves":[']
    )
    def test_an_altered_leaf_is_found(self, study, files, old):
        list(study.add_all(files[:3]))
        content = study.ledger.path.read_bytes()
        place = content.rindex(old)
        other = old.replace(b"105", b"106").replace(b"Beta", b"Bota").replace(b"3", b"4")
        other = other.replace(b"leaves", b"leavez")
        study.ledger.path.write_bytes(content[:place] + other + content[place + len(old) :])
        assert study.verify() == ["entry 3 of ledger.jsonl was altered"]
        with pytest.raises(StudyError, match=r"entry 3 of ledger\.jsonl was altered"):
            study.state()

    def test_leaves_cannot_be_dropped_or_moved(self, study, files):
        list(study.add_all(files[:3]))
        *before, line = study.ledger.path.read_bytes().splitlines(keepends=True)
        found = json.loads(line)
        for leaves in (found["leaves"][:2], found["leaves"][::-1]):
            text = json.dumps(
                {**found, "leaves": leaves}, separators=(",", ":"), ensure_ascii=False
            )
            study.ledger.path.write_bytes(b"".join(before) + text.encode() + b"\n")
            assert study.verify() == ["entry 3 of ledger.jsonl was altered"]

    def test_a_result_is_no_part_of_a_batch(self, study):
        from predbayes.study.store.ledger import Entry, Leaf

        state = study.state()
        leaves = [Leaf("withdraw", {"site": "A", "digest": "0" * 64})] * 2
        with pytest.raises(StudyError, match="not as steps are"):
            state.take(Entry.of(leaves, "now", (state.num_entries, state.last)))


@pytest.mark.usefixtures("often")
class TestCheckpoint:
    def test_a_state_from_it_is_that_of_a_replay(self, study, files):
        list(study.add_all(files[:4]))
        study.withdraw("Beta")
        study.admit("Zeta", public(1), 50)
        study.delete("Alpha")
        assert study.state().resumed
        assert plain(study.state()) == plain(replayed(study))
        assert study.verify() == []

    def test_results_come_back(self, study, files):
        list(study.add_all(files[:2]))
        uploads = {site: a.digest for site, a in study.state().uploads.items()}
        told = {"uploads": uploads, "left_out": ["Alpha"], "files": {"a": "b"}, "outcome": "c"}
        with step_module.begin_step(study) as step:
            step.record("finish", {"number": 1, **told})
        state = study.state()
        assert state.resumed
        assert state.results == replayed(study).results
        assert state.current is not None
        assert checkpoint_problems(study.ledger, replayed(study)) == []

    def test_it_goes_on_from_there(self, world, study, files, monkeypatch):
        list(study.add_all(files[:2]))
        monkeypatch.setattr(step_module, "MANY", 1000)
        study.add(files[2])
        study.withdraw("Alpha")
        state = study.state()
        assert (state.resumed, state.since) == (True, 2)
        assert plain(state) == plain(replayed(study))
        with pytest.raises(UploadError, match="no admitted site"):
            study.add(files[0])
        assert study.verify() == []

    def test_it_may_be_deleted(self, study, files):
        list(study.add_all(files[:2]))
        before = plain(study.state())
        (study.folder / CHECKPOINT).unlink()
        assert not study.state().resumed
        assert plain(study.state()) == before
        study.add(files[2])
        assert study.state().resumed

    def test_a_changed_byte_anywhere_makes_it_count_for_nothing(self, study, files):
        list(study.add_all(files[:2]))
        path, before = study.folder / CHECKPOINT, plain(study.state())
        content = path.read_bytes()
        for place in [*range(0, 900, 29), *range(900, len(content), 4999), len(content) - 1]:
            altered = bytearray(content)
            altered[place] ^= 1
            path.write_bytes(altered)
            assert plain(study.state()) == before, place

    def test_a_forged_one_changes_nothing(self, world, study, files, tmp_path):
        """Somebody writes a checkpoint that is sound in itself, with a key of his own."""
        list(study.add_all(files[:2]))
        before, mine = plain(study.state()), SigningKey.generate()
        forged = study.state()
        forged.keys["Alpha"] = mine.public.hex
        step_module.save_checkpoint(study.ledger, forged, mine)
        if world.coordinator is not None:
            assert load_checkpoint(study.ledger) is None
            assert plain(study.state()) == before
        step_module.save_checkpoint(study.ledger, forged, None)
        if world.coordinator is not None:
            assert plain(study.state()) == before
            told = ".checkpoint cannot be used (it is not the coordinator's): delete it"
            assert study.verify() == [told]
            return
        # Without a key he could write a ledger as well; but a replay finds it.
        assert study.verify() == [".checkpoint is not what the ledger says: delete it"]

    def test_that_of_another_study_counts_for_nothing(self, world, study, files, tmp_path):
        list(study.add_all(files[:2]))
        other = world.begin(f"other {tmp_path.name}", SITES)
        shutil.copyfile(study.folder / CHECKPOINT, other.folder / CHECKPOINT)
        assert not other.state().resumed
        assert not other.state().uploads

    def test_an_altered_ledger_is_refused_as_without_it(self, study, files):
        list(study.add_all(files[:2]))
        content = study.ledger.path.read_bytes()
        study.ledger.path.write_bytes(content.replace(b'"num_rows":105', b'"num_rows":106'))
        with pytest.raises(StudyError, match="was altered"):
            study.add(files[2])

    def test_a_ledger_that_was_cut_is_replayed(self, study, files):
        study.add(files[0])
        lines = study.ledger.path.read_bytes().splitlines(keepends=True)
        study.ledger.path.write_bytes(b"".join(lines[:-1]))
        assert not study.state().uploads

    def test_what_a_killed_process_left_is_cleared_away(self, study, files):
        list(study.add_all(files[:2]))
        uploads = study.folder / "uploads"
        (uploads / f"{'0' * 64}.safetensors").write_bytes(b"left")
        (uploads / ".partial-mark").touch()  # that he made before he put it there
        study.add(files[2])
        assert len(list(uploads.iterdir())) == 3
        assert study.verify() == []

    def test_sites_are_still_witnesses(self, world, study, files, tmp_path):
        if world.coordinator is None:
            return
        list(study.add_all(files[:3]))
        study.add(files[3])
        content = study.receipt("Beta")
        told = json.loads(content.splitlines()[0])
        assert (told["head"], told["number"]) == (study.state().last, 4)
        assert study.verify(contains=[told["head"]]) == []
        (tmp_path / "Beta.receipt").write_bytes(content)
        found = verify_files([tmp_path / "Beta.receipt", files[1]], world.coordinator.public)
        assert found.problems == ()
        proof = found.statements[0].proof
        assert proof.head == list(study.ledger.read())[2].digest
        assert b"Gamma" not in content  # nothing of other sites
        # A step that was taken alone needs no proof.
        assert b"proof" not in study.receipt("Delta")

    def test_a_proof_of_something_else_is_none(self, world, study, files, tmp_path):
        if world.coordinator is None:
            return
        list(study.add_all(files[:3]))
        (tmp_path / "r").write_bytes(study.receipt("Beta"))
        receipt = read_signed(tmp_path / "r", Receipt, KEY.public.signing, {})
        proof, upload = receipt.proof, receipt.upload
        assert proof.proves("Beta", upload)
        assert not proof.proves("Alpha", upload)
        assert not proof.proves("Beta", "0" * 64)
        changes = [
            {"place": 0},
            {"place": 3},
            {"path": proof.path[:-1]},
            {"path": proof.path[::-1]},
            {"leaf": proof.leaf.replace('"num_rows":104', '"num_rows":109')},
            {"entry": proof.entry.replace('"root":"', '"root":"0')},
            {"entry": "[]"},
        ]
        for change in changes:
            assert not proof.model_copy(update=change).proves("Beta", upload), change
        other = proof.model_copy(update={"entry": proof.entry.replace('"count":3', '"count":4')})
        assert other.head not in study.state().heads
        false = receipt.model_copy(update={"upload": study.state().uploads["Alpha"].digest})
        (tmp_path / "Beta.receipt").write_bytes(signed(false, KEY.signing))
        found = verify_files([tmp_path / "Beta.receipt"], KEY.public)
        assert "does not prove" in found.problems[0]


def test_a_ledger_of_single_entries_is_read(world, tmp_path):
    study = world.begin(f"study {tmp_path.name}")  # admits one by one
    for site in SITES[:3]:
        study.add(world.file(site))
    steps = [entry.step for entry in study.ledger.read()]
    assert steps == ["init", *["admit"] * 5, *["add"] * 3]
    assert b"leaves" not in study.ledger.path.read_bytes()
    before = plain(study.state())
    list(study.add_all([world.file(site) for site in SITES[3:]]))
    assert study.verify() == []
    assert [entry.step for entry in study.ledger.read()][-1] == "batch"
    assert set(study.state().uploads) == set(SITES)
    assert before["keys"] == plain(study.state())["keys"]


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


def test_a_command_costs_the_same_with_many_sites(study):
    """A checkpoint is looked into, not read through: time hardly grows from 100 to 10,000 sites."""

    def seconds():
        took = []
        for number in range(5):
            began = time.process_time()
            with step_module.begin_step(study) as step:
                step.admit(f"late {number}", public(10**6 + number))
            took.append(time.process_time() - began)
        return min(took)

    study.admit_all({f"site {n}": public(n) for n in range(100)})
    few = seconds()
    study.admit_all({f"site {n}": public(n) for n in range(10_000)})
    assert study.state().resumed
    # A replay of 10,000 sites takes far longer; reading the bytes takes some of this.
    assert seconds() < 5 * few + 0.05


def test_status_tells_of_many_sites_in_few_lines(study, capsys):
    from predbayes.cli.study import status

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


def test_the_snippet_in_the_docs_checks_batches(study, files):
    page = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    code = page.partition("```python\nimport hashlib, json, pathlib")[2].partition("```")[0]
    scope: dict = {}
    exec("import hashlib, json, pathlib" + code, scope)
    list(study.add_all(files[:3]))
    assert scope["last_digest"](study.ledger.path) == study.state().last
    content = study.ledger.path.read_bytes()
    start = content.rindex(b'"leaves"')
    for place in range(start, len(content) - 160, 7):
        altered = bytearray(content)
        altered[place] ^= 1
        study.ledger.path.write_bytes(altered)
        with pytest.raises(ValueError):  # noqa: PT011  # also of what is no JSON any more
            scope["last_digest"](study.ledger.path)


def test_folders_of_keys_and_uploads_are_one_command_each(world, study, tmp_path, capsys):
    from predbayes.cli.study import add, admit_all

    for site in SITES:
        world.key(site).public.save(tmp_path / f"{site}.pub", site)
    admit_all([tmp_path], study.folder)
    assert "5 of 5 sites are new" in capsys.readouterr().out
    for site in SITES:
        shutil.copy(world.file(site), tmp_path)
    add([str(tmp_path)], study.folder)
    assert set(study.state().uploads) == set(SITES)
    assert [entry.step for entry in study.ledger.read()] == ["init", "batch", "batch"]
    (tmp_path / "Alpha.pub").rename(tmp_path / "Zeta.pub")
    with pytest.raises(StudyError, match="says that it is the key of Alpha"):
        admit_all([tmp_path], study.folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StudyError, match="has no file that ends in"):
        add([str(tmp_path / "empty")], study.folder)
