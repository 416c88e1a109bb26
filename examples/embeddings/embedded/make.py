"""CIFAR-10 in 512 frozen features at twenty sites: python -m embedded.make OUT

In place of a foundation model stand responses to random patches (`predbayes_lab.data.features`),
which
need no download. Yours writes `embedding.npy`, one row for each row of the table.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from predbayes.seeding import generator
from predbayes_flower import simulation
from predbayes_lab.data.features import patch_features
from predbayes_lab.data.registry import load
from predbayes_study.kit.kit import freeze
from predbayes_study.plan.schema import Plan

SITES = tuple(f"site {number:02d}" for number in range(20))
PLAN = Path(__file__).with_name("plan.toml")


def begin(root: Path, rows_each: int = 900, num_later: int = 500) -> None:
    """Make a study, and twenty sites that see different things, each with embeddings and a key."""
    home, rng = root.with_name(f"{root.name}-embeddings"), np.random.default_rng(0)
    plan, (images, labels) = Plan.load(PLAN), _photographs()
    num_common = plan.reference.num_rows + num_later
    rows = rng.permutation(len(images))[: num_common + len(SITES) * rows_each]
    embeddings = patch_features(images[rows], images[:1])[0][:, :512].numpy()
    words = np.array(plan.target.classes)[labels[rows].numpy()]
    write(home / "reference", embeddings, words, np.arange(plan.reference.num_rows))
    write(home / "later", embeddings, words, np.arange(plan.reference.num_rows, num_common))
    often = rng.dirichlet([0.5] * 10, len(SITES))  # of classes, at each site
    chances = often[:, labels[rows[num_common:]].numpy()]  # of each row to be at each site
    ends = (chances / chances.sum(0)).cumsum(0)
    owner = (ends < rng.random(ends.shape[1])).sum(0).clip(max=len(SITES) - 1)
    for number, site in enumerate(SITES):
        write(home / site, embeddings, words, num_common + np.flatnonzero(owner == number))
    (home / "plan.toml").write_bytes(PLAN.read_bytes())
    freeze(home / "plan.toml", home / "kit", home / "labels.json")
    tables = {site: pd.read_csv(home / site / "rows.csv") for site in SITES}
    simulation.lay_out(root, home / "kit", home / "labels.json", tables)
    for number, site in enumerate(SITES):
        store = root / "sites" / str(number) / "embedding.npy"
        store.write_bytes((home / site / "embedding.npy").read_bytes())


def _photographs() -> tuple[Tensor, Tensor]:
    dataset = load("cifar10", rng=generator(0))
    return dataset.train_inputs, dataset.train_targets


def write(folder: Path, embeddings: np.ndarray, words: np.ndarray, rows: np.ndarray) -> None:
    """Write a table of labels, and the embeddings of its rows beside it, in the same order."""
    folder.mkdir(parents=True)
    np.save(folder / "embedding.npy", embeddings[rows])
    table = pd.DataFrame({"embedding": range(len(rows)), "label": words[rows]})
    table.to_csv(folder / "rows.csv", index=False)


if __name__ == "__main__":
    begin(Path(sys.argv[1]).absolute())
