"""Sealed sums: how exact, how large and how quick they are.

Sites of classes, made up: each knows a little of the truth on the reference rows, some more than
others, and has 20 to 200 rows of each class. Each is lifted, rounded to words, masked, sealed
to one key holder, signed and written; the coordinator checks and adds the files, the holder opens
the sum, and the coordinator tunes beta on 300 labelled rows (`tune_beta`) and pools all rows. For
300 x 2, 2,000 x 10 and 12,000 x 10 (reference rows x classes), at 5 and 100 sites:

    bits               whether the opened words are the sum of the words, added in another order
    beta_error         |beta of the opened sum - beta of the same terms added in float64, unrounded|
    prediction_error   the largest difference of a probability, pooled by these two betas
    open_error         likewise against the ordinary exact sum of an open study, which itself rounds
                       log p to 1.5e-8
    bytes_per_number   of a file, over the numbers in it
    site_seconds       to lift, mask, seal, sign and write: one site
    add_seconds        to read, check and add: all sites
    holder_seconds     to open the seals and sum the masks: all sites
    open_seconds       to check the opening, take it away and have the sum: the coordinator

Seconds are of the processor. `memory_growth_mb` is what the peak of memory of adding files and
opening their sum grows by from 5 to 100 sites at 12,000 x 10, each in a process of its own that
reads the files of so many sites, all different.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from predbayes.exchange.header import Header, UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_beta
from predbayes.seeding import generator
from predbayes_study.extras.sealed.fixed_point import FixedPoint
from predbayes_study.extras.sealed.masking import (
    WORDS,
    check_seals,
    masked,
    opening_of,
    requests_of,
    summed_masks,
    unmasked,
)
from predbayes_study.extras.sealed.secure_sum import from_words, to_words
from predbayes_study.payloads.details import is_signed_by, save_signed
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey

SHAPES = ((300, 2), (2000, 10), (12_000, 10))
SITES = (5, 100)
LABELS, FLOOR, MAX_ROWS, MAX_SITES = 300, -12.0, 100_000, 100
PLAN = "ab" * 32


def run() -> dict[str, Any]:
    """Measure every shape and number of sites."""
    torch.set_num_threads(1)
    cells = [_cell(rows, classes, sites) for rows, classes in SHAPES for sites in SITES]
    growth = _growth()
    print(f"memory of the coordinator grows by {growth:.1f} MB", flush=True)
    return {
        "beta_error": max(cell["beta_error"] for cell in cells),
        "prediction_error": max(cell["prediction_error"] for cell in cells),
        "bits": all(cell["bits"] for cell in cells),
        "bytes_per_number": max(cell["bytes_per_number"] for cell in cells),
        "memory_growth_mb": growth,
        "cells": cells,
    }


def _cell(num_rows: int, num_classes: int, num_sites: int) -> dict[str, Any]:
    form = FixedPoint(num_rows, num_classes, FLOOR, MAX_ROWS, MAX_SITES)
    holder, clock = CoordinatorKey.generate(), _Clock()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        keys = _send(form, folder, num_sites, holder, clock)
        found, total = _opened(form, folder, keys, holder, clock)
        size = (folder / "0.safetensors").stat().st_size
    backwards = torch.zeros_like(found)
    for number in reversed(range(num_sites)):
        backwards += _words(form, number)
    cell = {
        "rows": num_rows,
        "classes": num_classes,
        "sites": num_sites,
        "bits": torch.equal(found, backwards),
        **_errors(form, total, num_sites),
        "bytes": size,
        "bytes_per_number": size / form.size,
        **clock.seconds,
    }
    cell["site_seconds"] /= num_sites
    print(cell, flush=True)
    return cell


def _opened(
    form: FixedPoint, folder: Path, keys: list[str], holder: CoordinatorKey, clock: _Clock
) -> tuple[Tensor, PredictiveSum[Categorical]]:
    """The words of the files in a folder, added up and opened, and what sum they are."""
    clock.start()
    words, requests = _added(form, folder, keys, holder)
    clock.stop("add_seconds")
    mask = summed_masks(requests[0], holder, form.size)
    path = folder / "holder.opening"
    path.write_bytes(opening_of(requests[0], mask, holder.signing))
    clock.stop("holder_seconds")
    digests = {site: told.words for site, told in requests[0].sites.items()}
    found = unmasked(words, digests, [path], PLAN, [holder.public])
    total = from_words(form, found, len(keys))
    clock.stop("open_seconds")
    return found, total


def _site(form: FixedPoint, number: int) -> tuple[Categorical, Tensor]:
    """What a site predicts, and its rows of each class."""
    rng = generator(number, "site", form.num_rows, form.num_classes)
    noise = torch.randn(form.num_rows, form.num_classes, generator=rng)
    counts = torch.randint(20, 200, (form.num_classes,), generator=rng).double()
    sharpness = (1 + number % 3) / 5
    return Categorical.from_natural(sharpness * (_truth(form) + noise)), counts


def _truth(form: FixedPoint) -> Tensor:
    rng = generator(0, "truth", form.num_rows)
    return torch.randn(form.num_rows, form.num_classes, generator=rng)


def _words(form: FixedPoint, number: int) -> Tensor:
    predictive, counts = _site(form, number)
    return to_words(form, predictive, float(counts.sum()), counts)


def _send(
    form: FixedPoint, folder: Path, num_sites: int, holder: CoordinatorKey, clock: _Clock
) -> list[str]:
    keys = []
    for number in range(num_sites):
        predictive, counts = _site(form, number)
        key = SigningKey.generate()
        rows = int(counts.sum())
        clock.start()
        words = to_words(form, predictive, rows, counts)
        info = UploadInfo(kind="predictions", num_rows=rows, site=f"s{number}", plan=PLAN)
        upload = masked(Upload(info, {}), words, [holder.public.encryption], key)
        save_signed(upload, folder / f"{number}.safetensors", key)
        clock.stop("site_seconds")
        keys.append(key.public.hex)
    return keys


def _added(
    form: FixedPoint, folder: Path, keys: list[str], holder: CoordinatorKey
) -> tuple[Tensor, list[Any]]:
    """The sum of the files, each checked as it is read, and the request to the holder."""
    total, recipients = torch.zeros(form.size, dtype=torch.int64), [holder.public.encryption]
    sites: dict[str, Any] = {}
    for number, key in enumerate(keys):
        path = folder / f"{number}.safetensors"
        header = Header.read(path)
        upload = Upload.load(path, header)
        assert is_signed_by(header, key, upload.digest())
        check_seals(upload, recipients, key)
        total += upload.arrays[WORDS]
        sites |= requests_of(PLAN, [(upload, key)], recipients)[0].sites
    request = requests_of(PLAN, [], recipients)[0].model_copy(update={"sites": sites})
    return total, [request]


def _errors(form: FixedPoint, total: PredictiveSum[Any], num_sites: int) -> dict[str, float]:
    shares = (2 * _truth(form)[:LABELS]).softmax(-1)
    targets = torch.multinomial(shares, 1, generator=generator(0, "labels"))[:, 0]
    exact = _open(form, num_sites)
    terms = _unrounded(form, num_sites)
    floats = exact.with_floats(terms, num_sites, None)
    some = {name: (value[:LABELS], weight) for name, (value, weight) in terms.items()}
    labelled = exact[:LABELS].with_floats(some, num_sites, None)
    betas, pools = [], []
    for part, whole in ((total[:LABELS], total), (labelled, floats), (exact[:LABELS], exact)):
        beta = tune_beta(part, targets, profiles=False).weights["product"]
        assert isinstance(beta, float)
        betas.append(beta)
        pools.append(whole.pool(beta).moments())
    return {
        "beta": betas[0],
        "beta_error": abs(betas[0] - betas[1]),
        "prediction_error": float((pools[0] - pools[1]).abs().max()),
        "open_error": float((pools[0] - pools[2]).abs().max()),
    }


def _open(form: FixedPoint, num_sites: int) -> PredictiveSum[Categorical]:
    total = _lifted(form, 0)
    for number in range(1, num_sites):
        total.add_(_lifted(form, number))
    return total


def _lifted(form: FixedPoint, number: int) -> PredictiveSum[Categorical]:
    predictive, counts = _site(form, number)
    return PredictiveSum.of(predictive, float(counts.sum()), floor=form.floor)


def _unrounded(form: FixedPoint, num_sites: int) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for number in range(num_sites):
        for name, (value, weight) in _lifted(form, number).floats().items():
            before = found.get(name, (torch.zeros_like(value), torch.zeros_like(weight)))
            found[name] = before[0] + value, before[1] + weight
    return found


class _Clock:
    """Seconds of the processor between a start and stops, added up by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        self.since = time.process_time()

    def stop(self, name: str) -> None:
        now = time.process_time()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.since
        self.since = now


def _growth() -> float:
    """By how much the peak of memory, in MB, of adding files of all sites is above that of few."""
    form, holder = FixedPoint(*SHAPES[-1], FLOOR, MAX_ROWS, MAX_SITES), CoordinatorKey.generate()
    with tempfile.TemporaryDirectory() as scratch:
        keys = _send(form, Path(scratch), max(SITES), holder, _Clock())
        holder.save(Path(scratch) / "holder.key")
        few, all_ = (_peak(Path(scratch), keys[:num]) for num in (min(SITES), max(SITES)))
    return all_ - few


def _peak(folder: Path, keys: list[str]) -> float:
    """Peak of memory, in MB, of a process that adds the files of some sites and opens the sum."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sealed", str(folder), *keys],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _alone(folder: Path, keys: list[str]) -> None:
    """Print the peak of this process."""
    torch.set_num_threads(1)
    form, holder = FixedPoint(*SHAPES[-1], FLOOR, MAX_ROWS, MAX_SITES), folder / "holder.key"
    _opened(form, folder, keys, CoordinatorKey.load(holder), _Clock())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    _alone(Path(sys.argv[1]), sys.argv[2:])
