"""Each claim of the pages on security names a test, and that test exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
NAMED = re.compile(r"\btests/[\w/.-]+(?:::\w+)*")


@cache
def defined(path: Path) -> frozenset[str]:
    """The names of a file's classes and functions."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef))


def exists(named: str) -> bool:
    file, *names = named.split("::")
    path = ROOT / file.rstrip(".")
    return path.exists() and (not names or defined(path) >= set(names))


def rows(page: str) -> list[str]:
    """The rows of the tables that have a column called test."""
    tables = re.findall(r"^\|.*\| tests? \|\n\|[-|]+\n((?:\|.*\n)+)", page, re.M)
    return [row for table in tables for row in table.splitlines()]


def test_named_tests_exist():
    named = {(path.name, found) for path in PAGES for found in NAMED.findall(path.read_text())}
    assert len(named) >= 20
    assert sorted(pair for pair in named if not exists(pair[1])) == []
    assert not exists("tests/supply/test_claims.py::test_that_is_not_here")
    assert not exists("tests/supply/test_not_here.py")


@pytest.mark.parametrize("page", ["releases.md", "security-officer.md", "threat-model.md"])
def test_each_claim_names_a_test(page):
    claims = rows((ROOT / "docs" / page).read_text())
    assert len(claims) >= 5
    assert [row for row in claims if not re.search(r"tests/[\w/]+\.py::\w+", row)] == []
