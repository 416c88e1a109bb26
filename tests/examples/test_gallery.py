"""The gallery shows what its examples print.

The examples run once in CI: `test_documents.py` runs the scripts, `tests/flower` the two others.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "regenerate")))


def test_every_output_is_compared_by_some_test():
    scripts = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    elsewhere = SCRIPT.examples() - scripts
    assert len(SCRIPT.examples()) >= 8
    assert elsewhere == {"examples/mixed-federation/in_python.py", "examples/flower-any-method"}
    for example in elsewhere:
        folder = "flower/test_mixed.py" if "mixed" in example else "flower/test_any_method.py"
        assert f'shown("{example}")' in (ROOT / "tests" / folder).read_text()


def test_every_page_has_its_code_and_what_comes_out():
    for page in sorted(SCRIPT.GALLERY.glob("*.md")):
        text = page.read_text()
        assert page.stem == "index" or "```python\n" in text, page.name
        assert "-->\n<!-- end -->" not in text, (
            f"{page.name}: run scripts/regenerate gallery inclusions"
        )


def test_the_index_leads_to_every_page_and_so_does_the_menu():
    names = {page.name for page in SCRIPT.GALLERY.glob("*.md")}
    index = (SCRIPT.GALLERY / "index.md").read_text()
    menu = (ROOT / "mkdocs.yml").read_text()
    assert {name for name in names - {"index.md"} if f"]({name})" not in index} == set()
    assert {name for name in names if f" gallery/{name}" not in menu} == set()


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("beta 0.225 of 1,000 rows", 0),
        ("beta 0.230 of 1,004 rows", 0),
        ("beta 0.525 of 1,000 rows", 1),
        ("beta 0.225 of 2,000 rows", 1),
        ("alpha 0.225 of 1,000 rows", 1),
        ("beta 0.225 of 1,000 rows and 3", 1),
        ("beta 0.225 of 1,000 rows\nweights mixture 1", 0),
    ],
)
def test_numbers_may_differ_a_little_and_words_not_at_all(other, found):
    assert len(list(SCRIPT.differences("beta 0.225 of 1,000 rows", other))) == found
