"""The service units: systemd reads them, and finds them closed as far as a study allows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from predbayes_flower.node import Node
from predbayes_flower.outbox import Outbox, greeting
from tests.flower.deployment import BIN, ROOT, run
from tests.flower.nodes import make_node

UNITS = sorted((ROOT / "deploy").glob("*.service"))
MOST_EXPOSED = 15  # tenths, of 100; an ordinary service has 96


@pytest.fixture(params=UNITS, ids=lambda path: path.stem)
def unit(request, tmp_path):
    """A unit with this environment's programs."""
    assert shutil.which("systemd-analyze"), "this test needs systemd-analyze: apt install systemd"
    path = tmp_path / request.param.name
    path.write_text(request.param.read_text().replace("/opt/predbayes/bin", str(BIN)))
    return path


def test_systemd_takes_it_without_a_word(unit):
    done = run("systemd-analyze", "verify", "--recursive-errors=no", unit)
    assert done.stdout + done.stderr == ""


def test_it_is_closed(unit):
    options = ("--offline=yes", "--no-pager", f"--threshold={MOST_EXPOSED}")
    run("systemd-analyze", "security", *options, unit)
    open_one = unit.with_name("open.service")
    open_one.write_text(unit.read_text().split("ProtectSystem")[0])
    assert run("systemd-analyze", "security", *options, open_one, check=False).returncode


def test_no_unit_reaches_the_internet(unit):
    lines = unit.read_text().splitlines()
    assert "IPAddressDeny=any" in lines
    assert [line for line in lines if line.startswith("IPAddressAllow")] == [
        "IPAddressAllow=localhost"
    ]


def test_a_node_writes_in_its_out_folder_alone(world, tmp_path):
    """As the unit lets it: not beside site.toml, nor into the kit."""
    config = make_node(world, tmp_path / "nodes", "Alpha")
    folder, out = Path(config["site"]).parent, Path(config["out"])
    with (folder / "site.toml").open("a") as file:
        file.write('audit = "out/audit.jsonl"\n')

    def others():
        found = (path for path in folder.rglob("*") if out not in (path, *path.parents))
        return {path: path.stat().st_mtime_ns for path in found}

    before = others()
    greeting(Outbox(config), world.kit.digest, may_bring=True)
    Node.of_config(config).answer(world.kit.digest)
    greeting(Outbox(config), world.kit.digest, may_bring=True)
    assert others() == before
    assert (out / "Alpha.safetensors").exists()
    assert (out / "audit.jsonl").exists()
