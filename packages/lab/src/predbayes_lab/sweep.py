"""Sweeps: all runs of an experiment that have no record yet, here or fanned out on Ray.

The driver alone writes. A worker takes one cell and seed with all its missing methods, and hands
over each record as it is made, so a sweep that is killed loses at most what was being computed,
and the next one does only what is missing. Nor is a run repeated that another experiment has
done, with the same settings, data, seed and label (``others``). Beside the records lie the losses
of every scored row, for paired comparisons:

    OUT/records.jsonl        OUT/losses/KEY.npy
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from predbayes.errors import ExperimentError
from predbayes.files import write_whole
from predbayes.learning.training import resolve_device
from predbayes_lab.config import Experiment
from predbayes_lab.data.files import ROOT_VARIABLE
from predbayes_lab.records import (
    LOSSES_FOLDER,
    RECORDS_FILE,
    Record,
    open_writer,
    read_records,
)
from predbayes_lab.run import Run, plan, run_methods
from predbayes_lab.workers import running_ray

Losses = np.ndarray[Any, np.dtype[np.float32]]
Report = Callable[[Record, int, int], None]
"""Called with each new record, the records there are and those there will be."""


def sweep(
    experiment: Experiment,
    out: Path,
    *,
    seeds: Sequence[int] | None = None,
    num_workers: int = 1,
    address: str | None = None,
    device: str = "cpu",
    others: Sequence[Path] = (),
    report: Report | None = None,
) -> list[Record]:
    """Do what is missing; return the records of the whole experiment.

    Args:
        experiment: What to run.
        out: Folder of the records.
        seeds: Those of the config if None.
        num_workers: Processes; 1 runs here, without Ray.
        address: A Ray cluster to use, whatever its size, instead of processes on this machine.
        device: Where networks train.
        others: Folders of other experiments, whose records of the same runs are taken over.
        report: Told of each record.
    """
    device = str(resolve_device(device)) if device == "auto" else device  # records name it
    runs = plan(experiment, experiment.seeds if seeds is None else seeds, device=device)
    wanted = {key for one in runs for key in one.keys.values()}
    path = out / RECORDS_FILE
    with open_writer(path) as writer:

        def keep(record: Record, losses: Losses | None) -> None:
            if losses is not None:
                folder = out / LOSSES_FOLDER
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(folder / f"{record.key}.npy", lambda partial: np.save(partial, losses))
            writer.append(record)
            done.add(record.key)

        records = read_records(path)
        there = [record for record in records if record.key in wanted]
        done = {record.key for record in there}

        def missing() -> list[Run]:
            return [one for one in runs if not done.issuperset(one.keys.values())]

        for record, losses in _taken_over(experiment.name, missing(), others):
            if record.key not in done:
                keep(record, losses)
        last = {repr((r.cell, r.method, r.seed)): r.key for r in records}
        for record in there:
            if last[repr((record.cell, record.method, record.seed))] != record.key:
                # Tables show the last record of a method: let it be that of these settings.
                writer.append(record)
        jobs = _jobs(missing())
        if num_workers > 1 or address is not None:
            results = _on_ray(experiment, jobs, num_workers, address, device)
        else:
            results = _here(experiment, jobs, device)
        for record, losses in results:
            if record.key in done:
                continue  # a method is repeated for its student; its own record is there
            keep(record, losses)
            if report is not None:
                report(record, len(done), len(wanted))
    found = {record.key: record for record in read_records(path)}
    return [found[key] for key in found if key in wanted]


def _taken_over(
    name: str, runs: Sequence[Run], others: Sequence[Path]
) -> Iterator[tuple[Record, Losses | None]]:
    """Records of the same runs in other experiments, as if they had been made for this one.

    Equal keys are equal settings, data, seeds and labels; only which of them are axes may differ.
    """
    cells = {key: one.cell for one in runs for key in one.keys.values()}
    for folder in others:
        if not (folder / RECORDS_FILE).exists():
            raise ExperimentError(f"there is no {folder / RECORDS_FILE} to take records from")
        for record in read_records(folder / RECORDS_FILE):
            if record.key in cells:
                losses = folder / LOSSES_FOLDER / f"{record.key}.npy"
                taken = replace(record, experiment=name, cell=cells[record.key])
                yield taken, np.load(losses) if losses.exists() else None


def _jobs(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs of one cell and seed together: they share a split and the sites' fits."""
    groups: dict[str, list[Run]] = {}
    for one in runs:
        groups.setdefault(repr((one.cell, one.seed)), []).append(one)
    return list(groups.values())


def _here(
    experiment: Experiment, jobs: Iterable[Sequence[Run]], device: str
) -> Iterator[tuple[Record, Losses | None]]:
    for runs in jobs:
        for record, losses in run_methods(experiment, runs, device=device):
            yield record, None if losses is None else losses.numpy()


def _on_ray(
    experiment: Experiment,
    jobs: Sequence[Sequence[Run]],
    num_workers: int,
    address: str | None,
    device: str,
) -> Iterator[tuple[Record, Losses | None]]:
    if not jobs:
        return
    with running_ray(
        address=address,
        num_workers=num_workers,
        environment={name: os.environ[name] for name in (ROOT_VARIABLE,) if name in os.environ},
    ) as ray:
        num_gpus = 1 if device.startswith("cuda") else 0
        worker = ray.remote(num_cpus=1, num_gpus=num_gpus, num_returns="streaming", max_retries=2)(
            _here
        )
        streams = [worker.remote(experiment, [runs], device) for runs in jobs]
        yield from _as_they_come(ray, streams)


def _as_they_come(ray: Any, streams: Sequence[Any]) -> Iterator[tuple[Record, Losses | None]]:
    """Results of many streams in the order in which they are ready."""
    waiting = list(streams)
    while waiting:
        ready, _ = ray.wait(waiting, num_returns=1)
        for stream in ready:
            try:
                yield ray.get(next(stream))
            except StopIteration:
                waiting.remove(stream)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, Exception):
                    raise error.cause from error  # as if it had been raised here
                raise ExperimentError(f"a worker failed: {error}") from error
