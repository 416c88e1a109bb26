"""The wheel has the same bytes wherever, whenever and by whomever it is built."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import predbayes
import predbayes_flower
import predbayes_lab
import predbayes_study

ROOT = Path(__file__).parents[2]
PARTS = ("core", "study", "flower", "lab")


def copied(part: str, folder: Path) -> Path:
    leave = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(ROOT / "packages" / part, folder / part, ignore=leave))


def built(folder: Path, out: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    settings = {name: text for name, text in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(
        command, cwd=folder, env={**settings, **environment}, check=True, capture_output=True
    )
    (wheel,) = out.iterdir()
    return wheel


@pytest.mark.parametrize("part", PARTS)
def test_two_builds_have_the_same_bytes(part, tmp_path):
    """In other folders, with other times, rights, time zones, and caches lying about."""
    first = copied(part, tmp_path / "one")
    second = copied(part, tmp_path / "elsewhere" / "two")
    for path in sorted(second.rglob("*"), reverse=True):
        if path.is_file():
            path.chmod(0o600)
            os.utime(path, (1e9, 1e9))
    (package,) = (second / "src").iterdir()
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "left.cpython-311.pyc").write_bytes(b"left")
    wheels = [
        built(first, tmp_path / "a", TZ="UTC"),
        built(second, tmp_path / "b", TZ="Asia/Tokyo"),
    ]
    digests = {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    assert len(digests) == 1
    names = zipfile.ZipFile(wheels[1]).namelist()
    assert f"{package.name}/__init__.py" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_all_distributions_have_one_version_and_one_licence():
    """And ask for each other in this version alone."""
    packages = (predbayes, predbayes_study, predbayes_flower, predbayes_lab)
    assert {package.__version__ for package in packages} == {predbayes.__version__}
    licences = {(ROOT / "packages" / part / "LICENSE").read_bytes() for part in PARTS}
    assert licences == {(ROOT / "LICENSE").read_bytes()}
    for part in PARTS:
        text = (ROOT / "packages" / part / "pyproject.toml").read_text(encoding="utf-8")
        asked = [
            Requirement(line)
            for line in tomllib.loads(text)["project"]["dependencies"]
            if line.startswith("predbayes")
        ]
        assert all(str(one.specifier) == f"=={predbayes.__version__}" for one in asked)
        assert bool(asked) == (part != "core")
