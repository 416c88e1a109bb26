"""Files that are there whole or not at all, and a lock that one process holds at a time.

A file is written under another name, brought to the disk and renamed: whoever is killed on the
way leaves the old state and a temporary file, which the next step removes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from predbayes.errors import StudyError

TEMPORARY = ".partial-"
LOCK = ".lock"
_CHUNK = 1 << 20


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_bounded(source: Path, target: Path, max_bytes: int) -> int:
    """Copy a file and bring it to the disk; one with more than ``max_bytes`` is refused."""
    copied = 0
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_CHUNK):
            copied += len(chunk)
            if copied > max_bytes:
                raise StudyError(
                    f"{source.name} has more than the {max_bytes:,} bytes that the plan allows"
                )
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return copied


def put(source: Path, target: Path) -> None:
    """Give a file or folder its name, on the disk when this returns."""
    source.replace(target)
    sync_folder(target.parent)


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
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; a second process is refused, and a dead one holds nothing."""
    with (folder / LOCK).open("a+b") as file:
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
