"""`predbayes experiment` and `predbayes data`: run and compare experiments, fetch their data.

An experiment is a TOML file, one of the package or yours. The command line finds these two groups
by their entry points.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predbayes.errors import DataError, ExperimentError
from predbayes.text import printable

if TYPE_CHECKING:
    from predbayes_lab.config import Experiment
    from predbayes_lab.records import Record
    from predbayes_lab.sweep import Report

experiments = typer.Typer(
    help="Run and compare methods; reproduce the paper.",
    no_args_is_help=True,
    suggest_commands=False,
)

datasets = typer.Typer(
    help="List, fetch and check datasets.", no_args_is_help=True, suggest_commands=False
)

_STOPPED = 130  # the exit code after Ctrl-C
_PLAIN: dict[str, Any] = {"box": None, "header_style": "bold"}  # of a table

Source = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A name from `experiment list`, or a TOML file.")
]
Records = Annotated[str, typer.Argument(metavar="RECORDS", help="A folder with records.jsonl.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, such as sampler.preset=tuned."
    ),
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", "-m", help="Run only this method; may be repeated.")
]
Seeds = Annotated[str | None, typer.Option(help="Such as 0-9 or 0,3,5. Default: those of CONFIG.")]
Device = Annotated[str, typer.Option(help="Where networks train: cpu, cuda, ...")]


@experiments.command("list")
def list_experiments() -> None:
    """List the experiments that come with the package."""
    from predbayes_lab.config import load_experiment, shipped

    lines = []
    for name in shipped():
        experiment = load_experiment(name)
        counts = (len(experiment.cells()), len(experiment.methods), len(experiment.seeds))
        lines.append((name, *map(str, counts), experiment.title))
    show_table(("name", "cells", "methods", "seeds", "title"), lines, **_PLAIN)


@experiments.command("show")
def show_experiment(config: Source) -> None:
    """Print a config; copy it to make your own."""
    from predbayes_lab.config import find_config

    say(*find_config(config).read_text("utf-8").splitlines())


@experiments.command("run")
def run_experiment(
    config: Source,
    assignments: Assignments = None,
    methods: Methods = None,
    seeds: Seeds = None,
    device: Device = "cpu",
) -> None:
    """Run every cell once; print the scores and keep nothing."""
    import tempfile

    from predbayes_lab.config import parse_seeds
    from predbayes_lab.sweep import sweep

    experiment = _load(config, assignments, methods)
    chosen = experiment.seeds[:1] if seeds is None else parse_seeds(seeds)
    with tempfile.TemporaryDirectory() as folder, _progress() as report:
        records = sweep(experiment, Path(folder), seeds=chosen, device=device, report=report)
    _print_scores(records)


@experiments.command("sweep")
def sweep_experiment(
    config: Source,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: results/NAME.")] = None,
    assignments: Assignments = None,
    methods: Methods = None,
    seeds: Seeds = None,
    device: Device = "cpu",
    others: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Take over the same runs from this folder; may be repeated."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Number of processes; 0: one for each core; 1: without Ray.")
    ] = 0,
    address: Annotated[str | None, typer.Option(help="A Ray cluster, such as auto.")] = None,
) -> None:
    """Do all runs that have no record yet; it can be stopped."""
    from predbayes_lab.config import parse_seeds
    from predbayes_lab.sweep import sweep

    experiment = _load(config, assignments, methods)
    folder = out or Path("results") / experiment.name
    try:
        with _progress() as report:
            records = sweep(
                experiment,
                folder,
                seeds=None if seeds is None else parse_seeds(seeds),
                num_workers=workers or os.cpu_count() or 1,
                address=address,
                device=device,
                others=others or (),
                report=report,
            )
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here", err=True)
        raise typer.Exit(_STOPPED) from None
    say(f"{len(records)} records in {folder}")


@experiments.command("table")
def make_table(
    records: Records,
    metric: Annotated[str, typer.Option(help="nll, ece, accuracy, rmse, coverage_95, ...")] = "nll",
    against: Annotated[
        str | None, typer.Option(help="Compare every method with this one, paired by seed.")
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best", help="After a grid search: show the best variant of each method."),
    ] = False,
    rows: Annotated[
        bool, typer.Option("--rows", help="With --against: add intervals over test rows.")
    ] = False,
    format: Annotated[str, typer.Option(help="md or csv.")] = "md",
    out: Annotated[
        Path | None, typer.Option(help="Write this file; its suffix gives the format.")
    ] = None,
) -> None:
    """Print a table of means and standard errors, with paired tests."""
    from predbayes_lab.rendering import render
    from predbayes_lab.tables import best_table, build_table

    found, losses = _read(records, rows=rows)
    if rows and against is None:
        raise ExperimentError("--rows needs a comparison: add --against METHOD")
    make = best_table if best else build_table
    table = make(found, metric, against=against, losses=losses)
    _deliver(render(table, out.suffix.removeprefix(".") if out else format), out)


@experiments.command("verdict")
def judge(
    records: Records,
    method: Annotated[str, typer.Option(help="The method to judge.")] = "auto",
    rivals: Annotated[
        list[str] | None,
        typer.Option("--rival", help="A method to compare it with. Default: all others."),
    ] = None,
    metric: Annotated[str, typer.Option(help="A metric where lower is better.")] = "nll",
    margin: Annotated[
        float, typer.Option(help="A relative difference up to this counts as none.")
    ] = 0.01,
    rows: Annotated[bool, typer.Option("--rows", help="Use intervals over test rows.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write this Markdown file.")] = None,
) -> None:
    """Say if a method is better than all rivals, level, or worse."""
    from predbayes_lab.verdict import note_on, to_markdown, verdicts

    found, losses = _read(records, rows=rows)
    judged = verdicts(found, method, metric=metric, rivals=rivals, margin=margin, losses=losses)
    _deliver(to_markdown(judged, method, note=note_on(found)), out)


@experiments.command("figure")
def make_figure(
    records: Records,
    out: Annotated[Path, typer.Option(help="A png, svg or pdf file.")],
    metrics: Annotated[
        str | None, typer.Option(help="Separated by commas. Default: nll, and ece if there is one.")
    ] = None,
    x: Annotated[
        str | None, typer.Option(help="The axis to draw against. Default: one of numbers.")
    ] = None,
    methods: Methods = None,
) -> None:
    """Draw metrics with error bars."""
    from predbayes_lab import figures

    found, _losses = _read(records)
    figures.lines(found, metrics.split(",") if metrics else None, x, out, methods)
    say(f"wrote {out}")


def _deliver(text: str, out: Path | None) -> None:
    if out is None:
        say(*text.split("\n"))
    else:
        out.write_bytes(text.encode())
        say(f"wrote {out}")


def _load(config: str, assignments: list[str] | None, methods: list[str] | None) -> Experiment:
    from predbayes_lab.config import find_config, load_experiment

    # Methods of one's own need no installation: they lie here, or beside the config.
    sys.path[:0] = [str(Path.cwd()), str(find_config(config).resolve().parent)]
    return load_experiment(config, assignments=assignments or (), methods=methods or ())


def _read(source: str, *, rows: bool = False) -> tuple[list[Record], Path | None]:
    """Read records, and say where the losses of their rows are, if they are wanted."""
    from predbayes_lab.records import LOSSES_FOLDER, RECORDS_FILE, read_records

    folder = Path(source)
    if folder.name == RECORDS_FILE:
        folder = folder.parent
    if not (folder / RECORDS_FILE).exists():
        raise ExperimentError(f"there is no {folder / RECORDS_FILE}; make it with sweep")
    return read_records(folder / RECORDS_FILE), folder / LOSSES_FOLDER if rows else None


_LEADING = ("nll", "accuracy", "ece", "rmse", "coverage_95", "crps")
"""Scores that fit a narrow terminal; records have all."""


def _print_scores(records: list[Record]) -> None:
    found = {name for record in records for name in record.scores}
    names = [name for name in _LEADING if name in found] or sorted(found)
    lines = []
    for record in records:
        figures = [f"{record.scores[name]:.4f}" if name in record.scores else "" for name in names]
        lines.append((_cell(record), record.method, str(record.seed), *figures))
    show_table(("cell", "method", "seed", *names), lines, **_PLAIN)
    if len(names) < len(found):
        others = ", ".join(sorted(found - {*names}))
        say(f"`experiment sweep` keeps the other scores, too: {others}")


@contextmanager
def _progress() -> Iterator[Report]:
    """Show a bar on a terminal; elsewhere print one line for each record."""
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (*Progress.get_default_columns()[:-1], TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=None)

        def report(record: Record, done: int, total: int) -> None:
            progress.update(task, description=_describe(record), completed=done, total=total)

        yield report


def _lines() -> Report:
    began = time.monotonic()
    first: list[int] = []

    def report(record: Record, done: int, total: int) -> None:
        first.append(done)
        fresh = done - first[0] + 1
        outcome = record.error or f"nll {record.scores['nll']:.4f}"
        left = (time.monotonic() - began) / fresh * (total - done)
        told = f"{done}/{total} {_describe(record)}: {outcome}, about {_duration(left)} left"
        say(told, err=True)

    return report


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _describe(record: Record) -> str:
    return f"{_cell(record)} {record.method} seed {record.seed}".strip()


def _cell(record: Record) -> str:
    return " ".join(str(value) for value in record.cell.values())


@datasets.command("list")
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


@datasets.command("fetch")
def fetch_dataset(name: str) -> None:
    """Download a dataset from its publisher, unless it is here."""
    from predbayes_lab.data.fetch import fetch
    from predbayes_lab.data.files import data_root
    from predbayes_lab.data.registry import lookup

    for path in fetch(name):
        say(str(path))
    spec = lookup(name)
    where = f" in {data_root() / spec.folder}" if spec.sources else ""  # else in a package
    say(f"{name} is complete{where}; licence: {spec.licence}; cite: {spec.citation}")


@datasets.command("check")
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


def say(*lines: str, err: bool = False) -> None:
    """Print lines; text from a file cannot move the cursor or add a line."""
    for line in lines:
        typer.echo(printable(line, None), err=err)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], **style: Any) -> None:
    """Print a table that fits the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, **style)
    for row in rows:
        table.add_row(*(Text(printable(cell, None)) for cell in row))
    Console(soft_wrap=True, highlight=False).print(table)
