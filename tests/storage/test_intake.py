"""Uploads that lie on a real S3 server: what is listed, fetched, refused, and gone on with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fsspec.registry import _registry

from predbayes.errors import MissingPackageError, StudyError, UploadError
from predbayes.exchange import storage
from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.storage import Found, Storage, packs, require_fetchable
from predbayes.files import file_digest
from predbayes.study.coordinator.intake import Intake
from predbayes.study.coordinator.stored import add_stored
from tests.storage.server import ENVIRONMENT, s3_server
from tests.study.world import SITES, make_world

ENDINGS = (".safetensors", ".sealed", ".survey")
MANY = 1_005  # more than a page of a listing, which has a thousand


@pytest.fixture
def study(world, tmp_path):
    world.root = tmp_path
    (tmp_path / "kit-labels.json").write_bytes(
        (world.kit.folder.parent / "kit-labels.json").read_bytes()
    )
    return world.begin()


def counted(monkeypatch):
    """Paths that are fetched from now on."""
    asked = []
    parts = Storage._parts

    def counting(self, due, start):
        asked.extend(file.path for file in due)
        return parts(self, due, start)

    monkeypatch.setattr(Storage, "_parts", counting)
    return asked


def stored(world, s3, folder, sites):
    """Write sites' uploads, each under the digest of its bytes."""
    names = {}
    for site in sites:
        path = world.file(site)
        names[site] = f"{file_digest(path)}{path.suffix}"
        s3.pipe_file(f"{folder}/{names[site]}", path.read_bytes())
    return names


def test_the_command_takes_in_what_a_bucket_has(world, study, s3, folder, predbayes):
    names = stored(world, s3, folder, SITES[:2])
    s3.pipe_file(f"{folder}/notes.txt", b"not for the study")
    code, out, _ = predbayes("study", "add", f"s3://{folder}", "--study", study.folder)
    assert code == 0
    assert out.splitlines() == sorted(
        f"{name}: {site}, {100 + len(site)} rows (stated, not agreed), in"
        for site, name in names.items()
    )
    assert sorted(study.state().uploads) == sorted(SITES[:2])
    assert study.verify() == []


def test_the_same_ledger_as_from_a_folder(world, study, s3, folder, tmp_path):
    stored(world, s3, folder, SITES)
    list(add_stored(study, f"s3://{folder}", ENDINGS))
    by_file = world.begin("files")
    list(by_file.add_all(sorted(tmp_path.glob("*.safetensors"))))
    one, two = study.state(), by_file.state()
    assert {u.site: u.file_digest for u in one.in_order} == {
        u.site: u.file_digest for u in two.in_order
    }
    assert len(list(study.ledger.entries())) == len(list(by_file.ledger.entries()))


def test_what_is_in_is_not_fetched_again(world, study, s3, folder, monkeypatch):
    names = stored(world, s3, folder, SITES[:3])
    study.add(world.root / f"{SITES[0]}.safetensors")
    asked = counted(monkeypatch)
    answers = dict(add_stored(study, f"s3://{folder}", ENDINGS))
    assert answers[names[SITES[0]]] is None
    assert sorted(asked) == sorted(f"{folder}/{names[site]}" for site in SITES[1:3])
    asked.clear()
    assert set(dict(add_stored(study, f"s3://{folder}", ENDINGS)).values()) == {None}
    assert asked == []


def test_a_file_with_a_name_of_its_own_is_fetched_and_in_already(world, study, s3, folder):
    s3.pipe_file(f"{folder}/Alpha.safetensors", world.file("Alpha").read_bytes())
    (first,) = add_stored(study, f"s3://{folder}", ENDINGS)
    assert first[1].site == "Alpha"
    assert list(add_stored(study, f"s3://{folder}/Alpha.safetensors", ENDINGS)) == [
        ("Alpha.safetensors", None)
    ]


