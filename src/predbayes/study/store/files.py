"""Files that are there whole or not at all, and a lock that one process holds at a time.

A file is written under another name, brought to the disk and renamed: whoever is killed on the
way leaves the old state and a temporary file, which the next step removes.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from predbayes.errors import StudyError

TEMPORARY = ".partial-"
LOCK = ".lock"  # of one step
RUN_LOCK = ".lock-run"  # of a run over a network, which takes many steps
_CHUNK = 1 << 20
_TOKEN = 4  # bytes, so that two processes do not meet
_MARK = len(TEMPORARY) + 2 * _TOKEN


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_bounded(source: Path, target: Path, max_bytes: int) -> int:
    """Copy a file and bring it to the disk; one with more than ``max_bytes`` is refused."""
    try:
        with _open_file(source) as reader, target.open("wb") as writer:
            _require_size(os.fstat(reader.fileno()).st_size, max_bytes)
            copied = 0
            while chunk := reader.read(_CHUNK):
                copied += len(chunk)
                _require_size(copied, max_bytes)  # it may have grown meanwhile
                writer.write(chunk)
            writer.flush()
            os.fsync(writer.fileno())
    except OSError as error:
        raise StudyError(f"it cannot be copied: {error.strerror}") from error
    except ValueError as error:
        raise StudyError("no file has such a name") from error
    return copied


def _open_file(path: Path) -> BinaryIO:
    """Open a file to read; a pipe, a device or a folder is refused without waiting for it."""
    # What the name stands for can change after any look at it, so the open file is asked.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StudyError("it is not a file")
    return open(handle, "rb")


def _require_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise StudyError(f"it has more than the {max_bytes:,} bytes that the plan allows")


def put(source: Path, target: Path) -> None:
    """Give a file or folder its name, on the disk when this returns."""
    source.replace(target)
    sync_folder(target.parent)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file be written under another name, then give it its own."""
    partial = path.with_name(TEMPORARY + path.name)
    write(partial)
    put(partial, path)


def scratch_beside(path: Path) -> Path:
    """A name under which to make what will be ``path``; what killed processes left of it goes."""
    for other in path.parent.iterdir():
        if other.name.startswith(TEMPORARY) and other.name[_MARK:] == f"-{path.name}":
            remove(other)
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(_TOKEN)}-{path.name}")


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Bring every file below a folder to the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold a folder's lock; a second process is refused, and a dead one holds nothing."""
    with (folder / name).open("a+b") as file:
        _acquire(file.fileno(), folder)
        yield


def _acquire(handle: int, folder: Path) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StudyError(f"another command is at work on {folder.name}; try again later") from error
