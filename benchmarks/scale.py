"""Many uploads: intake, folding and memory, each against bare operations in the same run.

intake_ratio  CPU of `Study.add_all` with N signed uploads of 2,000 x 3 numbers in half
              precision, over that of a bare Ed25519 check and the SHA-256 of their bytes
fold_ratio    CPU from a file to the sum of all six terms of `auto`, over that of adding the
              same numbers to float64: the median over blocks of 100, measured in turns.
              A thousand different files of 2,000 x 10 numbers in half precision, 40 kB each,
              are read as often as it takes to make N uploads of them
rss_ratio     peak memory of a process that folds N uploads over that of one that folds 100
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from predbayes.exchange.header import Header
from predbayes.exchange.upload import Upload
from predbayes.methods.pooled import contribution
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.selection import TERMS
from predbayes.seeding import generator
from predbayes.summand import fold
from predbayes_study.payloads.details import save_signed, verifies
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.world import make_world

ROWS, CLASSES = 2000, 10
LIFTED: dict[str, Any] = {"terms": TERMS[Categorical], "floor": -12.0}  # that of a plan
DISTINCT, DRAWN, BLOCK, FEW = 1000, 20, 100, 100


def run(clients: int = 10_000) -> dict[str, Any]:
    """Measure intake, folding and memory with this many uploads."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        taken, checked = _intake(Path(scratch), clients)
    with tempfile.TemporaryDirectory() as scratch:
        ours, bare = _fold(_files(Path(scratch)), clients)
        few, many = (_peak(scratch, num) for num in (FEW, clients))
    print(f"intake: {1e6 * taken:.0f} us an upload, bare check {1e6 * checked:.0f} us")
    print(f"fold: {1e6 * median(ours):.0f} us an upload, bare add {1e6 * median(bare):.0f} us")
    print(f"peak memory: {few / 1e6:.0f} MB for {FEW}, {many / 1e6:.0f} MB for {clients}")
    return {
        "clients": clients,
        "intake_ratio": taken / checked,
        "intake_microseconds": 1e6 * taken,
        "fold_ratio": median(o / b for o, b in zip(ours, bare, strict=True)),
        "fold_microseconds": 1e6 * median(ours),
        "rss_ratio": many / few,
    }


def _intake(folder: Path, clients: int) -> tuple[float, float]:
    """CPU seconds of an upload: added to a study, and barely checked."""
    upload = "encrypt = false\nprecision = 'float16'"
    world = make_world(
        folder, unlabelled=1900, upload=upload, coordinator=CoordinatorKey.generate()
    )
    study = world.begin(sites=())
    sites = [f"site {number}" for number in range(clients)]
    study.admit_all({site: world.key(site).public for site in sites})
    drawn, files = [world.upload(f"drawn {number}") for number in range(DRAWN)], list[Path]()
    for number, site in enumerate(sites):
        made = drawn[number % DRAWN].named(site)
        files.append(folder / f"{site}.safetensors")
        half = {name: array.half() for name, array in made.arrays.items()}
        save_signed(replace(made, arrays=half), files[-1], world.key(site))
    began = time.process_time()
    assert not any(isinstance(found, Exception) for found in study.add_all(files))
    taken = time.process_time() - began
    bare = 0.0
    for file in files:
        content, signature = file.read_bytes(), Header.read(file).signature
        digest = Upload.load(file).digest()
        assert signature is not None
        began = time.process_time()
        hashlib.sha256(content).digest()
        assert verifies(signature, digest)
        bare += time.process_time() - began
    return taken / clients, bare / clients


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


def _lifted(path: Path) -> PredictiveSum[Any]:
    upload = Upload.load(path)
    return contribution(upload, upload.predictive()).summand(**LIFTED)


def _fold(files: list[Path], clients: int) -> tuple[list[float], list[float]]:
    """CPU seconds of an upload, block by block: folded, and barely added."""
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
    return ours, bare


def _blocks(files: list[Path], num: int) -> Iterator[list[Path]]:
    for start in range(0, num, BLOCK):
        size = min(BLOCK, num - start)
        yield [files[(start + k) % len(files)] for k in range(size)]


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
