"""Run `predbayes` in this process, because a process for each command takes seconds to begin."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
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


def invoke(*arguments: object, typed: str | None = None) -> Result:
    """Run a command. Its result has the error that stopped it."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)


def run(line: str, typed: str | None = None) -> Result:
    """Run a command line, as `invoke` does."""
    return invoke(*shlex.split(line), typed=typed)


def done(line: str) -> list[str]:
    """Return the lines of a command that went well."""
    result = run(line)
    assert result.exit_code == 0, result.exception
    return result.output.splitlines()


def told(lines: list[str], start: str) -> str:
    """Return the command that a line of the output names."""
    (line,) = [line for line in lines if line.startswith(start)]
    return line.partition("predbayes ")[2]


# Runs each command of a JSON list in one process, and names what it loaded.
_PROBE = """
import json, sys
from predbayes_study.cli.app import main
for command, code in json.load(sys.stdin):
    sys.argv = ["predbayes", *command]
    try:
        main()
    except SystemExit as done:
        assert (done.code or 0) == code, (command, done.code)
    found = sorted(set(HEAVY) & set(sys.modules))
    assert not found, (command, found)
"""


def without(
    heavy: Sequence[str], commands: Sequence[tuple[list[str], int]], cwd: Path | None = None
) -> str:
    """Run commands, each with its exit code, that load none of these packages."""
    code = f"HEAVY = {heavy!r}\n{_PROBE}"
    line, given = [sys.executable, "-c", code], json.dumps(commands)
    done = subprocess.run(line, input=given, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
