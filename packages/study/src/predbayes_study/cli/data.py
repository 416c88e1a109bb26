"""`predbayes data`: list datasets, fetch one, check one."""

from __future__ import annotations

import typer

from predbayes.errors import DataError
from predbayes_study.cli.show import say, show_table

app = typer.Typer(
    help="List, fetch and check datasets.", no_args_is_help=True, suggest_commands=False
)


@app.command("list")
def list_datasets() -> None:
    """List the datasets, and say which of them are here."""
    from predbayes_lab.data.files import ROOT_VARIABLE, data_root
    from predbayes_lab.data.registry import DATASETS, count_rows, is_present

    root, lines = data_root(), []
    for name, spec in DATASETS.items():
        present = is_present(name, root)
        rows = f"{count_rows(name, root):,}" if present else ""
        lines.append((name, spec.task, rows, "yes" if present else "no", spec.title))
    show_table(("name", "task", "rows", "present", "title"), lines)
    say(f"{ROOT_VARIABLE} is {root}")


@app.command("fetch")
def fetch_dataset(name: str) -> None:
    """Download a dataset from its publisher, unless it is here."""
    from predbayes_lab.data.fetch import fetch
    from predbayes_lab.data.files import data_root
    from predbayes_lab.data.registry import lookup

    for path in fetch(name, progress=True):
        say(str(path))
    spec = lookup(name)
    where = f" in {data_root() / spec.folder}" if spec.sources else ""  # else in a package
    say(f"{name} is complete{where}; licence: {spec.licence}; cite: {spec.citation}")


@app.command("check")
def check_dataset(name: str) -> None:
    """Compare a dataset's files with the published ones, and read it."""
    from predbayes_lab.data.fetch import check
    from predbayes_lab.data.files import data_root
    from predbayes_lab.data.registry import lookup

    report = check(name)
    lines = [
        (found.file, "" if found.num_bytes is None else f"{found.num_bytes:,}", found.state)
        for found in report.files
    ]
    show_table(("file", "bytes", "sha256"), lines)
    say(f"folder: {data_root() / lookup(name).folder}")
    for note in report.notes:
        say(f"note: {note}")
    if report.fingerprint is not None:
        for key, value in report.fingerprint.as_dict().items():
            if key != "note":
                say(f"{key}: {value}")
    if not report.ok:
        raise DataError(f"{name}: {report.problem}; run `predbayes data fetch {name}`")
