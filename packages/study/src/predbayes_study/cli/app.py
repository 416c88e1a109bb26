"""The command `predbayes`: its groups, and what every command does about errors.

A `PredbayesError` is for the user: one line on stderr and exit code 2, as for a mistyped option.
Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer
import typer.core

import predbayes
from predbayes.errors import PredbayesError
from predbayes_study.cli import demo, doctor, model, plan, site, study
from predbayes_study.cli.group import Group
from predbayes_study.cli.show import ask_passphrase, say
from predbayes_study.trust.passphrase import asking

# Plain help appears in half the time. There is no public switch: with `rich_markup_mode=None` alone
# typer 0.20, to which flwr holds us, loads rich all the same and writes "\\[default: ...]".
typer.core.HAS_RICH = False

app = typer.Typer(
    name="predbayes",
    cls=Group,
    help="Calibrated one-round federated learning.",
    no_args_is_help=True,
    suggest_commands=False,  # click does
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo_command)
app.add_typer(plan.app, name="plan")
app.add_typer(study.app, name="study")
app.add_typer(site.app, name="site")
app.command("predict")(model.predict_command)
app.command("doctor")(doctor.doctor_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"predbayes {predbayes.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Calibrated one-round federated learning."""


def main() -> None:
    """Run the command line."""
    asking.append(ask_passphrase)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What goes into a file or a pipe may be in a code page that lacks a letter of a name.
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except PredbayesError as error:
        say(f"predbayes: {error}", err=True)
        sys.exit(2)
    except OSError as error:  # a path that cannot be written or read
        where = f"{error.filename}: " if error.filename else ""  # a full disk has no name
        say(f"predbayes: {where}{error.strerror or error}", err=True)
        sys.exit(2)
