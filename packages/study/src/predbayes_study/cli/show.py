"""What commands share: arguments, how they print what they found, and what Ctrl-C does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predbayes.errors import StudyError, UploadError
from predbayes.system import quoted
from predbayes.text import printable

if TYPE_CHECKING:
    from predbayes_study.kit.kit import Kit
    from predbayes_study.rules import Finding
    from predbayes_study.trust.coordinator import CoordinatorKey

KitArgument = Annotated[Path, typer.Argument(metavar="KIT", help="The kit from the coordinator.")]
DataArgument = Annotated[Path, typer.Argument(metavar="DATA", help="The site's table.")]
SiteOption = Annotated[Path, typer.Option("--site", metavar="FILE", help="The site's site.toml.")]

PassphraseOption = Annotated[
    bool,
    typer.Option(
        "--passphrase", help="Ask for a passphrase, without which nobody can use the key."
    ),
]

_STOPPED = 130  # the exit code after Ctrl-C


StudyOption = Annotated[
    Path, typer.Option("--study", envvar="PREDBAYES_STUDY", help="The study's folder.")
]
DEFAULT_STUDY = Path("study")
DEFAULT_SITE = Path("site.toml")


def say(*lines: str, err: bool = False) -> None:
    """Print lines; what came from a file or over a wire cannot move the cursor or add a line."""
    for line in lines:
        typer.echo(printable(line, None), err=err)


def read_out(kit: Kit) -> None:
    """Print the words that people read to each other: the last lines, with nothing below."""
    key = kit.plan.coordinator
    words = "none: nothing of the coordinator's is signed" if key is None else key.fingerprint
    say(f"coordinator's key: {words}")
    say(f"fingerprint: {kit.fingerprint}")


def show_findings(findings: Iterable[Finding], *, show_values: bool = False) -> None:
    """Print each finding on its line; values only for those who asked."""
    hidden = False
    for finding in findings:
        colour = "red" if finding.severity == "error" else "yellow"
        typer.secho(f"{finding.severity}: ", fg=colour, nl=False)
        say(finding.text)
        if finding.values and show_values:
            say(f"  values: {', '.join(map(repr, finding.values))}")
        hidden |= finding.hides or (bool(finding.values) and not show_values)
    if hidden:
        say(
            "values, lines and exact counts are not shown; --show-values shows them, on this "
            "screen only"
        )


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], **style: Any) -> None:
    """Print a table that fits the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, **style)
    for row in rows:
        table.add_row(*(Text(printable(cell, None)) for cell in row))
    Console(soft_wrap=True, highlight=False).print(table)


def new_passphrase() -> bytes:
    """Return a passphrase for a new key: the one of the environment, or one that is typed twice."""
    from predbayes_study.trust.passphrase import (
        encode_passphrase,
        passphrase_in_store,
        require_long,
    )

    found = passphrase_in_store()
    if found is None:
        typed = typer.prompt("passphrase", hide_input=True, confirmation_prompt=True, err=True)
        found = encode_passphrase(typed)
    return require_long(found)


def say_held_back(path: Path, option: str) -> None:
    """Say how a file that waits for an approval is approved."""
    say(f"held back until it is approved: predbayes site approve {quoted(path)} --by NAME{option}")


def ask_passphrase(path: Path) -> str:
    """Ask for the passphrase of a key."""
    typed: str = typer.prompt(f"passphrase of {path}", hide_input=True, err=True)
    return typed


@contextmanager
def stoppable() -> Iterator[None]:
    """End the command with one line after Ctrl-C, for work that a second call continues."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here", err=True)
        raise typer.Exit(_STOPPED) from None


@contextmanager
def watched() -> Iterator[None]:
    """Show on stderr what goes on inside the block: by a bar, or by lines without a terminal."""
    import sys

    from predbayes.progress import Lines, listening

    is_terminal = sys.stderr.isatty()
    lines = [] if is_terminal else [Lines(lambda line: say(line, err=True))]
    with listening(lines, bar=is_terminal):
        yield


def save_key_pair(key: CoordinatorKey, out: Path, *, passphrase: bool) -> tuple[Path, Path]:
    """Write a key and its public half beside it; return where they are."""
    private, public = (out.with_name(f"{out.name}{end}") for end in (".key", ".pub"))
    key.save(private, new_passphrase() if passphrase else None)
    key.public.save(public)
    return private, public


def say_taken_in(answers: Iterable[tuple[str, Any]]) -> None:
    """Say of each file, by its name, what became of it; fail if one was refused."""
    num_files = num_refused = 0
    for name, accepted in answers:
        num_files += 1
        if isinstance(accepted, UploadError):
            num_refused += 1
            say(f"refused: {accepted}", err=True)
        elif accepted is None:
            say(f"{printable(name)}: in already")
        else:
            say(f"{printable(name)}: {accepted.site}, {accepted.rows_in_words}, in")
    if num_refused:
        raise StudyError(f"{num_refused} of {num_files} files were refused")
