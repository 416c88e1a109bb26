"""Downloads from a server on this machine that has the publishers' paths."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from predbayes.errors import DataError
from predbayes_lab.data.fetch import CACHE, check, fetch
from predbayes_lab.data.registry import DATASETS
from tests.lab.data.publishers import table, write_hospitals, write_idx_set, write_table


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        self.server.requests.append(self.path)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = partial(Handler, directory=tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.requests = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        server.folder = tmp_path / "served"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def serve(server, source, content: bytes) -> None:
    path = server.folder / urlsplit(source.url).path.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def register(monkeypatch, name, contents: dict[str, bytes], *, known_hashes=()) -> None:
    """Let the registry expect these contents, so that small files stand for large ones."""
    spec = DATASETS[name]
    files = {file: hashlib.sha256(contents[file]).hexdigest() for file in spec.files}
    sources = spec.sources
    if known_hashes:
        sources = tuple(
            replace(source, known_hash=f"md5:{digest}")
            for source, digest in zip(sources, known_hashes, strict=True)
        )
    monkeypatch.setitem(DATASETS, name, replace(spec, files=files, sources=sources))


def packed(kind: str, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def wine(server, monkeypatch, tmp_path):
    """Wine on the server, in an archive with more than is wanted; returns its content."""
    file, frame = table("wine")
    write_table(tmp_path / "source", file, frame)
    content = (tmp_path / "source" / "uci" / file).read_bytes()
    register(monkeypatch, "wine", {file: content})
    members = {file: content, "../evil.csv": b"1", "winequality-white.csv": b"2"}
    serve(server, DATASETS["wine"].sources[0], packed("zip", members))
    return content


@pytest.fixture
def mnist(server, monkeypatch, tmp_path):
    """MNIST's four gzipped files on the server."""
    write_idx_set(tmp_path / "source", ("train", "t10k"))
    contents, downloads = {}, []
    for source in DATASETS["mnist"].sources:
        file = source.members[""].removesuffix(".gz")
        plain, zipped = tmp_path / "source" / file, tmp_path / "source" / f"{file}.gz"
        contents[file] = (
            plain.read_bytes() if plain.exists() else gzip.decompress(zipped.read_bytes())
        )
        downloads.append(gzip.compress(contents[file]))
        serve(server, source, downloads[-1])
    register(monkeypatch, "mnist", contents, known_hashes=[md5(content) for content in downloads])
    return contents


def files_below(root: Path) -> set[str]:
    """All files but those in the cache."""
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and CACHE not in path.parts
    }


def test_a_file_from_a_zip_archive(server, wine, root):
    (path,) = fetch("wine", root, base_url=server.url)
    assert path == root / "uci" / "winequality-red.csv"
    assert path.read_bytes() == wine
    assert files_below(root) == {"uci/winequality-red.csv"}
    assert check("wine", root).ok


def test_files_from_a_tar_archive(server, root, monkeypatch):
    files = DATASETS["cifar10"].files
    contents = {file: bytes([k % 10]) + bytes(3072) for k, file in enumerate(files)}
    members = {f"cifar-10-batches-bin/{file}": content for file, content in contents.items()}
    archive = packed("tar", {**members, "cifar-10-batches-bin/readme.html": b""})
    register(monkeypatch, "cifar10", contents, known_hashes=[md5(archive)])
    serve(server, DATASETS["cifar10"].sources[0], archive)
    fetch("cifar10", root, base_url=server.url)
    assert files_below(root) == {f"cifar-10-batches-bin/{file}" for file in files}
    report = check("cifar10", root)
    assert report.ok
    assert (report.fingerprint.num_train, report.fingerprint.num_test) == (5, 1)


def test_what_is_there_and_right_is_not_asked_for_again(server, mnist, root):
    assert len(fetch("mnist", root, base_url=server.url)) == 4
    assert len(server.requests) == 4
    assert fetch("mnist", root, base_url=server.url) == []
    assert len(server.requests) == 4


def test_a_file_that_differs_is_replaced_and_its_plain_twin_goes(server, mnist, root):
    file = next(iter(mnist))
    (root / "mnist").mkdir(parents=True)
    (root / "mnist" / file).write_bytes(b"something else")
    fetch("mnist", root, base_url=server.url)
    assert files_below(root) == {f"mnist/{name}.gz" for name in mnist}


def test_a_download_with_another_hash_is_refused_and_nothing_is_left(server, mnist, root):
    source = DATASETS["mnist"].sources[0]
    serve(server, source, b"corrupted")
    with pytest.raises(DataError, match="its hash differs") as caught:
        fetch("mnist", root, base_url=server.url)
    assert "\n" not in str(caught.value)
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_an_archive_with_another_content_is_refused_and_nothing_is_left(server, wine, root):
    archive = packed("zip", {"winequality-red.csv": b"alcohol;quality\n1;2\n"})
    serve(server, DATASETS["wine"].sources[0], archive)
    for _ in range(2):  # nor is it taken from the cache the next time
        with pytest.raises(DataError, match="differs from what its publisher offered"):
            fetch("wine", root, base_url=server.url)
    assert len(server.requests) == 2
    assert not [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "not a whole zip file"),
        (packed("zip", {"a": b""}), "has no winequality-red"),
    ],
    ids=["none", "lacks a file"],  # the archive's bytes hold the time of day
)
def test_archives_that_are_none_or_lack_a_file_are_refused(content, message, server, wine, root):
    serve(server, DATASETS["wine"].sources[0], content)
    with pytest.raises(DataError, match=message):
        fetch("wine", root, base_url=server.url)
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_a_link_in_a_tar_archive_is_no_file(server, root, monkeypatch):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file in DATASETS["cifar10"].files:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{file}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(member)
    contents = dict.fromkeys(DATASETS["cifar10"].files, b"")
    register(monkeypatch, "cifar10", contents, known_hashes=[md5(buffer.getvalue())])
    serve(server, DATASETS["cifar10"].sources[0], buffer.getvalue())
    with pytest.raises(DataError, match="has no cifar-10-batches-bin/data_batch_1"):
        fetch("cifar10", root, base_url=server.url)


def test_a_missing_page_and_a_dead_server_are_one_line_each(server, root):
    with pytest.raises(DataError, match=r"wine\+quality\.zip: 404 File not found"):
        fetch("wine", root, base_url=server.url)
    with pytest.raises(DataError, match=r"cannot download .*: ConnectionError"):
        fetch("wine", root, base_url="http://127.0.0.1:1")
    assert not [path for path in root.rglob("*") if path.is_file()]


class TestCheck:
    def test_finds_what_is_missing(self, root):
        report = check("heart", root)
        assert not report.ok
        assert report.fingerprint is None
        assert {found.state for found in report.files} == {"missing"}
        assert "processed.cleveland.data missing" in report.problem

    def test_finds_what_differs_and_still_reads_it(self, root):
        root.mkdir()
        write_hospitals(root)
        report = check("heart", root)
        assert not report.ok
        assert [found.state for found in report.files] == ["differs"] * 4
        assert report.fingerprint.num_train + report.fingerprint.num_test == 110
        assert any("cholesterol" in note for note in report.notes)

    def test_finds_what_cannot_be_read(self, root):
        write_idx_set(root / "emnist", ("emnist-digits-train", "emnist-digits-test"))
        (root / "emnist" / "emnist-digits-test-labels-idx1-ubyte").write_bytes(b"x")
        report = check("emnist-digits", root)
        assert not report.ok
        assert "not an idx file" in report.problem