def test_what_is_refused_stops_nobody(world, study, s3, folder, predbayes, monkeypatch):
    """One cut short, one of something else, one too large: which is not even read."""
    content = world.file("Alpha").read_bytes()
    s3.pipe_file(f"{folder}/a-cut.safetensors", content[:-7])
    s3.pipe_file(f"{folder}/b-foreign.safetensors", b"PK\x03\x04" * 50)
    s3.pipe_file(f"{folder}/c-empty.safetensors", b"")
    most = Intake.of(study.plan).max_bytes
    s3.pipe_file(f"{folder}/d-large.safetensors", bytes(most + 1))
    s3.pipe_file(f"{folder}/e\\..\\..\\odd.safetensors", content)
    s3.pipe_file(f"{folder}/Beta.safetensors", world.file("Beta").read_bytes())
    asked = counted(monkeypatch)
    code, out, err = predbayes("study", "add", f"s3://{folder}", "--study", study.folder)
    assert code == 2
    assert out.startswith("Beta.safetensors: Beta, ")
    refused, last = err.splitlines()[:-1], err.splitlines()[-1]
    assert len(refused) == 5
    assert f"it has more than the {most:,} bytes that the plan allows" in err
    assert "5 of 6 files were refused" in last
    assert not any("large" in path or "odd" in path for path in asked)
    assert list(study.state().uploads) == ["Beta"]


def test_a_file_that_changed_after_it_was_listed(world, study, s3, folder, tmp_path):
    content = world.file("Alpha").read_bytes()
    s3.pipe_file(f"{folder}/Alpha.safetensors", content)
    s3.pipe_file(f"{folder}/Beta.safetensors", world.file("Beta").read_bytes())
    here = Storage.at(f"s3://{folder}")
    found = here.listed(ENDINGS)
    s3.pipe_file(f"{folder}/Alpha.safetensors", content[:-7])
    s3.rm_file(f"{folder}/Beta.safetensors")
    (tmp_path / "to").mkdir()
    short, gone = here.fetch(found, tmp_path / "to")
    assert "not as many bytes" in str(short)
    assert "cannot be read" in str(gone)
    s3.pipe_file(f"{folder}/Alpha.safetensors", content + bytes(1_000_000))
    (tmp_path / "more").mkdir()
    (longer,) = here.fetch(found[:1], tmp_path / "more")
    assert longer.read_bytes() == content  # of what grew no more is read than was listed


def test_a_thousand_files_come_in_pages_and_packs(world, study, s3, folder, monkeypatch):
    sites = [f"Device {number:04}" for number in range(MANY)]
    study.admit_all({site: world.key(site).public for site in sites})
    predictive = world.predictions("Alpha")
    content = {}
    for site in sites:
        path = world.root / "device.safetensors"
        world.upload(site, predictive).save(path, world.key(site))
        content[f"{folder}/{file_digest(path)}.safetensors"] = path.read_bytes()
    s3.pipe(content)
    monkeypatch.setattr(storage, "PACK_FILES", 400)
    before = len(list(study.ledger.entries()))
    answers = list(add_stored(study, f"s3://{folder}", ENDINGS))
    assert len(answers) == MANY == len(study.state().uploads)
    assert len(list(study.ledger.entries())) - before <= 2 * 3  # packs, each of a batch or two


def test_a_server_that_is_killed_and_comes_back(world, study, monkeypatch, predbayes):
    monkeypatch.setattr(storage, "PACK_FILES", 2)
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        names = stored(world, server.files(), "uploads/study", SITES)
        answers = add_stored(study, "s3://uploads/study", ENDINGS)
        assert [next(answers)[1].site for _ in range(2)]
        server.kill()
        with pytest.raises(StudyError, match=r"s3://uploads/study cannot be read: "):
            list(answers)
        assert len(study.state().uploads) == 2
        code, _, err = predbayes("study", "add", "s3://uploads/study", "--study", study.folder)
        assert code == 2
        assert len(err.splitlines()) == 1
        assert "cannot be listed" in err
        server.start()
        stored(world, server.files(), "uploads/study", SITES)
        again = dict(add_stored(study, "s3://uploads/study", ENDINGS))
    assert sum(answer is None for answer in again.values()) == 2
    assert sorted(again) == sorted(names.values())
    assert sorted(study.state().uploads) == sorted(SITES)
    assert study.verify() == []


