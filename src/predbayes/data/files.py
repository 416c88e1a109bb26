"""Where the datasets are.

Files are read from the folder named by the environment variable ``PREDBAYES_DATA``, one folder per
dataset, in the formats in which their publishers offer them.
"""

from __future__ import annotations

import os
from pathlib import Path

from predbayes.errors import DataError

ROOT_VARIABLE = "PREDBAYES_DATA"


def data_root() -> Path:
    """The folder that holds the datasets."""
    value = os.environ.get(ROOT_VARIABLE)
    if not value:
        raise DataError(f"set {ROOT_VARIABLE} to the folder that holds the datasets")
    return Path(value)


def find_file(folder: Path, *names: str) -> Path:
    """The first of the names that exists in a folder."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"no {' or '.join(names)} in {folder}; put the publisher's files there")
