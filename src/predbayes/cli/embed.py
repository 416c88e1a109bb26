"""`predbayes embed`: vectors of a table's images, by the encoder that a plan names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predbayes.cli.plan import plan_file
from predbayes.cli.show import say
from predbayes.errors import PlanError

if TYPE_CHECKING:
    import pandas as pd

    from predbayes.study.plan.schema import Plan
    from predbayes.study.tables.sitefile import SiteFile


def embed_command(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan, a kit, or the folder of a result.")
    ],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table with names of images.")],
    site: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read DATA as this site.toml says."),
    ] = None,
    allow_network: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this encoder, which is code of a package."),
    ] = None,
) -> None:
    """Make vectors of images by the plan's encoder, in the table."""
    from predbayes.study.plan.networks import require_named
    from predbayes.study.tables.embed import embed
    from predbayes.study.tables.sitefile import SiteFile

    agreed = _plan(plan)
    own = None if site is None else SiteFile.load(site)
    allowed = {*(allow_network or ()), *(own.allow_networks if own else ())}
    if not agreed.encoded:
        raise PlanError("the plan names no encoder: its vectors are as the table has them")
    for column in agreed.encoded.values():
        require_named(f"encoder {column.encoder!r}", column.encoder, allowed)
    for file in embed(agreed, _table(agreed, data, own), data):
        say(f"wrote {file}")


def _plan(path: Path) -> Plan:
    """The plan in a file, a kit, or a result's folder."""
    from predbayes.study.plan.schema import PLAN_FILE, Plan
    from predbayes.study.result.model import model_folder, plan_of

    if path.is_dir() and not (path / PLAN_FILE).is_file():
        return plan_of(model_folder(path))
    return Plan.load(plan_file(path))


def _table(plan: Plan, data: Path, own: SiteFile | None) -> pd.DataFrame:
    """The table as it is, with the plan's names of columns that encoders take."""
    from predbayes.study.tables.form import read_reference
    from predbayes.study.tables.mapping import read_raw

    if own is None:
        return read_reference(data)
    names = {own.entry(plan, name).column: name for name in plan.encoded}
    return read_raw(own.file, data).rename(columns=names)
