"""Extras: found by their entry points, loaded only where they are asked for."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

import predbayes_study.extra as finder
from predbayes_study.extra import Extra


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A function that installs an extra, with its entry point, for one test."""
    monkeypatch.setattr(finder, "_found", {})
    monkeypatch.syspath_prepend(tmp_path)
    points = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(points))

    def install(name: str, fields: str, **modules: str) -> None:
        package = tmp_path / f"extra_{name}" / name
        package.mkdir(parents=True)
        source = f"from predbayes_study.extra import Extra\nextra = Extra(__name__, {fields})\n"
        (package / "__init__.py").write_text(source)
        for module, text in modules.items():
            (package / f"{module}.py").write_text(text)
        value = f"extra_{name}.{name}:extra"
        points.append(importlib.metadata.EntryPoint(name, value, finder.GROUP))

    yield install
    for module in [module for module in sys.modules if module.startswith("extra_")]:
        del sys.modules[module]


def test_they_are_found_by_name_and_loaded_when_asked_for(installed):
    installed("zinc", "rules={'plan': 'rules:PLAN'}", rules="PLAN = ('z',)")
    installed(
        "alum", "rules={'plan': 'rules:PLAN'}, events={'weighed': 'rules:PLAN'}", rules="PLAN=()"
    )
    assert list(finder.extras()) == ["alum", "zinc"]
    assert "extra_zinc.zinc.rules" not in sys.modules
    assert [extra.load(where) for _, extra, where in finder.added("rules")] == [(), ("z",)]
    assert finder.load("events", "weighed") == ()
    assert finder.load("events", "unheard of") is None


def test_an_entry_point_without_a_package_is_left_out(installed, monkeypatch):
    installed("zinc", "")
    stale = importlib.metadata.EntryPoint("gone", "no_such_package.gone:extra", finder.GROUP)
    found = importlib.metadata.entry_points(group=finder.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [*found, stale])
    assert list(finder.extras()) == ["zinc"]


def test_every_reference_of_an_extra_names_something():
    for extra in finder.extras().values():
        assert isinstance(extra, Extra)
        for what in ("sections", "payloads", "rules", "events", "pages", "commands"):
            for reference in getattr(extra, what).values():
                assert extra.load(reference) is not None
