"""`predbayes predict`: predict a table with a study's model; the core package is enough."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predbayes_study.cli.show import say
from predbayes_study.wording import counted


def predict_command(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The folder of a result, or of its model.")
    ],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A CSV or Parquet file.")],
    out: Annotated[Path, typer.Option(help="The CSV or Parquet file to write.")],
    level: Annotated[
        float, typer.Option(help="Probability of the interval from low to high.")
    ] = 0.95,
    coverage: Annotated[
        float | None,
        typer.Option(help="Add a set, or lower and upper, that holds the truth so often."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Copy this column of DATA; may be repeated."),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read DATA as this site.toml says, if it is a site's table."
        ),
    ] = None,
    allow_network: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this network of a consortium's own."),
    ] = None,
) -> None:
    """Predict each row of a table, with probabilities or intervals."""
    from predbayes_study.site.predict import predict_file
    from predbayes_study.site.site import Site

    own = None if site is None else Site(site)
    written = predict_file(
        model,
        data,
        out,
        level=level,
        coverage=coverage,
        keep=keep or (),
        site=own,
        allow_networks=allow_network or (),
    )
    if written.adopted_by:
        say(
            f"adjusted by the site {written.adopted_by}, and not by the coordinator; at that site "
            "--site compares the key"
        )
    # The model predicted them all the same, so whoever reads the predictions must know.
    odd = f"; odd, but predicted: {'; '.join(written.oddities)}" if written.oddities else ""
    say(f"wrote {counted(len(written.table), 'row')} to {out}{odd}")
