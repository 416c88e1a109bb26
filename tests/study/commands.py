"""Run `predbayes` in this process, because a process for each command takes seconds to begin."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from predbayes_study.cli.app import main


class Done(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


def predbayes(*arguments: object, cwd: Path | None = None) -> Done:
    """Run a command line. An error that isn't a user's escapes."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["predbayes", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        if cwd is not None:
            patch.chdir(cwd)
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as done:
            main()
    return Done(int(done.value.code or 0), out.getvalue(), err.getvalue())


def refused(done: Done) -> str:
    """Return the one line of an error."""
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert done.err.startswith("predbayes: ")
    return done.err
