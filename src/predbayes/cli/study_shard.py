"""`predbayes study shard`, `sum` and `merge`: many sites in parts, and their sums added up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import predbayes.study
from predbayes.cli.show import DEFAULT_STUDY, StudyOption, read_out, say, say_taken_in
from predbayes.errors import StudyError, UploadError
from predbayes.study.wording import counted
from predbayes.system import quoted

if TYPE_CHECKING:
    from predbayes.study.coordinator.on_ray import OnRay
    from predbayes.study.result.accepted import AcceptedSum


def shard_command(
    name: Annotated[str, typer.Argument(help="The shard's name.")],
    kit: Annotated[Path, typer.Argument(help="The study's kit, as the sites have it.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The shard's own key.")],
    study: Annotated[
        Path | None, typer.Option("--study", help="The shard's folder. Default: its name.")
    ] = None,
) -> None:
    """Make a shard, which takes in a part of the sites."""
    from predbayes.exchange.signing import PublicKey

    folder = Path(name) if study is None else study
    begun = predbayes.study.Study.shard(folder, name, kit, key)
    public = PublicKey(begun.state().coordinator)
    say(f"{folder}: a shard of plan {begun.plan.name!r}")
    say(f"next: predbayes study admit and add, each with --study {quoted(folder)}")
    say(f"the study admits {name} with {key.with_suffix('.pub').name}")
    say(f"compare by telephone: {public.fingerprint}")
    read_out(begun.kit)


def sum_command(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The sum. Default: NAME.sum.")
    ] = None,
    most_rows: Annotated[
        float | None,
        typer.Option(metavar="N", help="Most rows that a site counts for, if `finish` asks."),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="ray[:ADDRESS]", help="Add up on Ray: here, or there.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes of Ray, here.")] = 2,
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Add up what a shard took in, as one signed file."""
    opened, fold = predbayes.study.Study(study), None if on is None else _on_ray(on, workers)
    if most_rows is not None and not 0 < most_rows < math.inf:
        raise StudyError(f"--most-rows is a positive number, not {most_rows:g}")
    path = Path(f"{opened.state().shard or study.name}.sum") if out is None else out
    limit = math.inf if most_rows is None else most_rows
    made = opened.sum(path, most_rows=limit, fold=fold)
    told = made.info.sum
    assert told is not None  # as it is one
    rows = counted(made.info.num_rows, "row")
    say(f"{path}: {counted(told.count, 'site')}, {rows}, root {told.root[:12]}")
    say(f"next: predbayes study merge {quoted(path)}, where the study is")


def _on_ray(on: str, workers: int) -> OnRay:
    from predbayes.study.coordinator.on_ray import OnRay

    engine, _, address = on.partition(":")
    if engine != "ray":
        raise StudyError(f"--on takes ray or ray:ADDRESS, not {on}")
    return OnRay(workers, address or None)


def merge_command(
    files: Annotated[list[Path], typer.Argument(help="Sums that shards wrote.")],
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Check sums of shards and add them; refused ones change nothing."""
    opened = predbayes.study.Study(study)
    say_taken_in((path.name, _merged(opened, path)) for path in files)


def _merged(study: predbayes.study.Study, path: Path) -> AcceptedSum | UploadError | None:
    try:
        return study.merge(path)
    except UploadError as error:
        return error
