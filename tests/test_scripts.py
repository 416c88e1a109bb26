"""Scripts that find: tests of a change, public names, what a site loads from elsewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import predbayes

ROOT = Path(__file__).parents[1]


def script(name):
    return SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / name)))


OFFLINE, REGENERATE, TESTS_OF = map(script, ("offline", "regenerate", "tests-of"))


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ("packages/core/src/predbayes/exact.py", ["tests/core/test_exact.py"]),
        ("packages/study/src/predbayes_study/cli/doctor.py", ["tests/study/cli/test_doctor.py"]),
        ("tests/core/test_exact.py", ["tests/core/test_exact.py"]),
        ("docs/flower.md", ["tests/examples/test_links.py"]),
        ("scripts/offline", ["tests/test_scripts.py"]),
        ("constraints.txt", ["tests/supply/test_locks.py"]),
        ("LICENSE", []),
    ],
)
def test_the_tests_of_a_change_are_its_own(changed, found):
    assert [path.as_posix() for path in TESTS_OF.tests_of(Path(changed))] == found
    assert all((ROOT / name).is_file() for name in found)


def test_a_module_without_a_test_file_has_those_that_import_it(tmp_path):
    folder = tmp_path / "tests" / "core" / "pools"
    folder.mkdir(parents=True)
    (tmp_path / "packages/core/src/predbayes/pools").mkdir(parents=True)
    for name in ("alone", "used"):
        (tmp_path / f"packages/core/src/predbayes/pools/{name}.py").touch()
    (folder / "test_a.py").write_text("from predbayes.pools.used import f\n")
    (folder / "test_b.py").write_text("from predbayes.pools import used\n")
    (folder / "test_c.py").write_text("from predbayes.pools.useful import f\n")

    def found(name):
        changed = Path(f"packages/core/src/predbayes/pools/{name}.py")
        return [path.name for path in TESTS_OF.tests_of(changed, tmp_path)]

    assert found("used") == ["test_a.py", "test_b.py"]
    assert found("alone") == ["test_a.py", "test_b.py", "test_c.py"]
    assert found("deleted") == []


@pytest.mark.parametrize(
    ("changed", "run", "left"),
    [
        ("packages/study/src/predbayes_study/wording.py", {"study", "flower"}, {"core", "lab"}),
        ("packages/lab/src/predbayes_lab/tables.py", {"lab"}, {"core", "study", "flower"}),
        ("packages/core/src/predbayes/exact.py", {"core", "study", "flower", "lab"}, set()),
        ("tests/conftest.py", {"core", "study", "flower", "lab"}, set()),
        ("docs/flower.md", {"examples"}, {"core", "study", "flower", "lab"}),
    ],
)
def test_a_change_runs_the_tests_of_what_it_can_break(changed, run, left):
    """By the layers: a distribution that imports none of another is not broken by it."""
    found = {path.name for path in TESTS_OF.folders_of([Path(changed)])}
    assert run <= found
    assert not left & found
    assert {"examples", "supply", "test_architecture.py", "test_scripts.py"} <= found


def test_the_page_of_names_has_every_public_name_with_a_line():
    ((path, made),) = REGENERATE.names()
    page = made.decode()
    assert path.read_text(encoding="utf-8") == page, "run scripts/regenerate names"
    lines = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| `predbayes", page, re.M))
    assert sorted(lines) == sorted({*predbayes.__all__, "__version__"})
    assert [name for name, line in lines.items() if not line] == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.html", '<a href="https://example.org">x</a> <img src="b.png">', False),
        ("a.html", '<link rel="canonical" href="https://example.org/">', False),
        ("a.html", '<img src="https://example.org/b.png">', True),
        ("a.html", '<img srcset="b.png 1x, //example.org/c.png 2x">', True),
        ("a.html", '<script src="//example.org/b.js"></script>', True),
        ("a.html", '<link rel="stylesheet" href="https://example.org/b.css">', True),
        ("a.html", "<style>@import 'https://example.org/b.css';</style>", True),
        ("a.css", "p { background: url(https://example.org/b.png) }", True),
        ("a.css", "p { background: url(b.png) }", False),
    ],
)
def test_what_a_site_loads_from_elsewhere_is_told(name, text, found, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    assert OFFLINE.main(tmp_path) == found
    assert ("example.org" in capsys.readouterr().out) == found


def test_a_site_without_pages_is_no_site(tmp_path):
    assert OFFLINE.main(tmp_path) == 1
