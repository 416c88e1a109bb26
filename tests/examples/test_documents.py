"""Every Python block of the README and the docs runs, and every example."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(path: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.M | re.S)


def test_the_readme_runs_as_printed(capsys):
    (code,) = blocks("README.md")
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert "NLL" in printed
    assert "beta" in printed


def test_the_pages_on_pools_run_as_printed():
    scope: dict[str, object] = {}
    for code in blocks("docs/pools.md"):
        exec(compile(code, "docs/pools.md", "exec"), scope)
    assert scope["tuned"].num_labels == 2


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert "NLL" in capsys.readouterr().out
