"""One S3 server for the tests of this folder; each has a folder of its own in the bucket."""

from __future__ import annotations

import secrets
import sys

import pytest

from predbayes.cli.app import main
from tests.storage.server import BUCKET, s3_server
from tests.study.world import make_world


@pytest.fixture(scope="session")
def server():
    with s3_server() as started:
        yield started


@pytest.fixture
def s3(server, monkeypatch):
    """The server's files, by the credentials of the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.files()


@pytest.fixture
def folder(s3):
    return f"{BUCKET}/{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def predbayes(monkeypatch, capsys):
    """The command line in this process: code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["predbayes", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        return int(done.value.code or 0), *capsys.readouterr()

    return run
