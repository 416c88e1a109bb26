"""Run `predbayes` in this process, because a process for each command takes seconds to begin."""

from __future__ import annotations

import io
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result
from typer.testing import CliRunner

from predbayes_study.cli.app import app, main


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


def run(line: str, typed: str | None = None) -> Result:
    """Run a command line. Its result has the error that stopped it."""
    return CliRunner().invoke(app, shlex.split(line), input=typed)


def done(line: str) -> list[str]:
    """Return the lines of a command that went well."""
    result = run(line)
    assert result.exit_code == 0, result.exception
    return result.output.splitlines()


def told(lines: list[str], start: str) -> str:
    """Return the command that a line of the output names."""
    (line,) = [line for line in lines if line.startswith(start)]
    return line.partition("predbayes ")[2]
