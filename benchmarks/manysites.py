"""Many sites, some poisoned: what screening costs, and what it saves.

Classes of a known truth; every site knows the log odds with an error of its own, as small models of
alike hospitals do. Of 1,000 sites 1 % or 10 % are poisoned, all in one of five ways:

    permuted          classes exchanged
    shuffled          predictions of other rows
    wrong and sure    as permuted, far too confident
    constant          the same for each row
    copy              one honest site's predictions, with noise

`nll_ratio` is the NLL on test rows of the pool screened, over that of the honest sites alone, and
`open` that of everybody's. With `--alike 10000` as many sites are screened, 5 % of them bad, of all
five kinds; `screening_ratio` is the CPU time over that of folding 2,000 rows of each site, measured
in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import Contribution
from predbayes.seeding import generator
from predbayes_study.result.influence import PoolLosses
from predbayes_study.result.screening import screen

NUM_LABELS, NUM_TEST, NUM_CLASSES, NUM_REFERENCE = 300, 1000, 10, 2000
FLOOR = -12.0  # as in a plan
TARGET = 1.05

Poison = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def _permuted(log_probs: Tensor, other: Tensor, rng: torch.Generator) -> Tensor:  # noqa: ARG001
    return log_probs.roll(1, 1)


def _shuffled(log_probs: Tensor, other: Tensor, rng: torch.Generator) -> Tensor:  # noqa: ARG001
    return log_probs[torch.randperm(len(log_probs), generator=rng)]


def _sure(log_probs: Tensor, other: Tensor, rng: torch.Generator) -> Tensor:  # noqa: ARG001
    return (10 * log_probs.roll(1, 1)).log_softmax(1)


def _constant(log_probs: Tensor, other: Tensor, rng: torch.Generator) -> Tensor:  # noqa: ARG001
    return log_probs[:1].repeat(len(log_probs), 1)


def _copy(log_probs: Tensor, other: Tensor, rng: torch.Generator) -> Tensor:  # noqa: ARG001
    return (other + 0.02 * torch.randn(other.shape, generator=rng)).log_softmax(1)


POISONS: dict[str, Poison] = {
    "permuted": _permuted,
    "shuffled": _shuffled,
    "wrong and sure": _sure,
    "constant": _constant,
    "copy": _copy,
}


def run(alike: int = 0, sites: int = 1000) -> dict[str, Any]:
    """Poison 1 % and 10 % of the sites in each way, or time the screening of alike sites."""
    torch.set_num_threads(1)
    if alike:
        return timed(alike)
    cells = list(poisoned(sites))
    worst = max(cell["nll_ratio"] for cell in cells)
    return {"worst": worst, "reached": worst <= TARGET, "target": TARGET, "cells": cells}


def poisoned(num: int) -> Iterator[dict[str, Any]]:
    """Each share of each poison, against the pool of the honest sites alone."""
    for share in (0.01, 0.1):
        for name, poison in POISONS.items():
            targets, clean = made(num, NUM_LABELS + NUM_TEST, 0.6)
            every = round(1 / share)
            rng = generator(1, "poison", name)
            copied = _log_probs(clean[1])
            sites = list(clean)
            sites[::every] = [
                _with(site, poison(_log_probs(site), copied, rng)) for site in clean[::every]
            ]
            bad = {site.site for site in sites[::every]}
            labelled = [site.at(slice(NUM_LABELS)) for site in sites]
            losses = PoolLosses(targets[:NUM_LABELS], seed=0, floor=FLOOR)
            started = time.process_time()
            found = screen(labelled, targets[:NUM_LABELS], losses=losses)
            seconds = time.process_time() - started
            out = {name for name, one in found.items() if one.leave_out}
            base = held_out_nll([site for site in sites if site.site not in bad], targets)
            cell = {
                "share": share,
                "poison": name,
                "nll": base,
                "open": held_out_nll(sites, targets) / base,
                "nll_ratio": held_out_nll([s for s in sites if s.site not in out], targets) / base,
                "bad_left_out": len(out & bad) / len(bad),
                "honest_left_out": len(out - bad),
                "seconds": seconds,
            }
            print(cell, flush=True)
            yield cell


def timed(num: int) -> dict[str, Any]:
    """The time of screening over that of folding, 5 % of alike sites being bad."""
    targets, sites = made(num, NUM_LABELS, 0.3)
    rng = generator(1, "poison")
    kinds = list(POISONS.values())
    for place, k in enumerate(range(0, num, 20)):
        other = _log_probs(sites[k + 1])
        sites[k] = _with(sites[k], kinds[place % 5](_log_probs(sites[k]), other, rng))
    bad = {site.site for site in sites[::20]}
    losses = PoolLosses(targets, seed=0, floor=FLOOR)
    fold_seconds = num * _seconds_to_fold(losses)
    total = losses.tuned(sites).total  # which the fold of the uploads gives
    started = time.process_time()
    found = screen(sites, targets, losses=losses, total=total)
    seconds = time.process_time() - started
    out = {name for name, one in found.items() if one.leave_out}
    return {
        "sites": num,
        "fold_seconds": fold_seconds,
        "screening_seconds": seconds,
        "screening_ratio": seconds / fold_seconds,
        "bad_left_out": len(out & bad) / len(bad),
        "honest_left_out": len(out - bad),
    }


def _seconds_to_fold(losses: PoolLosses, num: int = 200) -> float:
    """CPU seconds to lift and add one upload of 2,000 rows; reading it is not counted."""
    _, sites = made(20, NUM_REFERENCE, 0.3)
    total = losses.summand(sites[0])
    started = time.process_time()
    for k in range(num):
        total.add_(losses.summand(sites[k % 20]))
    return (time.process_time() - started) / num


def made(num: int, num_rows: int, error: float) -> tuple[Tensor, list[Contribution]]:
    """Labels, and sites that know them about as well as one can."""
    rng = generator(0, "sites", num, num_rows)
    signal = 1.5 * torch.randn(num_rows, NUM_CLASSES, generator=rng)
    targets = torch.multinomial(signal.softmax(1), 1, generator=rng).squeeze(1)
    sites = []
    for k in range(num):
        noise = error * torch.randn(signal.shape, generator=rng)
        rows = float(torch.randint(50, 400, (), generator=rng))
        counts = torch.full((NUM_CLASSES,), rows / NUM_CLASSES)
        predictive = Categorical.from_natural(signal + noise)
        sites.append(Contribution(f"site {k:06d}", predictive, rows, counts))
    return targets, sites


def _with(site: Contribution, log_probs: Tensor) -> Contribution:
    return Contribution(site.site, Categorical(log_probs), site.num_rows, site.class_rows)


def _log_probs(site: Contribution) -> Tensor:
    assert isinstance(site.predictive, Categorical)
    return site.predictive.log_probs


def held_out_nll(sites: list[Contribution], targets: Tensor) -> float:
    """Of the pool chosen on the labelled rows, on the test rows."""
    losses = PoolLosses(targets[:NUM_LABELS], seed=0, floor=FLOOR)
    total = losses.tuned(sites).total
    choice = losses.choice(total[:NUM_LABELS])
    pooled = total[NUM_LABELS:].pool(choice.tuned.weights)
    return -float(pooled.log_prob(targets[NUM_LABELS:]).double().mean())
