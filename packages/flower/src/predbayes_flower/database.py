"""Bytes of uploads that a SuperLink deleted, out of the files of its database.

A SuperLink keeps each reply in SQLite until the round has it, and then deletes it. But a deleted
row's bytes stay in the files: in the log of changes (`-wal`) until others are written over them,
and in some builds of SQLite in the database itself. So after a withdrawal:

    flwr list study                                          deletes what ended runs left
    python -m predbayes_flower.database superlink.db         writes the files anew without it

It may run beside the SuperLink, between two runs. What the disk itself keeps of old files is not
in its hands, nor are backups.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from predbayes.errors import PredbayesError, StudyError
from predbayes.text import printable

_PATIENCE_SECONDS = 30


def clear(path: Path) -> int:
    """Write a database anew without what was deleted; return how many objects are in it still."""
    shown = printable(path.name)
    address = f"{path.absolute().as_uri()}?mode=rw"  # never a new one
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE_SECONDS)) as database:
            database.execute("PRAGMA secure_delete = ON")
            database.execute("VACUUM")
            (busy, *_), *_ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if busy:
                raise StudyError(f"{shown} is in use; try again when no run goes on")
            return int(database.execute("SELECT COUNT(*) FROM objects").fetchone()[0])
    except sqlite3.Error as error:
        told = printable(str(error))
        raise StudyError(f"{shown} cannot be cleared: {told}; is it a SuperLink's?") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Clear the database that is named."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1 or given[0].startswith("-"):
        sys.stderr.write("usage: python -m predbayes_flower.database DATABASE\n")
        return 2
    try:
        num_left = clear(Path(given[0]))
    except PredbayesError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if num_left:
        told = "are of a run that goes on, or that ended without `flwr list`"
        sys.stderr.write(f"what was deleted is gone, but {num_left} objects {told}\n")
        return 1
    sys.stdout.write("what was deleted is gone, and no object of a run is left\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
