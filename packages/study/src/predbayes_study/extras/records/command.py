"""`predbayes study export`: a study for the record, in one archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import predbayes_study
from predbayes.errors import StudyError
from predbayes_study.cli.show import DEFAULT_STUDY, StudyOption, say


def export_command(
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new file .zip.")],
    study: StudyOption = DEFAULT_STUDY,
    handed: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="SITE=DIR",
            help="A folder with a site's approvals, egress page, receipts; may be repeated.",
        ),
    ] = None,
    licence: Annotated[str, typer.Option(help="Under which it is given out.")] = "",
) -> None:
    """Write an RO-Crate: plan, ledger, results, receipts; no data."""
    from predbayes_study.extras.records.export import export

    folders = {}
    for text in handed or []:
        site, sign, folder = text.partition("=")
        if not (site and sign and folder):
            raise StudyError(f"--from takes SITE=DIR, not {site}")
        folders[site] = Path(folder)
    files = export(predbayes_study.Study(study), out, folders, licence)
    receipts, own = (sum(n.startswith(f"{b}/") for n in files) for b in ("receipts", "sites"))
    say(
        f"{out}: {len(files)} files, of them {receipts} receipts and {own} from sites; no row, no "
        "label and nothing that a site sent is in it"
    )
    say("to check it: unpack it, then predbayes study verify --study FOLDER")
