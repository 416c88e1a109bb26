"""The wheel has the same bytes wherever, whenever and by whomever it is built."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "src")


def copied(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, folder / name)
    return folder


def built(folder: Path, out: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    settings = {name: text for name, text in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(
        command, cwd=folder, env={**settings, **environment}, check=True, capture_output=True
    )
    (wheel,) = out.iterdir()
    return wheel


def test_two_builds_have_the_same_bytes(tmp_path):
    """In other folders, with other times, rights, time zones, and caches lying about."""
    first = copied(tmp_path / "one")
    second = copied(tmp_path / "elsewhere" / "two")
    for path in sorted(second.rglob("*"), reverse=True):
        if path.is_file():
            path.chmod(0o600)
            os.utime(path, (1e9, 1e9))
    cache = second / "src" / "predbayes" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "left.cpython-311.pyc").write_bytes(b"left")
    wheels = [
        built(first, tmp_path / "a", TZ="UTC"),
        built(second, tmp_path / "b", TZ="Asia/Tokyo"),
    ]
    digests = {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    assert len(digests) == 1
    names = zipfile.ZipFile(wheels[1]).namelist()
    assert "predbayes/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]
