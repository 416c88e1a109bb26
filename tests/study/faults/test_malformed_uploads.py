"""A file may come from anybody: no malformed one is accepted, and each is refused in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from predbayes_study.coordinator.intake import Intake
from predbayes_study.site.witness import verify_files
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.faults.malformed import KINDS, corpus, fixed_digests, make_target, site_key

CORPUS = Path(__file__).parent / "corpus"
REASONS = json.loads((CORPUS / "reasons.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def _digests():
    with fixed_digests():
        yield


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    root = tmp_path_factory.mktemp("targets")
    return {kind: make_target(root / kind, kind) for kind in KINDS}


@pytest.fixture
def target(targets):
    return targets["classes"]


@pytest.fixture
def _in_time():
    """A command that waits for ever on a pipe fails instead."""

    def stop(number, frame):
        raise AssertionError("it still waits after ten seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class TestCorpus:
    @pytest.mark.parametrize("name", sorted(REASONS))
    def test_every_kept_file_is_refused_for_its_reason(self, name, targets):
        kind = name.partition("-")[0]
        line = targets[kind].refusal_of((CORPUS / f"{name}.safetensors").read_bytes())
        assert REASONS[name] in line

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_unbroken_twin_is_accepted(self, kind, tmp_path):
        """Else everything would be refused, and for another reason than we think."""
        target = make_target(tmp_path, kind)
        target.incoming.write_bytes((CORPUS / f"{kind}-honest.safetensors").read_bytes())
        accepted = target.study.add(target.incoming)
        assert accepted.site == "Alpha"
        assert target.study.add(target.incoming) is None
        assert target.study.verify() == []

    def test_it_is_complete_and_small(self):
        kept = {path.stem: path.stat().st_size for path in CORPUS.glob("*.safetensors")}
        assert kept.keys() == {*REASONS, *(f"{kind}-honest" for kind in KINDS)}
        assert len(REASONS) >= 40
        assert max(kept.values()) < 4096

    def test_it_is_made_the_same_again(self, tmp_path):
        files = corpus(tmp_path)
        assert {*files} == {path.stem for path in CORPUS.glob("*.safetensors")}
        for name, content in files.items():
            if not name.endswith("-bomb") and not name.endswith("-npz"):  # zlib has many versions
                assert (CORPUS / f"{name}.safetensors").read_bytes() == content, name


@pytest.mark.usefixtures("_in_time")
class TestNoFiles:
    """Things in a folder that have a name and are no upload."""

    def test_a_pipe_is_not_waited_for(self, target, tmp_path):
        os.mkfifo(tmp_path / "pipe.safetensors")
        assert "not a file" in target.refusal(tmp_path / "pipe.safetensors")
        (tmp_path / "link").symlink_to(tmp_path / "pipe.safetensors")
        assert "not a file" in target.refusal(tmp_path / "link")

    def test_what_becomes_a_pipe_after_a_look_at_it_is_not_waited_for(
        self, target, tmp_path, monkeypatch
    ):
        os.mkfifo(tmp_path / "pipe")
        monkeypatch.setattr(Path, "is_file", lambda path: True)
        assert "not a file" in target.refusal(tmp_path / "pipe")

    @pytest.mark.parametrize("suffix", [".safetensors", ".sealed", ".receipt", ".deletion"])
    def test_nor_does_a_site_that_verifies_it(self, suffix, tmp_path):
        os.mkfifo(tmp_path / f"x{suffix}")
        found = verify_files([tmp_path / f"x{suffix}"], CoordinatorKey.generate().public)
        assert f"x{suffix}: " in found.problems[0]

    def test_folders_sockets_and_devices_are_refused(self, target, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
            for path in (tmp_path, Path("socket"), Path("/dev/zero"), Path("/dev/null")):
                target.refusal(path)

    def test_links_to_nowhere_are_refused(self, target, tmp_path):
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        (tmp_path / "gone").symlink_to(tmp_path / "nothing")
        for name in ("loop", "gone", "absent"):
            assert name in target.refusal(tmp_path / name)

    def test_fifty_gigabytes_are_refused_unread(self, target, tmp_path):
        path = tmp_path / "huge.safetensors"
        path.write_bytes(target.signed(target.drafts["Alpha"]))
        os.truncate(path, 50 * 10**9)
        assert "bytes that the plan allows" in target.refusal(path)

    def test_a_file_that_cannot_be_read_is_refused(self, target, tmp_path, monkeypatch):
        path = tmp_path / "theirs.safetensors"
        path.write_bytes(b"x")
        real = os.open

        def guarded(name, *arguments, **options):
            if name == path:  # root may read everything, so a mode would not do
                raise PermissionError(13, "Permission denied")
            return real(name, *arguments, **options)

        monkeypatch.setattr(os, "open", guarded)
        assert "Permission denied" in target.refusal(path)


class TestNames:
    """What a file is called is a stranger's choice, too."""

    @pytest.mark.parametrize(
        "name", ["a\nb", "\x1b[31mred", "a\u202eb", "\udcff", "x" * 255, "it", " ", "%s{0}"]
    )
    def test_a_refusal_shows_no_name_that_moves_the_cursor(self, target, tmp_path, name):
        path = tmp_path / name
        path.write_bytes(b"no upload")
        assert "not a safetensors file" in target.refusal(path)

    @pytest.mark.parametrize("name", ["x" * 300, "a\x00b", "a\nb", ""])
    def test_names_that_no_file_can_have_are_refused(self, target, tmp_path, name):
        target.refusal(tmp_path / name)


class TestChangesMeanwhile:
    def test_what_is_checked_is_what_is_kept(self, tmp_path, monkeypatch):
        """The sender's file is another as soon as the study has its copy."""
        target = make_target(tmp_path, "classes")
        honest = target.signed(target.drafts["Alpha"])
        target.incoming.write_bytes(honest)
        check = Intake.check

        def racing(self, path, *others):
            target.incoming.write_bytes(b"something else")
            return check(self, path, *others)

        monkeypatch.setattr(Intake, "check", racing)
        accepted = target.study.add(target.incoming)
        stored = target.study.folder / "uploads" / f"{accepted.digest}.safetensors"
        assert stored.read_bytes() == honest
        assert target.study.verify() == []

    def test_a_rotated_key_ends_what_it_signed(self, tmp_path):
        target = make_target(tmp_path, "classes")
        target.incoming.write_bytes(target.signed(target.drafts["Alpha"]))
        target.study.admit("Alpha", site_key("Alpha, later").public)
        assert "not signed with the key that Alpha" in target.refusal()
