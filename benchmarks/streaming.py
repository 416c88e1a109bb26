"""Folding 10,000 clients' predictives (12,000 x 10): memory against 10 clients, and throughput.

`rss_ratio` compares the peak resident memory of two processes that fold 10 and 10,000 different
clients. `throughput_ratio` compares the fold with the fewest torch kernels that do the same
maths over the same bytes (a finiteness check, a clamp, one exp, two in-place adds into float64),
alternating in one run, one thread. `throughput_ratio_cheap_check` gives those kernels our own
check, one sum.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from predbayes.predictive.families import LOG_PROB_FLOOR, Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes.seeding import generator
from predbayes.summand import fold

SHAPE = (12_000, 10)
FEW, MANY = 10, 10_000
ROUNDS, CHUNK = 15, 100


def run() -> dict[str, Any]:
    """Measure memory in two processes, then throughput in this one."""
    few, many = (_peak_rss_of(num) for num in (FEW, MANY))
    print(f"peak RSS: {few / 1e6:.0f} MB for {FEW} clients, {many / 1e6:.0f} MB for {MANY}")
    torch.set_num_threads(1)
    batch = [client.log_probs for client in _clients(16)]
    seconds: dict[Callable[[list[Tensor]], None], list[float]] = {
        way: [] for way in (_fold, _fewest_kernels, _cheapest_check)
    }
    for _ in range(ROUNDS):
        for way, values in seconds.items():
            values.append(_seconds(way, batch))
    ours, fewest, cheapest = seconds.values()
    print(f"per client: {1e6 * median(ours):.0f} us, fewest kernels {1e6 * median(fewest):.0f} us")
    return {
        "rss_ratio": many / few,
        "throughput_ratio": median(b / o for o, b in zip(ours, fewest, strict=True)),
        "throughput_ratio_cheap_check": median(b / o for o, b in zip(ours, cheapest, strict=True)),
        "clients": MANY,
        "microseconds_per_client": 1e6 * median(ours),
    }


def _clients(num: int) -> Iterator[Categorical]:
    rng = generator(0, "clients")
    for _ in range(num):
        yield Categorical.from_natural(3 * torch.randn(SHAPE, generator=rng))


def _fold(batch: list[Tensor]) -> None:
    fold(PredictiveSum.of(Categorical(batch[i % len(batch)]), 9600.0) for i in range(CHUNK))


def _fewest_kernels(batch: list[Tensor]) -> None:
    _by_hand(batch, lambda log_probs: bool(torch.isfinite(log_probs).all()))


def _cheapest_check(batch: list[Tensor]) -> None:
    _by_hand(batch, lambda log_probs: math.isfinite(log_probs.sum().item()))


def _by_hand(batch: list[Tensor], is_finite: Callable[[Tensor], bool]) -> None:
    natural, moments = (torch.zeros(SHAPE, dtype=torch.float64) for _ in range(2))
    for index in range(CHUNK):
        log_probs = batch[index % len(batch)]
        if not is_finite(log_probs):
            raise ValueError("not finite")
        log_probs = log_probs.clamp_min(LOG_PROB_FLOOR)
        natural.add_(log_probs)
        moments.add_(log_probs.exp(), alpha=9600.0)


def _seconds(way: Callable[[list[Tensor]], None], batch: list[Tensor]) -> float:
    start = time.process_time()
    way(batch)
    return (time.process_time() - start) / CHUNK


def _peak_rss_of(num_clients: int) -> int:
    """Peak resident bytes of a process of its own that folds this many clients."""
    command = [sys.executable, "-m", "benchmarks.streaming", str(num_clients)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(finished.stdout.splitlines()[-1])["peak_rss"])


def _fold_and_report(num_clients: int) -> None:
    torch.set_num_threads(1)
    total = fold(PredictiveSum.of(client, 9600.0) for client in _clients(num_clients))
    total.pool(0.5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"clients": total.num_clients, "peak_rss": peak}))


if __name__ == "__main__":
    _fold_and_report(int(sys.argv[1]))
