"""A file of every format is kept here and read; `tests/study/formats/make.py` made them."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path
from typing import get_args

import pytest

import predbayes
from tests.study.formats.registry import FILES, FORMATS, LIKEWISE, MADE_AGAIN

PACKAGE = Path(predbayes.__file__).parent
ROOT = Path(__file__).parents[3]
SAID = json.loads((FILES / "said.json").read_bytes())
MOST_BYTES = 200_000
FIELDS = ("format", "format_version")
ALL = [*FORMATS.items(), *((f"{name}, beside", found) for name, found in LIKEWISE.items())]


def declared() -> set[str]:
    """Where the code has a class whose files state the number of their format."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and line.target.id in FIELDS
                and ast.unparse(line.annotation).startswith("Literal")
                for line in node.body
            ):
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                found.add(f"{module}:{node.name}")
    return found


def newest(where: str) -> int:
    """The number that the code writes."""
    module, _, name = where.partition(":")
    value = getattr(importlib.import_module(module), name)
    if isinstance(value, bytes):
        return int(re.search(rb"format (\d+)", value)[1])
    (field,) = (value.model_fields[field] for field in FIELDS if field in value.model_fields)
    return max(get_args(field.annotation))


@pytest.mark.parametrize("name", [name for name, _ in ALL])
def test_each_file_is_read_as_it_was_written(name):
    _, read = dict(ALL)[name]
    told = json.loads(json.dumps(read(FILES / name.removesuffix(", beside"))))
    assert told == SAID[name]


def test_every_format_in_the_code_has_a_file_of_its_newest_number():
    """Whoever raises a number makes a file of it, and leaves the file of the number before."""
    kept = {(where, int(re.search(r"-(\d+)", name)[1])) for name, (where, _) in ALL if where}
    assert declared() <= {where for where, _ in kept} | MADE_AGAIN
    for where in {where for where, _ in kept}:
        assert (where, newest(where)) in kept, where


def test_the_files_are_small_and_each_has_a_reader():
    files = [path for path in FILES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    beside = {"said.json", "coordinator.key"}
    assert {path.name for path in FILES.iterdir()} == FORMATS.keys() | beside


def test_the_page_names_every_format_with_its_number():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| [^|]+ \| (\d+|none) \| [^|]*`tests/study/formats/files/([^`]+)`", page, re.M
    )
    told = {name: number for number, name in rows}
    assert told.keys() == FORMATS.keys()
    for name, (where, _) in FORMATS.items():
        assert told[name] == (str(newest(where)) if where else "none")
