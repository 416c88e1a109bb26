"""Where the datasets are, and their bytes.

Files are read from the folder named by the environment variable ``PREDBAYES_DATA``, one folder per
dataset, in the formats in which their publishers offer them. Any file may be gzipped.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import IO, cast

from predbayes.errors import DataError

ROOT_VARIABLE = "PREDBAYES_DATA"


def data_root() -> Path:
    """Return the folder that holds the datasets."""
    value = os.environ.get(ROOT_VARIABLE)
    if not value:
        raise DataError(f"set {ROOT_VARIABLE} to the folder that holds the datasets")
    return Path(value)


def find_file(folder: Path, name: str) -> Path:
    """Find a file in a folder, plain or gzipped."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"no {name} in {folder}; run `predbayes data fetch`, or put the publisher's files there"
    )


def has_file(folder: Path, name: str) -> bool:
    """Say whether a folder contains a file, plain or gzipped."""
    return any((folder / f"{name}{suffix}").is_file() for suffix in ("", ".gz"))


def open_file(path: Path) -> IO[bytes]:
    """Open a file to read its decompressed content."""
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def read_content(path: Path) -> bytes:
    """Read the whole decompressed content of a file."""
    try:
        with open_file(path) as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} is not a whole gzip file; fetch it again") from error


def content_sha256(path: Path) -> str:
    """Compute the SHA-256 of the decompressed content, in hexadecimal digits."""
    return hashlib.sha256(read_content(path)).hexdigest()
