"""Whoever looks at a kit or a study reaches no network, and imports nothing that the plan names.

In a process where either ends it at once, and not by an exception, which could be caught.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import predbayes
import predbayes_study
from tests.study.plan.distribution import NAME, install
from tests.study.world import World, make_world, own_table

pytestmark = pytest.mark.usefixtures("quick_results")


ENDED = 97
GUARDED = f"""
import os, sys

def guard(event, arguments):
    code = event == "exec" and "ournets" in arguments[0].co_filename
    if code or event.startswith("socket.") or (event == "import" and "ournets" in arguments[0]):
        os.write(2, f"forbidden: {{event}} {{arguments}}".encode())
        os._exit({ENDED})

sys.addaudithook(guard)
from predbayes_study.cli.app import main
for line in sys.argv[1:]:
    sys.argv = ["predbayes", *line.split()]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""
LOOKING = (
    "plan check kit",
    "site check kit rows.csv",
    "site approve kit --by Officer",
    "site approve Alpha.safetensors --by Officer",
    "study init kit --labels kit-labels.json --study second",
    "study admit Gamma Gamma.pub --study second",
    "study status",
    "study verify",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    """A study with a network of its own, and a site that allows it."""
    root = tmp_path_factory.mktemp("guarded")
    install(root / "site-packages")
    sys.path.insert(0, str(root / "site-packages"))
    try:
        world = make_world(root / "world", method="mixture", model=f'module = "{NAME}"')
        study = world.begin(added=("Alpha", "Beta"))
        study.finish()
    finally:
        sys.path.remove(str(root / "site-packages"))
    site = f'format = 1\nname = "Alpha"\nallow_networks = ["{NAME}"]\n'
    (world.root / "site.toml").write_text(site)
    rows = own_table((world.root / "reference.csv").read_text())
    (world.root / "rows.csv").write_text(rows)
    world.key("Alpha").save(world.root / "Alpha.key")
    world.key("Gamma").public.save(world.root / "Gamma.pub")
    return world


def run(world: World, *commands: str) -> subprocess.CompletedProcess[str]:
    path = [str(world.root.parent / "site-packages"), *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, "-c", GUARDED, *commands],
        cwd=world.root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
    )


def test_looking_reaches_no_network_and_imports_nothing(world):
    finished = run(world, *LOOKING)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    assert "rows.csv fits the plan" in finished.stdout


def test_the_guard_would_have_ended_it(world):
    finished = run(world, "site train kit rows.csv --out out")
    assert finished.returncode == ENDED, finished.stderr + finished.stdout
    assert "forbidden: exec (<code object <module>" in finished.stderr


REACHES = {
    "aiohttp",
    "asyncio",
    "fsspec",
    "ftplib",
    "http",
    "httpx",
    "requests",
    "smtplib",
    "socket",
}
REACHES |= {"socketserver", "ssl", "urllib", "urllib3", "xmlrpc"}


def reaching(path: Path) -> set[str]:
    """Modules that reach a network and that a file imports, by `import` or by `require`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module != "urllib.parse":
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            found |= {str(node.args[0].value)} if name in ("require", "import_module") else set()
    return {name for name in found if name.partition(".")[0] in REACHES}


def test_only_files_at_an_address_are_fetched():
    """`study add` takes an address; no other command of a study can open a connection."""
    folders = [Path(package.__file__).parent for package in (predbayes, predbayes_study)]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    found = {path.name: names for path in paths if (names := reaching(path))}
    assert found == {"stored.py": {"fsspec"}}
