"""Predict the rows of a table with a study's model, for a file beside them.

The table has the plan's columns, or it is a site's own, which its site.toml translates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from predbayes.errors import DataError
from predbayes.files import write_bytes, write_whole
from predbayes.optional import require
from predbayes_study.result.signed import load_signed, signed_result
from predbayes_study.result.statistics.coverage import promised
from predbayes_study.site.site import Site, require_place
from predbayes_study.tables.coding import Encoder, sound
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.reading import read_frame, read_raw, to_csv
from predbayes_study.tables.vectors import with_vectors
from predbayes_study.trust.signing import PublicKey

_ROW = "row"


@dataclass(frozen=True, slots=True)
class Predicted:
    """A table of predictions, and what to know about it."""

    table: pd.DataFrame  # row number, columns that were kept, predictions
    oddities: tuple[str, ...]  # cells that were predicted as if they were in the plan's range
    adopted_by: str  # the site that adjusted the model, where nobody here can know its key


def predict_file(
    model: Path,
    data: Path,
    out: Path,
    *,
    level: float = 0.95,
    coverage: float | None = None,
    keep: Sequence[str] = (),
    site: Site | None = None,
    allow_networks: Sequence[str] = (),
) -> Predicted:
    """Predict each row of a table, and write the predictions.

    Args:
        model: Folder of a result or of its model.
        data: The table.
        out: A file .csv or .parquet.
        level: Probability of the interval from low to high.
        coverage: Share of truths that an added set or interval holds, as sites counted; or None.
        keep: Columns of the table to copy.
        site: The site whose table it is.
        allow_networks: Names of networks of the consortium's own that may run.
    """
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(f"{out.name}: give --out a name that ends in .csv or .parquet")
    require_place(out, data)
    if out.suffix.lower() == ".parquet":
        require("pyarrow", "study[parquet]")
    own, key = None if site is None else site.file, None
    if own is not None:
        allow_networks = (*allow_networks, *own.allow_networks)
        public = own.key_path.with_suffix(".pub")  # which needs no passphrase
        key = PublicKey.load(public) if public.exists() else None
    found = load_signed(model, tuple(allow_networks), key)
    calibrated, adoption = found.model, found.adoption
    plan, adopted_by = calibrated.plan, ""
    if adoption is not None and key is None:
        adopted_by = f"{adoption.site}, key {PublicKey(adoption.key).fingerprint}"
    if own is None:
        raw = read_frame(data)
        frame = with_vectors(plan, raw, data)
    else:
        raw, frame = read_raw(own.file, data), read_site_table(plan, own, data, target=False)
    examined = sound(plan, frame, outside="clip")
    inputs = Encoder(plan).in_blocks(examined)
    table = calibrated.told(inputs, frame.index, level)
    if coverage is not None:
        if calibrated.adjustment is not None:
            raise DataError(
                "--coverage: nothing is promised for an adopted model, because sites counted with "
                "the common one; give the folder of the study's result"
            )
        at_sites = signed_result(found).at_sites
        sums = None if at_sites is None else at_sites.pooled.scores
        sets = promised(plan, calibrated.before_level(inputs), sums, coverage)
        table = table.assign(**{name: np.asarray(values) for name, values in sets.items()})
    table = _beside(raw, keep, table)
    if out.suffix.lower() == ".parquet":
        write_whole(out, lambda new: table.to_parquet(new, index=False, engine="pyarrow"))
    else:
        write_bytes(out, to_csv(table, "%.6g").encode())
    if site is not None:
        site.log.note("predict", table=data.name, model=calibrated.weights_digest())
    return Predicted(table, tuple(map(str, examined.oddities)), adopted_by)


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
