"""Commands that only look, or write a small file, load no arrays: they start in under a second."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.world import SITES, make_world

HEAVY = ("torch", "pandas", "numpy", "scipy", "sklearn", "matplotlib")
# Runs each command of a JSON list in one process, and names what it loaded.
PROBE = """
import json, sys
from predbayes_study.cli.app import main
for command, code in json.load(sys.stdin):
    sys.argv = ["predbayes", *command]
    try:
        main()
    except SystemExit as done:
        assert (done.code or 0) == code, (command, done.code)
    found = [name for name in HEAVY if name in sys.modules]
    assert not found, (command, found)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    world = make_world(tmp_path_factory.mktemp("world"), coordinator=CoordinatorKey.generate())
    study = world.begin()
    for site in SITES[:2]:
        study.add(world.file(site))
    study.finish()
    world.key("Zeta").public.save(world.root / "Zeta.pub")
    plan = (world.root / "plan.toml").read_text()
    (world.root / "slip.toml").write_text(plan.replace("[reference]", "[refrence]"))
    (world.root / "slip-site.toml").write_text('format = 1\nname = "Basel"\n[colums]\n')
    return world.root


def test_they_load_no_arrays(folder):
    fine = [
        ["--help"],
        ["--version"],
        ["study", "--help"],
        ["study", "key", "--out", "another"],
        ["site", "key", "Omega"],
        ["study", "status"],
        ["study", "status", "--json"],
        ["study", "admit", "Zeta", "Zeta.pub"],
        ["study", "receipt", "Alpha", "--out", "alpha.receipt"],
        ["study", "delete", "Alpha"],
        ["study", "withdraw", "Beta", "--yes"],
    ]
    slips = [
        ["plan", "check", "slip.toml"],
        ["site", "check", "kit", "rows.csv", "--site", "slip-site.toml"],
    ]
    commands = [(command, 0) for command in fine] + [(command, 2) for command in slips]
    done = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {HEAVY!r}\n{PROBE}"],
        input=json.dumps(commands),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
