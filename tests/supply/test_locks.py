"""The lock files have all that pyproject.toml and constraints.txt ask for, each with a hash."""

from __future__ import annotations

import re
import runpy
import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "lock"))
PLATFORMS = SCRIPT["PLATFORMS"]


def locked(platform: str) -> dict[str, dict[str, tuple[str, list[str]]]]:
    paths = sorted((ROOT / "locks" / platform).glob("*.txt"))
    return {path.stem: SCRIPT["read"](path) for path in paths}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_requirement_is_locked_in_the_constraints_version_with_hashes(platform):
    sets = locked(platform)
    versions = SCRIPT["pinned"]()
    for rows in sets.values():
        assert {name: version for name, (version, _) in rows.items()} == {
            name: versions[name] for name in rows
        }
        for _, hashes in rows.values():
            assert hashes
            assert len(set(hashes)) == len(hashes)
            assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes)


def test_each_set_has_all_that_it_needs():
    """By the metadata of what is installed here, with the markers of each platform."""
    assert SCRIPT["outdated"]() == []
    for platform in PLATFORMS:
        sets = locked(platform)
        assert "ray" not in sets["study"]
        assert "pytest" not in {*sets["study"], *sets["flower"]}


def test_a_lock_file_that_lacks_something_is_named(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "locks", tmp_path / "locks")
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for path in (ROOT / "packages").glob("*/pyproject.toml"):
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    study = tmp_path / "locks" / "macos-arm64" / "study.txt"
    rows = study.read_text().replace("pydantic==", "not-pydantic==")
    study.write_text(rows)
    with (tmp_path / "constraints.txt").open("a") as file:
        file.write("left-over==1.0\n")
    script = runpy.run_path(str(ROOT / "scripts" / "lock"))
    monkeypatch.setitem(script["outdated"].__globals__, "ROOT", tmp_path)
    assert script["outdated"]() == [
        "locks/macos-arm64/study.txt",
        "constraints.txt: nothing needs left-over",
    ]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_distribution_is_in_two_sets(platform):
    """But torch for Linux, of which there are two builds: a file for each."""
    names = [name for rows in locked(platform).values() for name in rows]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == ({"torch"} if platform == "linux-x86_64" else set())
    if twice:
        cpu, cuda = (set(locked(platform)[name]["torch"][1]) for name in ("cpu", "cuda"))
        assert not cpu & cuda


def test_the_tools_of_a_release_are_those_of_the_platforms():
    tools = SCRIPT["read"](ROOT / "locks" / "tools.txt")
    assert {"hatchling", "packaging"} <= set(tools)
    for name, (version, hashes) in tools.items():
        found = [rows[name] for key in PLATFORMS for rows in locked(key).values() if name in rows]
        assert {of for of, _ in found} == {version}
        assert {digest for _, some in found for digest in some} == set(hashes)


def test_a_version_that_a_requirement_forbids_is_found():
    asks = {"predbayes": ["numpy>=99"]}
    with pytest.raises(SystemExit, match="write a version of numpy>=99"):
        SCRIPT["closure"](Requirement("predbayes"), {}, lambda name: asks.get(name, []))


def test_markers_and_extras_are_followed():
    windows = PLATFORMS["windows-amd64"].environment((3, 11))
    asks = {
        "predbayes-study": ["click", "rich; extra == 'tables'", "uvloop; sys_platform != 'win32'"],
        "click": ["colorama; platform_system == 'Windows'"],
    }
    found = [
        SCRIPT["closure"](Requirement(root), windows, lambda name: asks.get(name, []))
        for root in ("predbayes-study", "predbayes-study[tables]")
    ]
    assert found[0] == {"predbayes-study", "click", "colorama"}
    assert found[1] - found[0] == {"rich"}


def test_the_backend_of_the_wheel_is_the_locked_one():
    """Another version would write other bytes."""
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        (backend,) = tomllib.loads(path.read_text())["build-system"]["requires"]
        assert backend == f"hatchling=={SCRIPT['pinned']()['hatchling']}"
