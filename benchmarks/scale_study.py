"""A study of many sites: its uploads taken in and added up, and what a command costs then.

Every site has a key of its own and sends a signed file of 2,000 x 3 numbers in half precision. They
come in lots. Of each lot CPU seconds are taken of two things:

    intake   `Study.add_all`: size, header, keys, digests, signature, bounds, ledger, disk
    fold     `ShardSum.of`: each file read again, its digests and signature checked, its numbers
             lifted into the six terms of `auto`, and added

The cost model says that both are a constant times the number of sites; the constant is the median
of the first thousand sites. `against_model` is measured over predicted.

`command_ratio` is the CPU of one command in a process that goes on, with all sites in over that
with a hundred: the status, one more upload, one receipt. From both is taken what each has to read,
which grows with the sites: the SHA-256 of the ledger and of the checkpoint (`must_read`).
`finish_ratio` is the CPU of the command `study finish`, screening, student and report included,
with all sites, or the first 10,000, over that with a hundred.

`bytes_a_place` is what a site's place in the list of a shard's sum takes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.upload import Upload
from predbayes.predictive.pooling import PredictiveSum
from predbayes.study.coordinator.checkpoint import CHECKPOINT
from predbayes.study.coordinator.status import status_of
from predbayes.study.coordinator.study import Study
from predbayes.study.result.shardsum import ShardSum
from tests.study.world import World, make_world

LOT, FEW = 1000, 100
FINISHED = 10_000  # sites at the most, of whom a result is made
_SHOWN = 20  # sites that the command line lists
_DRAWN = 20  # different predictions
_TURNS = 3  # of a command


class ManySites:
    """A study that grows."""

    def __init__(self, root: Path) -> None:
        upload = "encrypt = false\nprecision = 'float16'"
        key = CoordinatorKey.generate()
        self.world = make_world(root, unlabelled=1900, upload=upload, coordinator=key)
        self.study = self.world.begin(sites=())
        self.total: PredictiveSum[Any] | None = None
        self.bytes_a_place = 0.0
        self._drawn = [_half(self.world, f"drawn {number}") for number in range(_DRAWN)]

    def grow(self, names: list[str]) -> tuple[float, float]:
        """Take in uploads of some sites, and add them up; CPU seconds of both."""
        study = self.study
        study.admit_all({name: self.world.key(name).public for name in names})
        files = [self.file(name) for name in names]
        began = time.process_time()
        taken = list(study.add_all(files))
        middle = time.process_time()
        found = ShardSum.of(study.plan, taken, study.read)  # type: ignore[arg-type]
        if self.total is None:
            self.total = found.total
        else:
            self.total.add_(found.total)
        ended = time.process_time()
        for path in files:
            path.unlink()
        listed = found.upload(study.plan.digest(), "shard", seen="", entry=1).arrays.items()
        num_bytes = sum(array.nbytes for name, array in listed if name.startswith("member/"))
        self.bytes_a_place = num_bytes / len(names)
        return middle - began, ended - middle

    def file(self, name: str) -> Path:
        """The signed file of a site."""
        made = self._drawn[len(self.world.keys) % _DRAWN].named(name)
        path = self.world.root / f"{name}.safetensors"
        made.save(path, self.world.key(name))
        return path

    def commands(self, number: int) -> dict[str, float]:
        """CPU seconds of commands, the least of three."""
        study = Study(self.study.folder)
        late = [f"late {number} {turn}" for turn in range(_TURNS)]
        study.admit_all({name: self.world.key(name).public for name in late})
        files = map(self.file, late)
        return {
            "must_read": _least(self._digests),
            "status": _least(lambda: status_of(study, _SHOWN)),
            "add": _least(lambda: study.add(next(files))),
            "receipt": _least(lambda: study.receipt(late[0])),
        }

    def finish(self) -> float:
        """CPU seconds of the command that makes a result, as children of this process."""
        before = os.times()
        command = [sys.executable, "-m", "predbayes", "study", "finish"]
        command += ["--study", str(self.study.folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        user = after.children_user - before.children_user
        return user + after.children_system - before.children_system

    def _digests(self) -> None:
        paths = (self.study.ledger.path, self.study.folder / CHECKPOINT)
        for path in filter(Path.exists, paths):
            hashlib.sha256(path.read_bytes()).digest()


def _half(world: World, name: str) -> Upload:
    made = world.upload(name)
    return replace(made, arrays={key: array.half() for key, array in made.arrays.items()})


def _least(command: Callable[[], object]) -> float:
    found = []
    for _ in range(_TURNS):
        began = time.process_time()
        command()
        found.append(time.process_time() - began)
    return min(found)


def run(clients: int = 10_000) -> dict[str, Any]:
    """Take in and add up so many uploads."""
    with tempfile.TemporaryDirectory() as scratch:
        many, intake, fold, sizes = ManySites(Path(scratch)), list[float](), list[float](), [0]
        few, finishes = dict[str, float](), list[float]()
        for lot in _lots(clients):
            seconds = many.grow([f"site {number}" for number in lot])
            intake.append(seconds[0])
            fold.append(seconds[1])
            sizes.append(lot.stop)
            if lot.stop in (FEW, min(clients, FINISHED)):
                finishes.append(many.finish())
                print(f"finish with {lot.stop}: {finishes[-1]:.1f} s CPU", flush=True)
            if not few:
                few = many.commands(0)
            if lot.stop in (1000, clients) or lot.stop % 10_000 == 0:
                print(
                    f"{lot.stop} in: intake {sum(intake):.1f} s, fold {sum(fold):.1f} s CPU",
                    flush=True,
                )
        late = many.commands(1)
        assert many.total is not None
        assert many.total.num_clients == clients
    lengths = [after - before for before, after in pairwise(sizes)]
    return {
        "taken_in": clients,
        "intake_seconds": sum(intake),
        "fold_seconds": sum(fold),
        "against_model": {
            "intake": _against_model(lengths, intake),
            "fold": _against_model(lengths, fold),
        },
        "command_ratio": {
            name: (late[name] - late["must_read"]) / (few[name] - few["must_read"])
            for name in ("status", "add", "receipt")
        },
        "command_seconds": late,
        "finish_ratio": finishes[-1] / finishes[0],
        "bytes_a_place": many.bytes_a_place,
    }


def _lots(clients: int) -> Iterator[range]:
    """A hundred first, then up to a thousand, then by the thousand."""
    ends = [e for e in (FEW, LOT, *range(2 * LOT, clients, LOT)) if e < clients] + [clients]
    return (range(start, end) for start, end in pairwise([0, *ends]))


def _against_model(lengths: list[int], seconds: list[float]) -> dict[int, float]:
    """Measured over predicted CPU, by the number of uploads."""
    constant = median(s / n for s, n in zip(seconds[:2], lengths[:2], strict=True))
    found, num, spent = {}, 0, 0.0
    for length, took in zip(lengths, seconds, strict=True):
        num, spent = num + length, spent + took
        if num in (10**2, 10**3, 10**4, 10**5):
            found[num] = spent / (num * constant)
    return found