def test_a_command_that_is_killed_goes_on(world, study, s3, folder):
    names = stored(world, s3, folder, SITES)
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from predbayes.exchange import storage\n"
        "from predbayes.study.coordinator.stored import add_stored\n"
        "from predbayes.study.coordinator.study import Study\n"
        "storage.PACK_FILES = 2\n"
        "answers = add_stored(Study(sys.argv[1]), sys.argv[2], ('.safetensors',))\n"
        "[next(answers) for _ in range(3)]\nos.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, str(study.folder), f"s3://{folder}"]
    assert subprocess.run(command, check=False).returncode == -9
    assert len(study.state().uploads) == 4
    again = dict(add_stored(study, f"s3://{folder}", ENDINGS))
    assert sorted(name for name, answer in again.items() if answer) == [sorted(names.values())[-1]]
    assert sorted(study.state().uploads) == sorted(SITES)


def test_credentials_are_in_no_file_of_the_study(world, study, s3, folder):
    stored(world, s3, folder, SITES[:1])
    list(add_stored(study, f"s3://{folder}", ENDINGS))
    secret = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"].encode()
    files = [path for path in study.folder.rglob("*") if path.is_file()]
    assert (study.folder / "ledger.jsonl") in files
    assert not any(secret in path.read_bytes() for path in files)


def test_sealed_uploads(tmp_path, s3, folder):
    world = make_world(tmp_path / "sealed", coordinator=CoordinatorKey.generate())
    study = world.begin()
    stored(world, s3, folder, SITES[:2])
    assert {a.site for _, a in add_stored(study, f"s3://{folder}", ENDINGS)} == set(SITES[:2])
    # The ledger has the digests of what was inside: they are fetched, and in already.
    assert {a for _, a in add_stored(study, f"s3://{folder}", ENDINGS)} == {None}


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_other_storages(world, study, tmp_path, scheme):
    import fsspec

    place = f"{scheme}://{tmp_path}/there"
    files, path = fsspec.url_to_fs(place)
    files.makedirs(path)
    files.pipe_file(f"{path}/Alpha.safetensors", world.file("Alpha").read_bytes())
    ((name, accepted),) = add_stored(study, place, ENDINGS)
    assert (name, accepted.site) == ("Alpha.safetensors", "Alpha")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s3://no-such-bucket/a", "s3://no-such-bucket/a cannot be listed: "),
        ("nothing://a/b", "nothing://a/b is no address of a storage: "),
        ("memory://empty-folder", "cannot be listed"),
    ],
)
def test_an_address_with_nothing_there_is_one_line(study, s3, predbayes, address, says):
    code, out, err = predbayes("study", "add", address, "--study", study.folder)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_without_its_package_one_line_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "s3fs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(MissingPackageError, match=r"\.\[storage\]"):
        Storage.at("s3://bucket/a")


def test_packs_are_bounded_by_files_and_bytes():
    small = [Found(f"{number}", 10) for number in range(2_500)]
    assert [len(pack) for pack in packs(small)] == [1000, 1000, 500]
    large = [Found("a", storage.PACK_BYTES - 1), Found("b", 2), Found("c", 3 * storage.PACK_BYTES)]
    assert [[file.path for file in pack] for pack in packs(large)] == [["a"], ["b"], ["c"]]


def test_a_large_file_comes_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "PACK_BYTES", 1000)
    content = bytes(range(256)) * 11
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.safetensors").write_bytes(content)
    (tmp_path / "here").mkdir()
    place = Storage.at(f"file://{tmp_path}/there")
    (path,) = place.fetch(place.listed(ENDINGS), tmp_path / "here")
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["a/b\\c", ".hidden", "a\nb", "x" * 201, "con:1"])
def test_names_that_no_file_may_have(name):
    with pytest.raises(UploadError, match="no file has such a name"):
        require_fetchable(Found(f"bucket/{name}.safetensors", 1), 10)


def test_a_storage_that_does_not_tell_sizes():
    with pytest.raises(UploadError, match="does not say how large"):
        require_fetchable(Found("bucket/a.safetensors", None), 10)


def test_the_audit_log_names_files_and_no_address(world, study, s3, folder):
    stored(world, s3, folder, SITES[:1])
    list(add_stored(study, f"s3://{folder}", ENDINGS))
    last = json.loads((study.folder / "audit.jsonl").read_text().splitlines()[-1])
    assert last["act"] == "add"
    assert Path(last["what"]["file"]).suffix == ".safetensors"
    assert "s3://" not in json.dumps(last)
