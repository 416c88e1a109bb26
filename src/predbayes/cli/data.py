"""`predbayes data`: list datasets, fetch one, check one."""

from __future__ import annotations

import typer

app = typer.Typer(help="List, fetch and check datasets.", no_args_is_help=True)


@app.command("list")
def list_datasets() -> None:
    """List the datasets, and say which of them are here."""
    from rich.console import Console
    from rich.table import Table

    from predbayes.data.files import ROOT_VARIABLE, data_root
    from predbayes.data.registry import DATASETS, count_rows, is_present

    root = data_root()
    table = Table("name", "task", "rows", "present", "title")
    for name, spec in DATASETS.items():
        present = is_present(name, root)
        rows = f"{count_rows(name, root):,}" if present else ""
        table.add_row(name, spec.task, rows, "yes" if present else "no", spec.title)
    console = Console()
    console.print(table)
    console.print(f"{ROOT_VARIABLE} is {root}")


@app.command("fetch")
def fetch_dataset(name: str) -> None:
    """Download a dataset from its publisher, unless it is here."""
    from rich.console import Console

    from predbayes.data.fetch import fetch
    from predbayes.data.registry import lookup

    written = fetch(name, progress=True)
    console = Console(soft_wrap=True)
    for path in written:
        console.print(str(path), highlight=False)
    spec = lookup(name)
    console.print(f"{name} is complete; licence: {spec.licence}; cite: {spec.citation}")


@app.command("check")
def check_dataset(name: str) -> None:
    """Compare a dataset's files with the published ones, and read it."""
    from rich.console import Console
    from rich.table import Table

    from predbayes.data.fetch import check
    from predbayes.data.files import data_root
    from predbayes.data.registry import lookup
    from predbayes.errors import DataError

    report = check(name)
    table = Table("file", "bytes", "sha256")
    for found in report.files:
        size = "" if found.num_bytes is None else f"{found.num_bytes:,}"
        table.add_row(found.file, size, found.state)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"folder: {data_root() / lookup(name).folder}")
    for note in report.notes:
        console.print(f"note: {note}")
    if report.fingerprint is not None:
        for key, value in report.fingerprint.as_dict().items():
            if key != "note":
                console.print(f"{key}: {value}")
    if not report.ok:
        raise DataError(f"{name}: {report.problem}; run `predbayes data fetch {name}`")
