"""Run a query on an OMOP database and write its rows as Parquet, for `predbayes site check`.

    python extract.py CDM.sqlite admissions.sql admissions.parquet

The database is opened to be read alone. For another one replace `connect`: pandas takes any
connection of SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pandas as pd


def connect(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)


def extract(database: Path, query: Path, out: Path) -> int:
    """Write the query's rows, and return how many there are."""
    with closing(connect(database)) as connection:
        rows = pd.read_sql_query(query.read_text("utf-8"), connection)
    rows.to_parquet(out, index=False)
    return len(rows)


if __name__ == "__main__":
    database, query, out = map(Path, sys.argv[1:])
    print(f"{out}: {extract(database, query, out):,} rows")
