"""Many uploads: intake, folding and memory, each against bare operations in the same run.

Uploads are predictions of ten classes on 2,000 reference rows in half precision, 40 kB each. A
thousand different ones lie on disk, and are read as often as it takes to make `--clients N` of
them.

    intake_ratio  as in `benchmarks intake`: an upload taken in, over a bare check and its SHA-256
    fold_ratio    CPU from a file to the sum of all six terms of `auto`, over that of adding the
                  same numbers to float64: the median over blocks of 100, measured in turns
    against_model CPU of folding 10^2, 10^3, ... uploads, over the number times the median cost of
                  one among the first thousand, which is the cost model of docs/scale.md
    rss_ratio     peak memory of a process that folds N uploads over that of one that folds 100
    speedup       time of one process that folds a thousand uploads over that of two that fold a
                  half each, on a core of its own each, and of adding their sums: the best of turns.
                  On a machine that others use it tells of them: see the load beside it, and
                  `speedup_by_cpu`, the same in CPU seconds of the process that took the most
    study         as in `benchmarks.scale_study`: N sites, each with a key and a file of its own,
                  taken in and added up; what commands cost then
    same_bits     whether the sum of all is the sum of two halves in another order, to the bit
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import scale_study
from benchmarks.intake import against_bare
from predbayes.exchange.upload import Upload
from predbayes.methods.pooled import contribution
from predbayes.pools.pool import Contribution
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import PredictiveSum, WrittenSum
from predbayes.predictive.selection import TERMS
from predbayes.seeding import generator
from predbayes.summand import fold

ROWS, CLASSES = 2000, 10
LIFTED: dict[str, Any] = {"terms": TERMS[Categorical], "floor": -12.0}  # that of a plan
DISTINCT, BLOCK, FEW, TURNS = 1000, 100, 100, 5


def run(clients: int = 10_000) -> dict[str, Any]:
    """Measure folding and memory with so many uploads."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        files = _files(Path(scratch))
        ours, bare, total = _fold(files, clients)
        few, many = (_peak(scratch, num) for num in (FEW, clients))
        halves = [_summed(files[part]) for part in (slice(1, None, 2), slice(0, None, 2))]
        whole = _summed(files)
        faster = _speedup(files)
    ratio = median(o / b for o, b in zip(ours, bare, strict=True))
    print(f"fold: {1e6 * median(ours):.0f} us an upload, bare add {1e6 * median(bare):.0f} us")
    print(f"peak memory: {few / 1e6:.0f} MB for {FEW}, {many / 1e6:.0f} MB for {clients}")
    return {
        "clients": total.num_clients,
        "fold_ratio": ratio,
        "fold_microseconds": 1e6 * median(ours),
        "bare_microseconds": 1e6 * median(bare),
        "against_model": _against_model(ours),
        "intake_ratio": against_bare(),
        "rss_ratio": many / few,
        **faster,
        "same_bits": _equal(whole, halves[0].add_(halves[1])),
        "study": scale_study.run(clients),
    }


def _files(folder: Path) -> list[Path]:
    """Distinct uploads, on disk."""
    rng = generator(0, "uploads")
    found = []
    for number in range(DISTINCT):
        predictive = Categorical.from_natural(3 * torch.randn(ROWS, CLASSES, generator=rng))
        counts = tuple(float(count) for count in torch.randint(20, 200, (CLASSES,), generator=rng))
        upload = Upload.of_predictions(
            predictive, num_rows=int(sum(counts)), class_rows=counts, dtype=torch.float16
        )
        found.append(folder / f"{number}.safetensors")
        upload.save(found[-1])
    return found


def _contributed(path: Path) -> Contribution:
    upload = Upload.load(path)
    return contribution(upload, upload.predictive())


def _lifted(path: Path) -> PredictiveSum[Any]:
    return _contributed(path).summand(**LIFTED)


def _summed(files: list[Path]) -> PredictiveSum[Any]:
    return fold(map(_lifted, files))


