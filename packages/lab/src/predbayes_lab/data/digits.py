"""Handwritten digits of 8 x 8 pixels, which come with scikit-learn: small enough for every seed.

There is nothing to download. A third of the rows, drawn anew for each seed, are test rows. Pixels
are counts from 0 to 16; they are centred and scaled to about unit size by the training rows, all
alike, since many pixels at the rim are nearly always 0.
"""

from __future__ import annotations

import torch

from predbayes.optional import require
from predbayes_lab.data.dataset import Dataset, RawFiles

TEST_FRACTION = 1 / 3


def read_digits(raw: RawFiles, *, rng: torch.Generator) -> Dataset:
    """Read the digits from the installed package."""
    found = require("sklearn.datasets", "lab").load_digits()
    pixels, targets = torch.tensor(found.data).float(), torch.tensor(found.target).long()
    order = torch.randperm(len(targets), generator=rng)
    num_test = round(TEST_FRACTION * len(targets))
    test, train = order[:num_test], order[num_test:]
    centre, spread = pixels[train].mean(0), pixels[train].std(0).square().mean().sqrt()
    inputs = (pixels - centre) / spread
    content = {"digits": pixels.numpy().tobytes() + targets.numpy().tobytes()}
    return RawFiles(raw.name, raw.variant, content).dataset(
        (inputs[train], targets[train]), (inputs[test], targets[test]), num_classes=10
    )
