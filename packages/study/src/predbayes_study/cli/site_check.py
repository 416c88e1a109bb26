"""`predbayes site check`: say what the plan asks of a site, and check its table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import predbayes_study
from predbayes.errors import DataError
from predbayes.system import quoted
from predbayes_study.cli.show import (
    DEFAULT_SITE,
    DataArgument,
    KitArgument,
    SiteOption,
    read_out,
    say,
    show_findings,
)
from predbayes_study.wording import counted

if TYPE_CHECKING:
    from predbayes_study.plan.schema import Plan
    from predbayes_study.site.site import Site
    from predbayes_study.store.audit import AuditLog

NameOption = Annotated[
    str | None, typer.Option(help="With --suggest: the site's name in the study.")
]
SuggestOption = Annotated[
    bool, typer.Option("--suggest", help="Draft site.toml from the site's table.")
]


def check_command(
    kit: KitArgument,
    data: DataArgument,
    site_file: SiteOption = DEFAULT_SITE,
    name: NameOption = None,
    suggest: SuggestOption = False,
    show_values: Annotated[
        bool,
        typer.Option(
            "--show-values", help="Show values, lines and counts. Do not mail this output."
        ),
    ] = False,
) -> None:
    """Say what the plan asks, and what in the table does not fit."""
    from predbayes_study.plan.schema import PLAN_FILE, Plan
    from predbayes_study.site.site import Site, asked

    site = Site(site_file)
    # A slip in plan or site.toml is refused at once: to read the kit imports arrays.
    if (kit / PLAN_FILE).exists():
        Plan.load(kit / PLAN_FILE)
    if site_file.exists() and not suggest:
        _ = site.file
    loaded = predbayes_study.Kit.load(kit)
    say(*asked(loaded.plan))
    arguments = f"{quoted(kit)} {quoted(data)}"
    again = f"predbayes site check {arguments}{site.option}"
    try:
        if suggest:
            show_draft(site, loaded.plan, data, name, again)
            return
        if not site_file.exists():
            say(f"there is no {site_file}, so your table must have the plan's names and units")
            say(f"to have one drafted: {again} --suggest --name NAME")
        checked = site.check(loaded, data, show_values=show_values)
        say(*checked.summary)
        show_findings(checked.findings, show_values=show_values)
        warnings = counted(len(checked.warnings), "warning")
        if checked.errors:
            errors = counted(len(checked.errors), "error")
            raise DataError(f"{data.name} does not fit yet: {errors}, {warnings}")
        say(f"{data.name} fits the plan: no errors, {warnings}")
        if site_file.exists():
            train = f"train {arguments} --out out"
            may_train = site.approvals.may_train(loaded)
            command = train if may_train else f"approve {quoted(kit)} --by NAME"
            say(f"next: predbayes site {command}{site.option}")
        else:
            say(f"train needs {site_file} and a key as well, with your name in the study:")
            say(f"next: {again} --suggest --name NAME; predbayes site key NAME")
    finally:
        read_out(loaded)


def show_draft(site: Site, plan: Plan, data: Path, name: str | None, again: str) -> None:
    """Draft or complete site.toml, and say what to look at."""
    what = "wrote {}: a draft"
    if site.path.exists():
        what = "completed {}: what was there is as it was"
    drafted = site.draft(plan, data, name)
    look = "look at" if drafted.notes else "nothing in it is a guess"
    say(f"{what.format(site.path)}; {look}")
    for note, line in zip(drafted.notes, drafted.lines, strict=True):
        say(f"  - line {line}: {note}" if line else f"  - {note}")
    say(f"next: {'edit it, then ' if drafted.notes else ''}{again}")


def site_log(path: Path) -> AuditLog:
    """Return the audit log of the site with this site.toml."""
    from predbayes_study.site.site import Site

    return Site(path).log


def site_option(path: Path) -> str:
    """Return the option with which a command finds this site.toml."""
    from predbayes_study.site.site import Site

    return Site(path).option
