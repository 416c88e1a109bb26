"""Files that are there whole or not at all.

A file is written under another name, brought to the disk and renamed: whoever is killed on the
way leaves the old state and a temporary file, which the next writer removes.

Others may be able to write in the folder, such as a share, and plant links there. So nothing is
written through a link. The other name is new and cannot be guessed, and the rename replaces a link
by the file. What grows in place, a journal or a lock, is refused if it is a link, and so is a
folder that predbayes made inside another (`own_folder`).

Modes are those of the umask for what people hand over or read together: pages, kits, results,
public keys. `PRIVATE` files are their owner's alone: keys, labels, notes, what stays at home.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from predbayes.system import sync_folder

TEMPORARY = ".partial-"
SHARED, PRIVATE = 0o666, 0o600  # modes of new files, before the umask
_TOKEN = 16  # bytes, so that nobody can have planted a link of that name
_MARK = len(TEMPORARY) + 2 * _TOKEN


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return the digest of each file among these paths, by its path below a folder."""
    files = sorted(path for path in paths if path.is_file())
    return {path.relative_to(root).as_posix(): file_digest(path) for path in files}


def leaves_of(folder: Path) -> Iterator[Path]:
    """Yield all that is in a folder, links and pipes too, but no folder that has something."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir()):
            yield path


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; a pipe, a device or a folder is refused without waiting for it."""
    # What the name stands for can change after any look at it, so the open file is asked.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return open(handle, "rb")


def read_at_most(path: Path, most: int) -> bytes | None:
    """Read a file of at most so many bytes; None if it has more of them, or grew meanwhile."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size <= most else b""
    return content if len(content) == size else None


def open_new(path: Path, mode: int = SHARED) -> BinaryIO:
    """Open a file to write that is not there yet; what is there, a link as well, is refused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return open(os.open(path, flags, mode), "wb")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file be written under another name, then give it its own.

    Args:
        path: The file.
        write: Writes it where it is told to.
    """
    partial = scratch_beside(path)
    try:
        write(partial)
        sync_file(partial)
        put(partial, path)
    except SafetensorError as error:  # so its writer says that a disk is full
        raise OSError(errno.EIO, f"cannot be written ({error})", str(path)) from error
    finally:
        remove(partial)


def write_bytes(path: Path, content: bytes, mode: int = SHARED) -> None:
    """Write a small file whole."""

    def write(partial: Path) -> None:
        with open_new(partial, mode) as file:
            file.write(content)

    write_whole(path, write)


def own_folder(folder: Path, mode: int = 0o777) -> Path:
    """Return a folder that predbayes makes inside another; a link in its place is refused."""
    folder.mkdir(mode, parents=True, exist_ok=True)
    if folder.is_symlink():
        why = "it is a link, and nothing is written through one: remove it"
        raise OSError(errno.ELOOP, why, str(folder))
    return folder


@contextmanager
def make_folder(folder: Path, mode: int = 0o777) -> Iterator[Path]:
    """Let a folder be filled under another name, then give it its own."""
    scratch = scratch_beside(folder)
    try:
        scratch.mkdir(mode=mode)
        yield scratch
        sync_tree(scratch)
        put(scratch, folder)
    finally:
        remove(scratch)


def put(source: Path, target: Path) -> None:
    """Give a file or folder its name, on the disk when this returns."""
    source.replace(target)
    sync_folder(target.parent)


def scratch_beside(path: Path) -> Path:
    """Return a name to make ``path`` under; what killed processes left of it is removed."""
    with suppress(OSError):  # what is somebody else's stays; that there is no folder is said later
        for other in path.parent.iterdir():
            if other.name.startswith(TEMPORARY) and other.name[_MARK:] == f"-{path.name}":
                remove(other)
    return scratch_name(path)


def scratch_name(path: Path) -> Path:
    """Return a name beside a path that nobody can guess."""
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(_TOKEN)}-{path.name}")


def sync_file(path: Path) -> None:
    """Bring a file's bytes to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_tree(folder: Path) -> None:
    """Bring every file below a folder to the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sync_file(path)
        else:
            sync_folder(path)
    sync_folder(folder)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
