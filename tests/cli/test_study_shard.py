"""Shards on the command line, as the coordinator's page has them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from predbayes.exchange.coordinator import CoordinatorKey
from tests.cli.test_app import predbayes
from tests.study.world import SITES, make_world

PAGE = (Path(__file__).parents[2] / "docs" / "coordinator.md").read_text()
NORTH, OWN = SITES[:3], SITES[3:]


def steps() -> list[tuple[list[str], list[str]]]:
    """The commands of the page's section on shards, each with the lines that it prints."""
    section = re.split(r"^## ", PAGE, flags=re.M)
    (text,) = [part for part in section if part.startswith("Very many sites")]
    blocks = re.findall(r"(?:^    .*\n)+", text, re.M) + re.findall(
        r"^```\n(.*?)^```", text, re.M | re.S
    )
    blocks = [block for block in blocks if block.lstrip().startswith("$ ")]
    found: list[tuple[list[str], list[str]]] = []
    for line in (line.removeprefix("    ") for block in blocks for line in block.splitlines()):
        if line.startswith("$ "):
            found.append((shlex.split(line)[2:], []))
        else:
            found[-1][1].append(line)
    return found


@pytest.fixture
def world(tmp_path):
    made = make_world(tmp_path, coordinator=CoordinatorKey.generate())
    study = made.begin(sites=OWN)
    list(study.add_all([made.file(site) for site in OWN]))
    (tmp_path / "keys").mkdir()
    (tmp_path / "inbox").mkdir()
    for site in NORTH:
        made.key(site).public.save(tmp_path / "keys" / f"{site}.pub", site)
        made.file(site).rename(tmp_path / "inbox" / f"{site}.sealed")
    return made


def test_the_page_is_so(world, tmp_path):
    told = steps()
    assert [command[1] for command, _ in told] == [
        "key", "shard", "admit-all", "add", "sum", "admit", "merge", "receipt", "finish",
        "withdraw", "sum", "merge",
    ]  # fmt: skip
    for command, shown in told:
        done = predbayes(*command, cwd=tmp_path)
        assert done.returncode == 0, command
        steps_told = ["read the uploads, 2 in all"] if command[1] == "finish" else []
        assert done.stderr.splitlines()[:1] == steps_told, command
        pattern = "\n".join(".*" if line == "…" else re.escape(line) for line in shown)
        assert re.search(f"^{pattern.replace('…', '.*')}", done.stdout, re.S), (shown, done.stdout)
    status = predbayes("study", "status", cwd=tmp_path)
    assert "4 sites in" in status.stdout
    assert predbayes("study", "verify", cwd=tmp_path).returncode == 0
    assert predbayes("study", "verify", "--study", "north", cwd=tmp_path).returncode == 0
    proved = predbayes("site", "verify", "study/kit", "Alpha.receipt", cwd=tmp_path)
    assert proved.returncode == 0, proved.stderr
    # Refusals are one line each, and say what to do.
    for arguments, line in (
        (["merge", "Alpha.receipt"], "refused: Alpha.receipt: it is not a safetensors file"),
        (["finish", "--study", "north"], "north is a shard without labels"),
        (["sum", "--study", "study"], "study is no shard"),
        (["sum", "--study", "north", "--most-rows", "-1"], "--most-rows is a positive number"),
        (["withdraw", "Alpha", "--yes"], "Alpha is in the sum of north: it withdraws there"),
        (["shard", "x", "kit", "--key", "north.key"], "kit is not signed"),
    ):
        done = predbayes("study", *arguments, cwd=tmp_path)
        assert done.returncode == 2, arguments
        assert line in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
