"""Links and anchors of the README, the docs and the examples lead somewhere.

Zensical checks the pages of the site as it builds them (`validation` in mkdocs.yml). These tests
check the other pages, links from the site's pages to files outside of docs/, and the menu.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
LINK = re.compile(r"(?:\]\(|(?:src|href)=\")(?!https?:|mailto:)([^)\s\"]+)[)\"]")


def without_code(text: str) -> str:
    fenced = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^ {4}(?! *[-*|]).*$", "", fenced, flags=re.M))


def anchors(path: Path) -> set[str]:
    """Of the titles, as Zensical and GitHub make them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    plain = [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    of_github = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}
    return of_github | {slugify(title, "-") for title in plain}


def broken(path: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(without_code(text)):
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists():
            yield f"{target}: there is no such file"
        elif anchor and found.suffix == ".md" and anchor not in anchors(found):
            yield f"{target}: there is no such title"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    assert list(broken(path, path.read_text(encoding="utf-8"))) == []


def test_links_are_found_and_broken_ones_seen():
    found = {path: LINK.findall(without_code(path.read_text(encoding="utf-8"))) for path in PAGES}
    assert sum(map(len, found.values())) >= 300
    assert "docs/figures/door.svg" in found[ROOT / "README.md"]
    wrong = "[a](docs/plan.md#no-such), [b](none.md), [c](docs/plan.md), `[d](none.md)`"
    assert len(list(broken(ROOT / "README.md", wrong))) == 2


def test_the_menu_has_every_page_once():
    """Zensical leaves out an entry without a page, and says nothing."""
    menu = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert sorted(menu) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", sorted(DOCS.glob("figures/*.svg")), ids=lambda path: path.name)
def test_drawings_ask_nothing_of_others(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:href|src)=\"(?!#)([^\"]+)|@import|url\((?![\"']?#)", text) == []
