"""Fashion-MNIST as PNG files at five sites that differ: python -m clothes.make OUT"""

import csv
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from predbayes.data.files import data_root, find_file, read_content
from predbayes.data.images import parse_idx
from predbayes.data.registry import lookup
from predbayes.flower import simulation
from predbayes.study.kit.kit import freeze

SITES = ("Basel", "Genoa", "Leiden", "Porto", "Uppsala")
WORDS = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)


def lay_out(out: Path, rows_each: int = 300, num_reference: int = 400, seed: int = 0) -> None:
    """Write reference images, and for each site images of mostly four of the ten classes."""
    files, rng = lookup("fashion-mnist"), np.random.default_rng(seed)
    found = [find_file(data_root() / files.folder, name) for name in list(files.files)[:2]]
    images, labels = (parse_idx(read_content(file), file.name) for file in found)
    order = rng.permutation(len(images))
    write(out / "reference", images, labels, order[:num_reference])
    write(out / "later", images, labels, order[num_reference : num_reference + 50])
    rest = order[num_reference + 50 :]
    for k, site in enumerate(SITES):
        often = np.isin(labels[rest], [(2 * k + step) % 10 for step in range(4)])
        chances = np.where(often, 8.0, 1.0)
        mine = rng.choice(rest, rows_each, replace=False, p=chances / chances.sum())
        write(out / site, images, labels, mine)


def begin(root: Path, rows_each: int = 300) -> None:
    """Make the study of a simulation: images beside it, five sites with a table and a key each."""
    images = root.with_name(f"{root.name}-images")
    lay_out(images, rows_each)
    shutil.copy(Path(__file__).with_name("plan.toml"), images)
    freeze(images / "plan.toml", images / "kit", images / "labels.json")
    tables = {site: pd.read_csv(images / site / "rows.csv") for site in SITES}
    for site, table in tables.items():
        table["photo"] = [str(images / site / name) for name in table["photo"]]
    simulation.lay_out(root, images / "kit", images / "labels.json", tables)


def write(folder: Path, images: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> None:
    """Write a folder of images, and a table with the name and the label of each."""
    (folder / "images").mkdir(parents=True)
    with (folder / "rows.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["photo", "label"])
        for row in rows:
            name = f"images/{row}.png"
            Image.fromarray(images[row]).save(folder / name)
            table.writerow([name, WORDS[int(labels[row])]])


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
