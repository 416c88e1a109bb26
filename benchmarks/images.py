"""Freezing and checking images of 64 x 64 x 3, against reading and hashing the same bytes.

Images lie in one array file (`store`), or are PNG files (`files`). Figures are processor time, the
least of some turns, in that of the bare operation; `growth` is the time to freeze four times as
many images, which is 4 where time is linear in bytes.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from predbayes.files import remove
from predbayes.study.kit.kit import Kit, freeze
from predbayes.study.tables.check import site_problems
from predbayes.study.tables.sitefile import SiteFile

SHAPE = (64, 64, 3)
TURNS = 3
PLAN = """
format = 1
name = "images"
[target]
name = "kind"
task = "classification"
classes = ["a", "b"]
[columns]
photo = {{ type = "image", shape = [64, 64, 3] }}
[reference]
file = "rows.csv"
source = "drawn at random"
licence = "none"
legal_basis = "nobody's"
labelled = {0}
unlabelled = {0}
[learner]
name = "network"
"""


def run(rows: int = 2000) -> dict[str, float]:
    """Measure both ways to have images, with these rows and a quarter of them."""
    figures: dict[str, float] = {}
    for way in (_store, _files):
        large, small = measure(way, rows), measure(way, rows // 4)
        name = way.__name__[1:]
        figures |= {f"{what}_{name}": ratio(large, what) for what in ("freeze", "check", "load")}
        figures[f"growth_{name}"] = large["freeze"] / small["freeze"]
        for told in (large, small):
            print(f"{name:<6}" + "".join(f"  {what} {sec:.3f} s" for what, sec in told.items()))
    return {name: round(value, 2) for name, value in figures.items()}


def ratio(seconds: dict[str, float], what: str) -> float:
    """Return a time in those of the bare operation."""
    return seconds[what] / seconds["bare"]


def measure(way: Callable[[Path, int], Callable[[], object]], rows: int) -> dict[str, float]:
    """Return seconds of processor time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = way(folder, rows)
        (folder / "plan.toml").write_text(PLAN.format(rows // 2))
        site, kit = SiteFile.loads('format = 1\nname = "Basel"\n'), folder / "kit"

        def frozen() -> None:
            for path in (kit, folder / "kit-labels.json"):
                remove(path)
            freeze(folder / "plan.toml", kit)

        def checked() -> None:
            site_problems(Kit.load(kit).plan, site, folder / "rows.csv")

        turns = {"bare": bare, "freeze": frozen, "load": lambda: Kit.load(kit), "check": checked}
        found = {what: least(act) for what, act in turns.items()}
        found["check"] -= found["load"]
        return found


def least(act: Callable[[], object]) -> float:
    """Return the least processor time of some turns."""
    taken = []
    for _ in range(TURNS):
        start = time.process_time()
        act()
        taken.append(time.process_time() - start)
    return min(taken)


def _store(folder: Path, rows: int) -> Callable[[], object]:
    np.save(folder / "photo.npy", _pixels(rows))
    _table(rows).to_csv(folder / "rows.csv", index=False)
    return lambda: hashlib.sha256(np.load(folder / "photo.npy").tobytes()).digest()


def _files(folder: Path, rows: int) -> Callable[[], None]:
    names = [f"{row}.png" for row in range(rows)]
    for name, pixels in zip(names, _pixels(rows), strict=True):
        Image.fromarray(pixels).save(folder / name)
    _table(rows).assign(photo=names).to_csv(folder / "rows.csv", index=False)

    def bare() -> None:
        content = hashlib.sha256()
        for name in names:
            with Image.open(folder / name) as image:
                content.update(np.asarray(image).tobytes())

    return bare


def _pixels(rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (rows, *SHAPE)).astype(np.uint8)


def _table(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"kind": ["a", "b"] * (rows // 2)})
