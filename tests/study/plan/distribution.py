"""A distribution that offers a network of one's own, as pip leaves it in site-packages."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

NAME = "ours"
SOURCE = """
from torch import nn

def build(num_inputs, num_outputs):
    return nn.Sequential(nn.Linear(num_inputs, 5), nn.Tanh(), nn.Linear(5, num_outputs))

not_callable = 3
"""
FILES = {"ournets/__init__.py": "", "ournets/nets.py": SOURCE}


def forget() -> None:
    """Let the modules of such a distribution be imported anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "ournets"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def install(
    root: Path,
    files: Mapping[str, str] = FILES,
    *,
    distribution: str = "ournets",
    offers: Mapping[str, str] | None = None,
    record: bool = True,
) -> Path:
    """Write packages, and the metadata of their distribution: entry points and RECORD.

    Modules that an earlier test imported from such a distribution are forgotten.
    """
    forget()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    info = root / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    offers = {NAME: "ournets.nets:build"} if offers is None else offers
    entries = "".join(f"{name} = {value}\n" for name, value in offers.items())
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[predbayes.networks]\n{entries}")
    if record:
        listed = [*files, f"{info.name}/METADATA", f"{info.name}/entry_points.txt"]
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in listed))
    return root
