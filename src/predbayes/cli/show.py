"""How commands print what a check found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from predbayes.study.tables.problem import Finding


def show_findings(findings: Iterable[Finding], *, show_values: bool = False) -> None:
    """Print each finding on its line; values only for those who asked."""
    hidden = False
    for finding in findings:
        colour = "red" if finding.severity == "error" else "yellow"
        typer.secho(f"{finding.severity}: ", fg=colour, nl=False)
        typer.echo(finding.text)
        if finding.values and show_values:
            typer.echo(f"  values: {', '.join(map(repr, finding.values))}")
        hidden |= bool(finding.values) and not show_values
    if hidden:
        typer.echo("values are not shown; --show-values shows some of each, on this screen only")
