"""Steps per second of the full sampling loop against a bare loop of torch's SGD with momentum.

The same MLP (784-100-100-10), the same 4,800 rows, batch 100, 25 epochs, one thread. The
sampling loop is the whole of it: gradients, noise, schedule, batching, snapshots. `ratio` is for
the paper's schedule, with noise in its sampling stages; `ratio_noise_every_step` has noise in
all steps. Runs of a second or two alternate, and a ratio is the median over the rounds, each of
neighbours in time: on a shared machine single timings are off by a quarter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Network, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import PRESETS, SamplerSettings
from predbayes.seeding import generator

ROUNDS = 30
NUM_ROWS, BATCH_SIZE, NUM_EPOCHS = 4800, 100, 25


def run() -> dict[str, Any]:
    """Alternate the loops and compare."""
    torch.set_num_threads(1)
    rng = generator(0, "data")
    rows = (
        torch.randn(NUM_ROWS, 784, generator=rng),
        torch.randint(10, (NUM_ROWS,), generator=rng),
    )
    paper = PRESETS["paper"]
    loops: dict[str, Callable[[], None]] = {
        "bare": lambda: _bare(*rows),
        "paper": lambda: _sample(rows, paper),
        "noisy": lambda: _sample(rows, replace(paper, exploration=0.0)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for index in range(ROUNDS + 1):
        # Forwards, then backwards, so that no loop always comes first.
        for name, loop in sorted(loops.items(), reverse=bool(index % 2)):
            start = time.process_time()
            loop()
            if index:  # the first round warms up
                seconds[name].append(time.process_time() - start)
    steps = NUM_EPOCHS * NUM_ROWS // BATCH_SIZE
    for name, values in seconds.items():
        print(f"{name:<6} {steps / median(values):8.0f} steps/s (median of {ROUNDS})")
    return {
        "ratio": _ratio(seconds["bare"], seconds["paper"]),
        "ratio_noise_every_step": _ratio(seconds["bare"], seconds["noisy"]),
        "bare_steps_per_s": steps / median(seconds["bare"]),
    }


def _bare(inputs: Tensor, targets: Tensor) -> None:
    model = mlp(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.1, foreach=True)
    for _ in range(NUM_EPOCHS):
        for batch in torch.split(torch.randperm(NUM_ROWS), BATCH_SIZE):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _sample(rows: tuple[Tensor, Tensor], settings: SamplerSettings) -> None:
    network = Network(lambda: mlp(784, 10), Softmax(10))
    SGHMCLearner(network, settings).fit(rows, rng=generator(0, "chain"))


def _ratio(baseline: list[float], ours: list[float]) -> float:
    return median(b / o for b, o in zip(baseline, ours, strict=True))