def _fold(files: list[Path], clients: int) -> tuple[list[float], list[float], PredictiveSum[Any]]:
    """CPU seconds an upload, of folding and of adding, block by block; and the sum."""
    total = _lifted(files[0])
    accumulator = torch.zeros(ROWS, CLASSES, dtype=torch.float64)
    ours, bare = [], []
    for block in _blocks(files, clients - 1):
        began = time.process_time()
        for path in block:
            total.add_(_lifted(path))
        ours.append((time.process_time() - began) / len(block))
        arrays = [Upload.load(path).arrays["log_probs"] for path in block]
        began = time.process_time()
        for array in arrays:
            accumulator.add_(array)
        bare.append((time.process_time() - began) / len(block))
    return ours, bare, total


def _speedup(files: list[Path]) -> dict[str, Any]:
    """One process that folds files against two that fold half of them each, in turns."""
    gate = torch.zeros(ROWS)  # so that the form has every term
    form = replace(_contributed(files[0]), gate=gate).summand(**LIFTED)
    context = multiprocessing.get_context("spawn")
    workers: list[Connection] = []
    for core in range(2):
        here, there = context.Pipe()
        context.Process(target=_work, args=(there, core), daemon=True).start()
        here.send(files[:BLOCK])  # what is loaded once
        here.recv()
        workers.append(here)
    turns = [[_dealt(form, workers[:num], files) for num in (1, 2)] for _ in range(TURNS)]
    one, two = ([min(turn[k] for turn in of) for k in (0, 1)] for of in zip(*turns, strict=True))
    for worker in workers:
        worker.send(None)
    return {
        "speedup": one[0] / two[0],
        "speedup_by_cpu": one[1] / two[1],
        "load": os.getloadavg()[0],
    }


def _dealt(form: PredictiveSum[Any], workers: list[Connection], files: list[Path]) -> list[float]:
    """Seconds that workers and the addition of their sums take: by the clock, and of CPU."""
    began = time.perf_counter()
    for number, worker in enumerate(workers):
        worker.send(files[number :: len(workers)])
    told = [worker.recv() for worker in workers]
    cpu = time.process_time()
    fold(form.read(_received(*written)) for written, _ in told)
    cpu = time.process_time() - cpu
    return [time.perf_counter() - began, max(seconds for _, seconds in told) + cpu]


def _received(arrays: dict[str, Any], *rest: Any) -> WrittenSum:
    return WrittenSum({name: torch.from_numpy(array) for name, array in arrays.items()}, *rest)


def _work(parent: Connection, core: int) -> None:
    """Fold what the parent sends, in a process on one core; tell the sum and the CPU it took."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})
    while (files := parent.recv()) is not None:
        began = time.process_time()
        arrays, *rest = _summed(files).written()
        told = ({name: array.numpy() for name, array in arrays.items()}, *rest)
        parent.send((told, time.process_time() - began))


def _against_model(seconds: list[float]) -> dict[int, float]:
    """Measured over predicted time, by the number of uploads."""
    constant = median(seconds[:10])
    sizes = [10**power for power in range(2, 6) if 10**power <= BLOCK * len(seconds)]
    return {size: sum(seconds[: size // BLOCK]) * BLOCK / (size * constant) for size in sizes}


def _blocks(files: list[Path], num: int) -> Iterator[list[Path]]:
    for start in range(0, num, BLOCK):
        size = min(BLOCK, num - start)
        yield [files[(start + k) % len(files)] for k in range(size)]


def _equal(one: PredictiveSum[Any], other: PredictiveSum[Any]) -> bool:
    names = one.components
    return all(torch.equal(one.component(name), other.component(name)) for name in names)


def _peak(folder: str, num: int) -> int:
    """Peak resident bytes of a process of its own that folds this many uploads."""
    command = [sys.executable, "-m", "benchmarks.scale", folder, str(num)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(finished.stdout.splitlines()[-1])["peak"])


def _report_peak(folder: Path, num: int) -> None:
    torch.set_num_threads(1)
    files = sorted(folder.glob("*.safetensors"))
    total = fold(_lifted(path) for block in _blocks(files, num) for path in block)
    total.pool(0.5)
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    _report_peak(Path(sys.argv[1]), int(sys.argv[2]))
