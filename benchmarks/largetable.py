"""A site's large Parquet table through `site check` and `site train`: CPU and peak memory.

    bare     pandas reads the file, in a process of its own
    check    `predbayes site check KIT DATA`
    train    `predbayes site train KIT DATA`, with the learner that cross-validation chooses

Numbers have one decimal, and the outcome is of a linear law of all of them. `us_a_cell` is the CPU
of a command for each cell, `bytes_a_cell` its peak memory, all of Python and torch included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

_NUM_REFERENCE = 600
_READ = "import sys, pandas; pandas.read_parquet(sys.argv[1])"
_SITE = 'format = 1\nname = "large"\n'
_STATED = {
    'description = ""': 'description = "a large table"',
    'source = ""': 'source = "invented"',
    'licence = ""': 'licence = "none"',
    'legal_basis = ""': 'legal_basis = "nobody\'s"',
    'type = "number", ': 'type = "number", unit = "1", ',
}


def run(rows: int = 500_000, columns: int = 300) -> dict[str, Any]:
    """Measure one table."""
    python, cells = [sys.executable], rows * columns
    figures: dict[str, Any] = {"rows": rows, "columns": columns}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_tables(folder, rows, columns)
        begin(folder)
        site = [*python, "-m", "predbayes_study", "site"]
        commands = {
            "bare": [*python, "-c", _READ, "site.parquet"],
            "check": [*site, "check", "kit", "site.parquet"],
            "train": [*site, "train", "kit", "site.parquet", "--out", "out"],
        }
        for name, command in commands.items():
            seconds, peak = measured(command, folder)
            figures[name] = {
                "cpu_s": seconds,
                "us_a_cell": 1e6 * seconds / cells,
                "peak_gb": peak / 1e9,
                "bytes_a_cell": peak / cells,
            }
            print(f"{name}: {seconds:.0f} s CPU, {peak / 1e9:.2f} GB at its peak", flush=True)
    return figures


def write_tables(folder: Path, rows: int, columns: int) -> None:
    """Write a site's table, and reference rows of the same law."""
    weights = 2 * np.random.default_rng(0).normal(size=columns) / columns**0.5
    drawn(rows, weights, seed=1).to_parquet(folder / "site.parquet")
    drawn(_NUM_REFERENCE, weights, seed=2).to_csv(folder / "reference.csv", index=False)


def drawn(rows: int, weights: np.ndarray[Any, Any], seed: int) -> pd.DataFrame:
    """Columns of numbers, and whether something happened."""
    rng = np.random.default_rng(seed)
    cells: dict[str, Any] = {}
    total = np.full(rows, -1.5)
    for number, weight in enumerate(weights):
        values = rng.normal(size=rows).clip(-4, 4)
        total += weight * values
        cells[f"x{number}"] = np.round(50 + 10 * values, 1)
    happened = rng.random(rows) < 1 / (1 + np.exp(-total))
    return pd.DataFrame(cells | {"outcome": np.where(happened, "yes", "no")})


def begin(folder: Path) -> None:
    """Freeze a plan; make the site's key, and let it approve."""

    def predbayes(*line: str) -> None:
        command = [sys.executable, "-m", "predbayes_study", *line]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)

    predbayes("plan", "new", "reference.csv", "--target", "outcome")
    plan = (folder / "plan.toml").read_text(encoding="utf-8")
    for old, new in _STATED.items():
        plan = plan.replace(old, new)
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    predbayes("plan", "freeze", "plan.toml", "--out", "kit")
    (folder / "site.toml").write_text(_SITE, encoding="utf-8")
    predbayes("site", "key", "large")
    predbayes("site", "approve", "kit", "--by", "benchmark")


def measured(command: list[str], folder: Path) -> tuple[float, float]:
    """CPU seconds and peak bytes of a command."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _pid, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime, 1024.0 * used.ru_maxrss
