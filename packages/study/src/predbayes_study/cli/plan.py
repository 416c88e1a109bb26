"""`predbayes plan`: draft a study's plan from a table, check it, freeze it into a kit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import predbayes_study
from predbayes.errors import PlanError
from predbayes.system import quoted
from predbayes_study.cli.group import Group
from predbayes_study.cli.show import read_out, say, show_findings
from predbayes_study.wording import bytes_readable, counted

app = typer.Typer(
    cls=Group,
    help="Draft, check and freeze a study's plan.",
    no_args_is_help=True,
    suggest_commands=False,
)

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A plan in TOML, or a folder with a plan.toml.")
]


@app.command("new")
def new_plan(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="The reference rows: CSV, Excel, SPSS, Stata, SAS or Parquet."
        ),
    ],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The plan to write.")] = Path(
        "plan.toml"
    ),
    name: Annotated[
        str | None, typer.Option(help="Name of the study. Default: that of DATA.")
    ] = None,
    event: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Of a time to an event: the column that says whether it came.",
        ),
    ] = "",
    classes: Annotated[
        str, typer.Option(metavar="A,B,...", help="The target's classes, if no row has a label.")
    ] = "",
    centre: Annotated[
        float | None, typer.Option(help="Of a number without labels: its mean, roughly.")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(min=0, help="And its standard deviation, roughly.")
    ] = None,
) -> None:
    """Draft a plan from a table; you fill in what no table can tell."""
    from predbayes.files import write_bytes
    from predbayes_study.kit.draft import Unlabelled, draft, study_name
    from predbayes_study.plan.text import dump
    from predbayes_study.tables.reading import read_reference
    from predbayes_study.tables.vectors import guess_vectors
    from predbayes_study.tasks import task_of

    if out.exists():
        raise PlanError(f"{out} exists already; choose another name with --out")
    name = study_name(data.stem) if name is None else name
    told = tuple(word.strip() for word in classes.split(",") if word.strip())
    unlabelled = Unlabelled(told, centre, scale)
    rows = read_reference(data)
    drafted = draft(
        rows,
        name=name,
        target=target,
        file=relative_to_plan(data, out),
        unlabelled=None if unlabelled == Unlabelled() else unlabelled,
        event=event,
        vectors=guess_vectors(rows, data),
    )
    write_bytes(out, dump(drafted.plan).encode())
    plan = drafted.plan
    say(f"wrote {out}: {target} ({task_of(plan).in_words(plan)}) from {len(plan.columns)} columns")
    for note in drafted.notes:
        say(f"  - {note}")
    say(f"next: edit it, then predbayes plan check {quoted(out)}")


@app.command("check")
def check_plan(plan: PlanFile) -> None:
    """List all that is wrong or unwise; show a kit's fingerprint."""
    path = plan_file(plan)
    read = predbayes_study.Plan.load(path)  # a slip in the text is told before arrays are imported

    from predbayes_study.kit.review import Review, check
    from predbayes_study.payload import upload_bytes
    from predbayes_study.rules import errors_of

    findings = check(Review(read, path.parent))
    show_findings(findings)
    if errors := errors_of(findings):
        raise PlanError(f"{path} has {counted(len(errors), 'error')}")
    kit = None if read.frozen is None else predbayes_study.Kit.load(path.parent)
    say(
        f"{path}: no errors, {counted(len(findings), 'warning')}; one site sends about "
        f"{bytes_readable(upload_bytes(read), places=0)}"
    )
    if kit is None:
        say(f"next: predbayes plan freeze {quoted(path)} --out KIT")
    else:
        read_out(kit)


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
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your coordinator.pub, as `study key` wrote it."),
    ] = None,
) -> None:
    """Write the kit for the sites, and the labels for you alone."""
    from predbayes_study.kit.kit import freeze, labels_path
    from predbayes_study.kit.review import UnsoundPlanError
    from predbayes_study.trust.coordinator import CoordinatorPublicKey

    path = plan_file(plan)
    labels = labels_path(out) if labels is None else labels
    try:
        public = None if key is None else CoordinatorPublicKey.load(key)
        kit = freeze(path, out, labels, key=public)
    except UnsoundPlanError as unsound:
        show_findings(unsound.errors)
        num_errors = counted(len(unsound.errors), "error")
        raise PlanError(f"{path} has {num_errors}; nothing was written") from unsound
    size = bytes_readable(kit.num_bytes, places=0)
    signed = "" if public is None else "; `study init` signs it, and the signed one goes to them"
    say(f"wrote {out} for the sites ({size}){signed}")
    say(f"wrote {labels}: labels, to be kept here; a site must not have them")
    private = "" if key is None else f" --key {quoted(key.with_suffix('.key'))}"
    say(f"next: predbayes study init {quoted(out)} --labels {quoted(labels)}{private}")
    read_out(kit)


def plan_file(path: Path) -> Path:
    """Return the file of a plan, which may be given by its folder."""
    from predbayes_study.plan.schema import PLAN_FILE

    return path / PLAN_FILE if path.is_dir() else path


def relative_to_plan(data: Path, out: Path) -> str:
    """Return the path of the data relative to the plan, with slashes on every system."""
    try:
        return Path(os.path.relpath(data.resolve(), out.resolve().parent)).as_posix()
    except ValueError:  # another drive
        return data.resolve().as_posix()
