"""Copies of bounded size, files that reach the disk together, and a lock for one process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from predbayes.errors import StudyError
from predbayes.files import PRIVATE, open_new, open_regular, read_at_most, sync_file
from predbayes.system import HeldError, held, sync_folder, synced_at_once

LOCK = ".lock"  # of one step
RUN_LOCK = ".lock-run"  # of a run over a network, which takes many steps
SMALL = 1 << 22  # bytes of a file that is looked at in memory
_CHUNK = 1 << 20
_MANY_FILES = 32


def copy_bounded(source: Path, target: Path, max_bytes: int) -> int:
    """Copy a file; one with more than ``max_bytes`` is refused."""
    try:
        with open_regular(source) as reader, open_new(target, PRIVATE) as writer:
            require_size(os.fstat(reader.fileno()).st_size, max_bytes)
            copied = 0
            while chunk := reader.read(_CHUNK):
                copied += len(chunk)
                require_size(copied, max_bytes)  # it may have grown meanwhile
                writer.write(chunk)
    except OSError as error:
        raise StudyError(f"it cannot be copied: {error.strerror}") from error
    except ValueError as error:
        raise StudyError("no file has such a name") from error
    return copied


def read_small(source: Path) -> bytes | None:
    """Read a small file; None if it is large."""
    try:
        return read_at_most(source, SMALL)
    except OSError as error:
        raise StudyError(f"it cannot be copied: {error.strerror}") from error
    except ValueError as error:
        raise StudyError("no file has such a name") from error


def sync_files(paths: Sequence[Path]) -> None:
    """Bring files of one folder, and their names, to the disk.

    Many are brought there by one call for the whole file system, where there is such a call.
    """
    if not paths:
        return
    if len(paths) < _MANY_FILES or not synced_at_once(paths[0].parent):
        for path in paths:
            sync_file(path)
        sync_folder(paths[0].parent)


def require_size(num_bytes: int, max_bytes: int) -> None:
    """Refuse more bytes than these."""
    if num_bytes > max_bytes:
        raise StudyError(f"it has more than the {max_bytes:,} bytes that the plan allows")


@contextmanager
def locked(folder: Path, name: str = LOCK, timeout: float = 0) -> Iterator[None]:
    """Hold a folder's lock; a second process is refused, and a dead one holds nothing.

    The second process is refused after ``timeout`` seconds; with -1 it waits for the first.
    """
    try:
        with held(folder / name, timeout):
            yield
    except HeldError as error:
        raise _at_work(folder) from error


def _at_work(folder: Path) -> StudyError:
    return StudyError(f"another command is at work on {folder.name}; try again later")
