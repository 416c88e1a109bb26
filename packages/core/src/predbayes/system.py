"""What systems do differently, in one place: Linux, macOS and Windows.

No other module asks which system it is on, or imports what one of them lacks; the linter holds that
line. A function here does what the system can, and says in its docstring what it does elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import re
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
    import pwd
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

NAME = sys.platform
"""Of the system, as markers of requirements call it."""

_WINDOWS = sys.platform == "win32"
_LINUX = sys.platform == "linux"
_PAUSE = 0.05  # seconds between two looks at a lock


class HeldError(Exception):
    """Another process holds the lock."""


@contextmanager
def held(path: Path, timeout: float = 0) -> Iterator[None]:
    """Hold a file as a lock, which a dead process does not; whoever comes second gets `HeldError`.

    It gets that after ``timeout`` seconds; with -1 it waits for the first.
    """
    if fcntl:
        # The same lock as FileLock's, at a tenth of its time, and never of a link's target.
        handle = open_in_place(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            end = time.monotonic() + timeout
            while not _locked(handle, wait=timeout == -1):
                if time.monotonic() >= end:
                    raise HeldError
                time.sleep(_PAUSE)
            yield
        finally:
            os.close(handle)  # which lets go
        return
    from filelock import FileLock, Timeout  # commands that lock nothing start without it

    try:
        with FileLock(path, timeout=timeout):
            yield
    except Timeout as error:
        raise HeldError from error


def _locked(handle: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def open_in_place(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file that stays where it is, to lock it or to add to it; a link is refused.

    Windows has no such flag, and only administrators make links there.
    """
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            why = "it is a link, and nothing is written through one: put the file itself there"
            raise OSError(errno.ELOOP, why, str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return handle


@contextmanager
def opened_alone(path: Path) -> Iterator[int]:
    """Open a file of one's own to read and to add to, while every other process waits.

    The file is its own lock where the system has such; elsewhere there is one beside it.
    """
    with nullcontext() if fcntl else held(path.with_name(f".lock-{path.stem}"), timeout=-1):
        handle = open_in_place(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            if fcntl:
                _locked(handle, wait=True)
            yield handle
        finally:
            os.close(handle)  # which lets go


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk; Windows has no such call."""
    if _WINDOWS:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def synced_at_once(folder: Path) -> bool:
    """Bring all of a folder's file system to the disk, on Linux; return whether that was done."""
    if not _LINUX:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        return bool(ctypes.CDLL(None).syncfs(handle) == 0)
    except (AttributeError, OSError):  # a C library without it
        return False
    finally:
        os.close(handle)


def take_room(file: BinaryIO, num_bytes: int) -> None:
    """Make a new file so large; on Linux alone its place on the disk is taken at once."""
    if _LINUX:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
    else:
        file.truncate(num_bytes)


def let_go(shared: mmap.mmap) -> None:
    """Let Linux have the memory of a file's map; what is read again comes from the file."""
    if _LINUX:
        shared.madvise(mmap.MADV_DONTNEED)  # of a shared map: nothing written is lost


@functools.cache
def user() -> str:
    """Return who runs this, by the system's own word and not by an environment variable."""
    if _WINDOWS:
        return os.getlogin()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container
        return str(os.getuid())


def runs(pid: int) -> bool:
    """Return whether there is such a process; on Windows, where asking would end it, say yes."""
    if _WINDOWS:
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter: no process has such a number
        return False
    except OSError:
        pass  # somebody else's, and so there
    return True


def quoted(argument: str | Path) -> str:
    """Return a word as the system's command line takes it.

    Examples:
        >>> quoted(Path("kit"))
        'kit'
    """
    text = str(argument)
    if not _WINDOWS:
        return shlex.quote(text)
    return text if re.fullmatch(r"[\w.:\\/-]+", text) else f'"{text}"'
