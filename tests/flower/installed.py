"""An example's package as `pip install .` leaves it, without a network."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path


def install(example: Path, package: str, root: Path) -> Path:
    """Put a package and the metadata of its distribution into a folder, and return that."""
    shutil.copytree(example / package, root / package)
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    info = root / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (group, entries), *_ = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    files = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    return root
