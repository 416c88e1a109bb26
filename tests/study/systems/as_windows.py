"""Run commands of `predbayes` with what Windows lacks taken away, and its ways put in place.

    python tests/study/systems/as_windows.py < commands.json        # a list of lists of arguments

There is no Windows where these tests run. What can be imitated on Linux is: modules and functions
of POSIX are gone; a file that is open or mapped can be neither renamed, replaced, cut nor removed;
a folder cannot be opened; modes protect nothing; names with a colon and the like are refused; text
is written with CR LF and, unless the writer says otherwise, in cp1252. Each command runs as the
program does, one after the other, and the first with another exit code than 0 ends this one.
"""

from __future__ import annotations

import builtins
import importlib
import io
import json
import mmap
import os
import shutil
import signal
import stat
import sys
import types
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch", "numpy", "pandas", "scipy.optimize", "scipy.stats", "safetensors.torch", "filelock",
    "pydantic", "typer", "rich.progress", "tomlkit", "cryptography.hazmat.primitives.serialization",
    "jinja2", "matplotlib.pyplot", "sklearn.ensemble", "sklearn.linear_model",
    "multiprocessing.pool", "concurrent.futures.process", "tempfile", "asyncio", "unittest.mock",
)  # fmt: skip
"""Imported before anything is taken away: their own projects test them on Windows."""

MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty")
FUNCTIONS = (
    "chown", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups",
    "getpgid", "getpriority", "getsid", "getuid", "killpg", "lchown", "memfd_create", "mkfifo",
    "mknod", "nice", "posix_fadvise", "posix_fallocate", "posix_spawn", "pread", "pwrite",
    "sched_getaffinity", "sched_setaffinity", "sendfile", "setpgid", "setsid", "setuid", "statvfs",
    "sync", "uname", "wait", "O_CLOEXEC", "O_DIRECTORY", "O_DSYNC", "O_NOCTTY", "O_NOFOLLOW",
    "O_NONBLOCK", "O_SYNC",
)  # fmt: skip
SIGNALS = ("SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "alarm", "setitimer")
FORBIDDEN = frozenset('<>:"|?*\\')
LEGACY = "cp1252"


def install() -> None:
    """Make this process like one on Windows, for whatever is imported afterwards."""
    for name in LIBRARIES:
        importlib.import_module(name)
    _keep_whole("filelock")
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for place, names in ((os, FUNCTIONS), (signal, SIGNALS)):
        for name in names:
            if hasattr(place, name):
                delattr(place, name)
    for name in [name for name in vars(mmap) if name.startswith("MADV_")]:
        delattr(mmap, name)
    shutil._use_fd_functions = shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    os.chmod, os.kill, os.getlogin = _chmod, _kill, lambda: "somebody"
    builtins.open = io.open = _open  # type: ignore[assignment]
    sys.addaudithook(_audit)
    there, sys.platform = sys.platform, "win32"
    try:
        importlib.import_module("predbayes.system")
    finally:
        sys.platform = there  # libraries load parts of theirs by it, when they are asked to


def _keep_whole(library: str) -> None:
    """Let a library have the system as it is: its lock stands for the one it has on Windows."""
    whole = types.SimpleNamespace(**vars(os))
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == library and hasattr(module, "os"):
            module.os = whole  # type: ignore[attr-defined]


def _chmod(path: Any, mode: int, **_options: Any) -> None:
    if not mode & stat.S_IWRITE:
        raise AssertionError(f"{path} would be read-only: nobody could remove its folder")


def _kill(pid: int, number: int) -> None:
    raise AssertionError(f"os.kill({pid}, {number}) would end the process")


_real_open = io.open


def _open(file: Any, mode: str = "r", *options: Any, **named: Any) -> Any:
    values = dict(zip(("buffering", "encoding", "errors", "newline"), options, strict=False))
    values |= named
    if "b" not in mode:
        if values.get("encoding") in (None, "locale"):
            values["encoding"] = LEGACY
        if values.get("newline") is None and set(mode) & set("wax+"):
            values["newline"] = "\r\n"
    return _real_open(file, mode, **values)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what Windows refuses; Python says beforehand what it is about to do."""
    if event == "open":
        path, _, flags = arguments
        if (
            isinstance(path, int)
            or path is None
            or os.fsdecode(path).startswith(("/proc/", "/dev/"))
        ):
            return
        _require_name(path, creates=bool(flags & os.O_CREAT))
        if flags & os.O_TRUNC and os.fsdecode(os.path.realpath(path)) in _mapped():
            raise PermissionError(13, "a mapped file cannot be cut", path)
        if os.path.isdir(path):
            raise PermissionError(13, "a folder cannot be opened", path)
    elif event == "os.mkdir":
        _require_name(arguments[0], creates=True)
    elif event in ("os.rename", "os.remove", "os.rmdir"):
        for path in arguments[: 2 if event == "os.rename" else 1]:
            _require_unused(path)
        if event == "os.rename":
            _require_name(arguments[1], creates=True)
            if os.path.isdir(arguments[1]):
                raise PermissionError(13, "a folder is not replaced", arguments[1])


def _require_name(path: Any, *, creates: bool) -> None:
    name = os.path.basename(os.fsdecode(path))
    if creates and (FORBIDDEN & set(name) or name != name.rstrip(". ")):
        raise OSError(22, "no file can have this name", path)


def _require_unused(path: Any) -> None:
    real = os.path.realpath(os.fsdecode(path))
    for other in _mapped() | _held():
        if other == real or other.startswith(real + os.sep):
            raise PermissionError(13, "it is being used by another process", path)


def _mapped() -> set[str]:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return {words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6}


def _held() -> set[str]:
    found = {os.getcwd()}
    for handle in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:
            continue  # the handle of the list itself
    return found


def main() -> None:
    """Run each command in turn."""
    install()
    from predbayes_study.cli.app import main as program

    for words in json.loads(sys.stdin.buffer.read()):
        sys.argv = ["predbayes", *words]
        sys.stdout.write(f"$ {' '.join(words)!a}\n")
        sys.stdout.flush()
        try:
            program()
        except SystemExit as done:
            if done.code:
                raise


if __name__ == "__main__":
    main()
