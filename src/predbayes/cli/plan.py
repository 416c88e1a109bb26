"""`predbayes plan`: draft a study's plan from a table, check it, freeze it into a kit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predbayes.study.wording import quoted

if TYPE_CHECKING:
    from rich.console import Console

    from predbayes.study.tables.problem import Finding

app = typer.Typer(help="Draft, check and freeze a study's plan.", no_args_is_help=True)

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A plan in TOML, or a folder with a plan.toml.")
]


@app.command("new")
def new_plan(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="The reference rows: a CSV or Parquet file.")
    ],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The plan to write.")] = Path(
        "plan.toml"
    ),
    name: Annotated[
        str | None, typer.Option(help="Name of the study. Default: that of DATA.")
    ] = None,
) -> None:
    """Draft a plan from a table; you fill in what no table can tell."""
    from predbayes.errors import PlanError
    from predbayes.study.kit.draft import draft, study_name
    from predbayes.study.plan.text import dump
    from predbayes.study.tables.coding import read_frame

    if out.exists():
        raise PlanError(f"{out} exists already; choose another name with --out")
    drafted = draft(
        read_frame(data),
        name=study_name(data.stem) if name is None else name,
        target=target,
        file=_relative(data, out),
    )
    out.write_bytes(dump(drafted.plan).encode())
    plan = drafted.plan
    what = f"{plan.num_outputs} classes" if plan.classification else "regression"
    console = _console()
    console.print(f"wrote {out}: {target} ({what}) from {len(plan.columns)} columns")
    for note in drafted.notes:
        console.print(f"  - {note}")
    console.print(f"next: edit it, then predbayes plan check {quoted(out)}")


@app.command("check")
def check_plan(plan: PlanFile) -> None:
    """List all that is wrong or unwise; show a kit's fingerprint."""
    from predbayes.errors import PlanError
    from predbayes.study.kit.kit import Kit
    from predbayes.study.kit.review import check, upload_bytes
    from predbayes.study.plan.schema import Plan
    from predbayes.study.wording import bytes_readable, counted

    path = _plan_file(plan)
    read = Plan.load(path)
    advice = check(read, path.parent)
    console = _console()
    _show(console, advice)
    num_errors = sum(one.severity == "error" for one in advice)
    if num_errors:
        raise PlanError(f"{path} has {counted(num_errors, 'error')}")
    kit = None if read.frozen is None else Kit.load(path.parent)
    console.print(
        f"{path}: no errors, {counted(len(advice), 'warning')}; one site sends about "
        f"{bytes_readable(upload_bytes(read), places=0)}"
    )
    if kit is None:
        console.print(f"next: predbayes plan freeze {quoted(path)} --out KIT")
    else:
        console.print(f"fingerprint: {kit.fingerprint}")


@app.command("freeze")
def freeze_plan(
    plan: PlanFile,
    out: Annotated[Path, typer.Option(metavar="KIT", help="A new folder, for the sites.")],
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File for the labels, not for sites. Default: KIT-labels.json."
        ),
    ] = None,
) -> None:
    """Write the kit for the sites, and the labels for you alone."""
    from predbayes.errors import PlanError
    from predbayes.study.kit.kit import freeze, labels_path
    from predbayes.study.kit.review import check
    from predbayes.study.plan.schema import Plan
    from predbayes.study.wording import bytes_readable, counted

    path = _plan_file(plan)
    errors = [
        one for one in check(Plan.load(path), path.parent, freezing=True) if one.severity == "error"
    ]
    console = _console()
    _show(console, errors)
    if errors:
        raise PlanError(f"{path} has {counted(len(errors), 'error')}; nothing was written")
    labels = labels_path(out) if labels is None else labels
    kit = freeze(path, out, labels)
    console.print(f"wrote {out} for the sites ({bytes_readable(kit.num_bytes, places=0)})")
    console.print(f"wrote {labels}: labels, to be kept here; a site must not have them")
    console.print(f"fingerprint: {kit.fingerprint}")
    console.print(f"next: predbayes study init {quoted(out)} --labels {quoted(labels)}")


def _console() -> Console:
    """Lines as they are: no wrapping, no colours for numbers, no markup in a column's name."""
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def _show(console: Console, advice: Iterable[Finding]) -> None:
    for one in advice:
        style = "bold red" if one.severity == "error" else "yellow"
        console.print(f"{one.severity}: ", style=style, end="")
        console.print(one.text)


def _plan_file(path: Path) -> Path:
    from predbayes.study.kit.kit import PLAN_FILE

    return path / PLAN_FILE if path.is_dir() else path


def _relative(data: Path, out: Path) -> str:
    """Return the path of the data relative to the plan, with slashes on every system."""
    try:
        return Path(os.path.relpath(data.resolve(), out.resolve().parent)).as_posix()
    except ValueError:  # another drive
        return data.resolve().as_posix()
