"""Download a dataset from its publisher, and check the files that are there.

Downloads are kept in ``.cache`` below the data root. Nothing is laid out before it is verified: by
the hash of the download where its publisher keeps it fixed, by the SHA-256 of each file otherwise.
Of an archive only the files in the registry are taken, by their exact names. What is there and
right is left alone, so `fetch` may be called again at any time.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlsplit

from predbayes.errors import DataError
from predbayes.files import put
from predbayes.optional import require
from predbayes.seeding import generator
from predbayes_lab.data.dataset import Fingerprint
from predbayes_lab.data.files import content_sha256, data_root, find_file, has_file
from predbayes_lab.data.registry import DatasetSpec, Source, load, lookup

CACHE = ".cache"
TIMEOUT_SECONDS = 30
State = Literal["ok", "differs", "missing", "unknown"]


def fetch(name: str, root: Path | None = None, *, base_url: str | None = None) -> list[Path]:
    """Download what is missing of a dataset; return the files that were written.

    Args:
        name: A key of `predbayes_lab.data.registry.DATASETS`.
        root: The folder that holds the datasets; the environment's by default.
        base_url: A mirror with the publishers' paths, such as ``"http://127.0.0.1:8000"``; it
            takes the place of scheme and host.
    """
    spec = lookup(name)
    root = data_root() if root is None else root
    written = []
    for source in spec.sources:
        names = [file.removesuffix(".gz") for file in source.members.values()]
        states = {_state(spec, root / spec.folder, name) for name in names}
        if not states <= {"ok", "unknown"}:
            written += _fetch_source(spec, source, root, base_url)
    return written


def _state(spec: DatasetSpec, folder: Path, file: str) -> State:
    """A file whose right content nobody told us is unknown, never differs."""
    if not has_file(folder, file):
        return "missing"
    expected = spec.files[file]
    if expected is None:
        return "unknown"
    try:
        return "ok" if content_sha256(find_file(folder, file)) == expected else "differs"
    except DataError:
        return "differs"


def _fetch_source(
    spec: DatasetSpec, source: Source, root: Path, base_url: str | None
) -> list[Path]:
    folder, cache = root / spec.folder, root / CACHE
    try:
        cache.mkdir(parents=True, exist_ok=True)
        download = _download(spec, source, cache, base_url)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            try:
                files = _unpack(spec, source, download, Path(scratch))
            except DataError:
                download.unlink()  # else the next call would find it again
                raise
            folder.mkdir(parents=True, exist_ok=True)
            return [_lay_out(file, folder) for file in files]
    except OSError as error:
        raise DataError(f"cannot write to {root}: {error.strerror or error}") from error


def _download(spec: DatasetSpec, source: Source, cache: Path, base_url: str | None) -> Path:
    """The download in the cache; from there if it is there and its hash is right."""
    pooch = require("pooch", "lab")
    pooch.get_logger().setLevel("WARNING")
    parts = urlsplit(source.url)
    url = source.url if base_url is None else base_url.rstrip("/") + parts.path
    file = parts.path.rsplit("/", 1)[-1]
    try:
        path = pooch.retrieve(
            url,
            source.known_hash,
            fname=f"{spec.folder.replace('/', '-')}-{file}",
            path=cache,
            downloader=pooch.HTTPDownloader(chunk_size=2**16, timeout=TIMEOUT_SECONDS),
        )
    except OSError as error:  # the errors of requests among them
        response = getattr(error, "response", None)
        reason = type(error).__name__
        if response is not None:
            reason = f"{response.status_code} {response.reason}"
        folder = cache.parent / spec.folder
        raise DataError(
            f"cannot download {url}: {reason}; or put {', '.join(spec.files)} into {folder} by hand"
        ) from error
    except ValueError as error:  # pooch's word for a wrong hash; it has deleted the file
        raise DataError(f"{url} is not what its publisher offered: its hash differs") from error
    return Path(path)


def _unpack(spec: DatasetSpec, source: Source, download: Path, scratch: Path) -> list[Path]:
    """The files that are wanted, by exact name, verified; nothing else is written."""
    files = []
    try:
        with _members(source, download) as open_member:
            for member, file in source.members.items():
                with open_member(member) as content, (scratch / file).open("wb") as out:
                    shutil.copyfileobj(content, out)
                files.append(scratch / file)
    except KeyError as error:
        raise DataError(f"{source.url} has no {member}") from error
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{source.url} is not a whole {source.archive} file") from error
    for path in files:
        expected = spec.files[path.name.removesuffix(".gz")]
        if expected is not None and content_sha256(path) != expected:
            raise DataError(f"{path.name} of {source.url} differs from what its publisher offered")
    return files


@contextmanager
def _members(source: Source, download: Path) -> Iterator[Any]:
    """A function from a member's name to its content; an unknown name is a KeyError."""
    if source.archive == "zip":
        with zipfile.ZipFile(download) as archive:
            yield archive.open
    elif source.archive == "tar":
        with tarfile.open(download) as tar:
            yield lambda name: _open_regular(tar, name)
    else:
        yield lambda _: download.open("rb")


def _open_regular(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    """A regular file of a tar archive; a link or a device under its name counts as absent."""
    content = tar.extractfile(name) if tar.getmember(name).isreg() else None
    if content is None:
        raise KeyError(name)
    return content


def _lay_out(file: Path, folder: Path) -> Path:
    """Put a verified file in its place at once, and no plain or gzipped twin beside it."""
    put(file, folder / file.name)
    plain = file.name.removesuffix(".gz")
    (folder / (plain if file.name != plain else f"{plain}.gz")).unlink(missing_ok=True)
    return folder / file.name


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file of a dataset: whether it is there, and whether it is the publisher's."""

    file: str
    state: State
    num_bytes: int | None  # on disk


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of checking a dataset."""

    name: str
    files: tuple[FileCheck, ...]
    fingerprint: Fingerprint | None  # None: it cannot be read
    problem: str  # empty: all is well
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing is missing, nothing differs, and it can be read."""
        return not self.problem


def check(name: str, root: Path | None = None) -> CheckReport:
    """Compare the files of a dataset with the publisher's, and read them."""
    spec = lookup(name)
    root = data_root() if root is None else root
    files = tuple(_check_file(spec, root / spec.folder, file) for file in spec.files)
    bad = [f"{file.file} {file.state}" for file in files if file.state in ("missing", "differs")]
    fingerprint, problem = None, "; ".join(bad)
    if all(file.state != "missing" for file in files):
        try:
            fingerprint = load(name, root=root, rng=generator(0)).fingerprint
        except DataError as error:
            problem = problem or str(error)
    notes = (spec.note, fingerprint.note if fingerprint else "")
    return CheckReport(name, files, fingerprint, problem, tuple(note for note in notes if note))


def _check_file(spec: DatasetSpec, folder: Path, file: str) -> FileCheck:
    state = _state(spec, folder, file)
    num_bytes = None if state == "missing" else find_file(folder, file).stat().st_size
    return FileCheck(file, state, num_bytes)
