"""`predbayes predict`: predict a table with a study's model; the core package is enough."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predbayes.errors import DataError
from predbayes_study.cli.show import require_place, say
from predbayes_study.cli.site_check import site_log
from predbayes_study.wording import counted

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from predbayes_study.plan.schema import Plan
    from predbayes_study.result.model import CalibratedModel
    from predbayes_study.tables.sitefile import SiteFile
    from predbayes_study.trust.signing import PublicKey

_ROW = "row"


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
    from predbayes_study.result.model import model_folder
    from predbayes_study.result.signed import load_signed
    from predbayes_study.tables.coding import Encoder, sound
    from predbayes_study.tables.sitefile import SiteFile

    _require_writable(out, data)
    own = None if site is None else SiteFile.load(site)
    allowed = (*(allow_network or ()), *(own.allow_networks if own else ()))
    key = None if own is None else _public_key(own)
    calibrated = load_signed(model_folder(model), allowed, key)
    if calibrated.adjustment is not None and key is None:
        _say_whose(model_folder(model))
    raw, frame = _read(calibrated.plan, data, own)
    examined = sound(calibrated.plan, frame, outside="clip")
    inputs = Encoder(calibrated.plan).in_blocks(examined)
    predictions = calibrated.told(inputs, frame.index, level)
    if coverage is not None:
        predictions = predictions.assign(**_promised(model, calibrated, inputs, coverage))
    table = _beside(raw, keep or (), predictions)
    _write(table, out)
    if site is not None:
        site_log(site).note("predict", table=data.name, model=calibrated.weights_digest())
    # The model predicted them all the same, so whoever reads the predictions must know.
    odd = examined.oddities
    note = f"; odd, but predicted: {'; '.join(map(str, odd))}" if odd else ""
    say(f"wrote {counted(len(table), 'row')} to {out}{note}")


def _promised(
    path: Path, model: CalibratedModel, inputs: Tensor, coverage: float
) -> dict[str, Any]:
    """Sets or intervals, from what sites counted with this very model."""
    import numpy as np

    from predbayes_study.result.model import model_folder
    from predbayes_study.result.promises import promised
    from predbayes_study.result.signed import signed_result

    if model.adjustment is not None:
        raise DataError(
            "--coverage: nothing is promised for an adopted model, because sites counted with the "
            "common one; give the folder of the study's result"
        )
    at_sites = signed_result(model_folder(path)).at_sites
    predictive = model.predictive(inputs)
    sums = None if at_sites is None else at_sites.scores
    found = promised(model.plan, predictive, sums, coverage)
    return {name: np.asarray(values) for name, values in found.items()}


def _public_key(own: SiteFile) -> PublicKey | None:
    """The site's public key, which needs no passphrase; None if it has none yet."""
    from predbayes_study.trust.signing import PublicKey

    path = own.key_path.with_suffix(".pub")
    return PublicKey.load(path) if path.exists() else None


def _say_whose(folder: Path) -> None:
    """Say who adjusted a model, where nobody here can know the key."""
    from predbayes_study.result.signed import adoption_of
    from predbayes_study.trust.signing import PublicKey

    if (adoption := adoption_of(folder)) is not None:
        say(
            f"adjusted by the site {adoption.site}, key {PublicKey(adoption.key).fingerprint}, and "
            "not by the coordinator; at that site --site compares the key"
        )


def _read(plan: Plan, data: Path, own: SiteFile | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table as it is, and in the plan's columns and units."""
    from predbayes_study.tables.cells import read_frame
    from predbayes_study.tables.mapping import read_raw, read_site_table
    from predbayes_study.tables.vectorcells import with_vectors

    if own is None:
        frame = read_frame(data)
        return frame, with_vectors(plan, frame, data)
    return read_raw(own.file, data), read_site_table(plan, own, data, target=False)


def _require_writable(out: Path, data: Path) -> None:
    """Refuse what cannot be written before any work is done."""
    from predbayes.optional import require

    if out.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(f"{out.name}: give --out a name that ends in .csv or .parquet")
    require_place(out, data)
    if out.suffix.lower() == ".parquet":
        require("pyarrow", "study[parquet]")


def _beside(frame: pd.DataFrame, kept: Sequence[str], predictions: pd.DataFrame) -> pd.DataFrame:
    """Row numbers, columns that the user wants back, and predictions."""
    table = predictions.reset_index(drop=True)
    for name in reversed(kept):
        if name not in frame.columns:
            raise DataError(f"--keep {name}: the table has no such column")
        if name in table.columns or name == _ROW:
            raise DataError(f"--keep {name}: a column of the result has that name")
        table.insert(0, name, frame[name].array)
    table.insert(0, _ROW, range(1, len(table) + 1))
    return table


def _write(table: pd.DataFrame, out: Path) -> None:
    from predbayes_study.tables.textfile import to_csv

    if out.suffix.lower() == ".parquet":
        table.to_parquet(out, index=False, engine="pyarrow")
    else:
        out.write_bytes(to_csv(table, "%.6g").encode())
