"""The version has one place; tag, changelog and citation agree with it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import predbayes

ROOT = Path(__file__).parents[2]
PACKAGE = "packages/core/src/predbayes"
SCRIPT = str(ROOT / "scripts" / "release-check")


@pytest.fixture
def repository(tmp_path):
    """The few files that the script reads, of a release."""
    (tmp_path / PACKAGE).mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [1.2.3] - 2026-01-02\n\n- More.\n\n## [1.2.2]\n\n- Less.\n"
    )
    return tmp_path


def checked(repository, tag):
    script = runpy.run_path(SCRIPT)
    script["problems"].__globals__["ROOT"] = repository
    return script["problems"](tag)


def test_only_the_version_on_top_of_the_changelog_is_released(repository):
    assert checked(repository, "v1.2.3") == []
    assert "v1.2.4" in checked(repository, "v1.2.4")[0]
    path = repository / "CHANGELOG.md"
    path.write_text(path.read_text().replace("## [1.2.3]", "## [Unreleased]\n\n## [1.2.3]"))
    assert "CHANGELOG.md" in checked(repository, "v1.2.3")[0]
    path = repository / PACKAGE / "__init__.py"
    path.write_text('__version__ = "1.2.3.dev0"\n')
    found = checked(repository, "v1.2.3.dev0")
    assert any("1.2.3.dev0 is not a version to release" in problem for problem in found)


def test_the_sources_state_one_version_and_the_changelog_begins_with_it_or_unreleased():
    script = runpy.run_path(SCRIPT)
    assert script["version"]() == predbayes.__version__
    assert next(iter(script["sections"]())) in ("Unreleased", predbayes.__version__)
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {predbayes.__version__}\n" in cited
