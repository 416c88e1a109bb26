"""Scripts that find: tests of a change, public names, what a site loads from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import predbayes

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("changed", "among"),
    [
        ("src/predbayes/exact.py", "tests/test_exact.py"),
        ("src/predbayes/cli/doctor.py", "tests/cli/test_doctor.py"),
        ("src/predbayes/predictive/pooling.py", "tests/predictive/test_pooling.py"),
        ("src/predbayes/study/coordinator/signer.py", "tests/study/coordinator/test_intake.py"),
        ("tests/test_exact.py", "tests/test_exact.py"),
        ("docs/flower.md", "tests/examples/test_links.py"),
    ],
)
def test_tests_of(changed, among):
    command = [sys.executable, ROOT / "scripts" / "tests-of"]
    done = subprocess.run(
        command,
        input=f"{changed}\nLICENSE\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    found = done.stdout.split()
    assert among in found
    assert all((ROOT / name).is_file() for name in found)


def test_the_page_of_names_has_every_public_name_with_a_line():
    command = [sys.executable, ROOT / "scripts" / "names", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "reference" / "names.md").read_text(encoding="utf-8")
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
def test_what_a_site_loads_from_elsewhere_is_told(name, text, found, tmp_path):
    (tmp_path / name).write_text(text)
    command = [sys.executable, ROOT / "scripts" / "offline", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == found
    assert ("example.org" in done.stdout) == found


def test_a_site_without_pages_is_no_site(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "offline", tmp_path]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
