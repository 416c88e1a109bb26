"""A site sends its file: to a bucket with credentials, or to a pre-signed address without any."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from predbayes.errors import PlanError, StudyError
from predbayes.exchange import storage
from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.signing import SigningKey
from predbayes.exchange.storage import Storage, is_within, put, require_private
from predbayes.files import file_digest
from predbayes.study.coordinator.stored import add_stored
from predbayes.study.site.policy import SitePolicy
from predbayes.study.site.release import Approvals
from predbayes.study.tables.sitefile import Policy, SiteFile
from tests.study.world import make_world


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A site's folder, in which its commands are run."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    (tmp_path / "home" / "site.toml").write_text('format = 1\nname = "Alpha"\n')
    return tmp_path / "home"


def noted(home):
    return [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]


def test_by_an_address_of_fsspec_and_into_a_study(world, home, s3, folder, predbayes, tmp_path):
    path = world.file("Alpha")
    code, out, _ = predbayes("site", "send", path, f"s3://{folder}/")
    assert code == 0
    assert file_digest(path) in out
    assert s3.ls(folder) == [f"{folder}/{file_digest(path)}.safetensors"]
    (line,) = noted(home)
    assert (line["act"], line["outcome"]) == ("send", "done")
    assert line["what"]["digest"] == file_digest(path)


def test_by_a_pre_signed_address_without_credentials(world, home, s3, folder, tmp_path):
    """As a process of its own, whose environment has none of the coordinator's."""
    path, here = world.file("Alpha"), Storage.at(f"s3://{folder}")
    address = here.presigned("Alpha.safetensors", 60)
    assert "X-Amz-SignedHeaders=host&" in address  # and nothing that a proxy may change
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    command = [sys.executable, "-m", "predbayes", "site", "send", str(path), address]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=True)
    assert "X-Amz" not in done.stdout
    assert s3.cat_file(f"{folder}/Alpha.safetensors") == path.read_bytes()
    assert "X-Amz" not in (home / "audit.jsonl").read_text()


def test_a_sealed_file_and_a_site_that_is_another(tmp_path, home, s3, folder, predbayes):
    sealed = make_world(tmp_path / "sealed", coordinator=CoordinatorKey.generate())
    study = sealed.begin()
    assert predbayes("site", "send", sealed.file("Alpha"), f"s3://{folder}")[0] == 0
    (answer,) = add_stored(study, f"s3://{folder}", (".sealed",))
    assert answer[1].site == "Alpha"
    code, _, err = predbayes("site", "send", sealed.file("Beta"), f"s3://{folder}")
    assert code == 2
    assert "is of Beta, and this is Alpha" in err


def test_what_nobody_released_stays(world, home, s3, folder, predbayes):
    world.upload("Alpha").save(home / "held.safetensors")
    code, _, err = predbayes("site", "send", "held.safetensors", f"s3://{folder}")
    assert code == 2
    assert "it is not signed" in err
    path = world.file("Alpha")
    Approvals(home).record("upload", world.upload("Alpha").digest(), "officer", act="revoke")
    code, _, err = predbayes("site", "send", path, f"s3://{folder}")
    assert code == 2
    assert "revoked" in err
    assert not s3.exists(folder)
    assert noted(home)[-1]["outcome"] == "refused"


def test_the_policy_says_where_files_may_go(world, home, s3, folder, predbayes):
    policy = f'[policy]\nstorage = ["s3://{folder}/in"]\n'
    (home / "site.toml").write_text(f'format = 1\nname = "Alpha"\n{policy}')
    path = world.file("Alpha")
    code, _, err = predbayes("site", "send", path, f"s3://{folder}/out")
    assert code == 2
    assert "the site's policy forbids it" in err
    assert predbayes("site", "send", path, f"s3://{folder}/in/2026")[0] == 0


class TestPolicy:
    def test_a_message_needs_a_policy_that_names_the_address(self):
        address = "https://store.example.org/study/a?X-Amz-Signature=1"
        silent = SitePolicy()
        silent.require_storage(address, by_message=False)
        with pytest.raises(PlanError, match=r"is not within storage = \[\] of predbayes itself"):
            silent.require_storage(address, by_message=True)
        named = Policy(storage=("https://store.example.org/study",))
        SitePolicy((("a", named),)).require_storage(address, by_message=True)
        with pytest.raises(PlanError, match="of institution"):
            SitePolicy((("a", named), ("institution", Policy()))).require_storage(
                address, by_message=True
            )

    def test_it_changes_no_digest_where_it_is_not_used(self):
        assert "storage" not in Policy().model_dump_json()
        assert "storage" in Policy(storage=("https://a.org/b",)).model_dump_json()

    @pytest.mark.parametrize("named", ["http://store.example.org/", "study", "https://a.org/b?c=d"])
    def test_addresses_that_no_policy_may_name(self, named):
        with pytest.raises(PlanError):
            SiteFile.loads(f'format = 1\nname = "A"\n[policy]\nstorage = ["{named}"]\n')


@pytest.mark.parametrize(
    "address",
    [
        "http://store.example.org/study/a",
        "https://store.example.org@evil.net/study/a",
        "https://store.example.org\\@evil.net/study/a",
        "https://store.example.org/study/a\nHost: evil.net",
        "https:///study/a",
        "https://[study/a",
    ],
)
def test_addresses_to_which_nothing_is_sent(address):
    with pytest.raises(StudyError):
        require_private(address)


@pytest.mark.parametrize(
    "address",
    [
        "https://store.example.org.evil.net/study/a",
        "https://store.example.org:8443/study/a",
        "http://store.example.org/study/a",
        "https://store.example.org/studying/a",
        "https://store.example.org/study/../a",
        "https://store.example.org/study/%2e%2e/a",
        "https://store.example.org/study/%2e%2e%5ca",
        "https://store.example.org:x/study/a",
    ],
)
def test_addresses_that_are_elsewhere(address):
    assert not is_within(address, "https://store.example.org/study")
    assert is_within("https://store.example.org/study/b/a", "https://store.example.org/study/")


@contextmanager
def answering(*codes):
    """A server that answers one PUT after another with these codes, and notes what came."""
    came, left = [], list(codes)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self):
            came.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(left.pop(0))
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/a?Signature=s3cret", came
        finally:
            server.shutdown()
            thread.join()


class TestPut:
    @pytest.fixture
    def file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(storage, "_PAUSES", (0.0, 0.0))
        SigningKey.generate().save(tmp_path / "a")
        return tmp_path / "a"

    def test_a_busy_server_is_asked_again(self, file):
        with answering(503, 500, 200) as (address, came):
            put(file, address)
        assert came == [file.read_bytes()] * 3

    @pytest.mark.parametrize("code", [301, 307, 308, 403])
    def test_a_redirect_or_a_no_ends_it_and_tells_no_signature(self, file, code):
        with (
            answering(code, 200) as (address, came),
            pytest.raises(StudyError, match=f"did not take the file: {code}") as error,
        ):
            put(file, address)
        assert len(came) == 1
        assert "s3cret" not in str(error.value)

    def test_nobody_there(self, file):
        with answering() as (address, _):
            pass
        with pytest.raises(StudyError, match="cannot be reached") as error:
            put(file, address)
        assert "s3cret" not in str(error.value)

    @pytest.mark.parametrize("address", ["file:///tmp/a", "ftp://127.0.0.1/a", "/tmp/a"])
    def test_no_other_way(self, file, address):
        with pytest.raises(StudyError, match="it is not an HTTP address"):
            put(file, address)
