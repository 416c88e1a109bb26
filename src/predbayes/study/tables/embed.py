"""Vectors that an encoder makes of a table's images, written beside the table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
from safetensors.torch import save_file

from predbayes.files import write_whole
from predbayes.study.plan.encoders import ImageEncoder, image_column
from predbayes.study.plan.schema import Plan
from predbayes.study.tables.arraycells import cells_digest, embedded_file, with_arrays
from predbayes.study.tables.coding import sound


def embed(plan: Plan, frame: pd.DataFrame, path: Path) -> list[Path]:
    """Run the encoders of a plan over a table, and return the files that they gave.

    Args:
        plan: A draft, or a frozen plan, whose encoders are then compared with it.
        frame: The table, with the names of images in the columns of the encoders.
        path: Its file; images and vectors lie beside it.
    """
    written = []
    for name, column in plan.encoded.items():
        encoder = ImageEncoder.load(plan, name)
        # Whatever is wrong with the images is said as of a plan that has them.
        bare = {"columns": {name: image_column(column)}, "measures": None, "frozen": None}
        images = plan.model_copy(update=bare)
        found = sound(images, with_arrays(images, frame, path))
        told = {"cells": cells_digest(frame[name]), "encoder": encoder.stated.mark}
        vectors = {name: encoder(found.arrays[name])}
        file = embedded_file(path, name)
        write_whole(file, partial(save_file, vectors, metadata=told))
        written.append(file)
    return written
