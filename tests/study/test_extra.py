"""Extras: found by their entry points, loaded only where they are asked for."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import predbayes_study.extra as finder
from predbayes.errors import PlanError
from predbayes_study.extra import Extra
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.text import dump


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A function that installs an extra, with its entry point, for one test."""
    monkeypatch.setattr(finder, "_found", {})
    monkeypatch.syspath_prepend(tmp_path)
    points = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(points))

    def forget() -> None:
        points.clear()
        finder._found.clear()
        for module in [module for module in sys.modules if module.startswith("extra_")]:
            del sys.modules[module]

    def install(name: str, fields: str, **modules: str) -> None:
        package = tmp_path / f"extra_{name}" / name
        package.mkdir(parents=True, exist_ok=True)
        source = f"from predbayes_study.extra import Extra\nextra = Extra(__name__, {fields})\n"
        (package / "__init__.py").write_text(source)
        for module, text in modules.items():
            (package / f"{module}.py").write_text(text)
        value = f"extra_{name}.{name}:extra"
        points.append(importlib.metadata.EntryPoint(name, value, finder.GROUP))

    install.forget = forget
    yield install
    forget()


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


SURVEY = """
from predbayes_study.plan.schema import Added

class Survey(Added):
    moments: bool = False
"""
OTHER = "sections={'survey': 'section:Survey'}"
SECTION = """
from predbayes_study.plan.schema import Added
from predbayes_study.rules import Rule

class Zinc(Added):
    excludes = ("gate", "learner.split")
    tasks = ("classification",)
    grams: int = 5

RULES = (Rule("zinc.grams", "error", lambda plan: plan.section(Zinc).grams > 9, "too many"),)
"""
ZINC = "sections={'zinc': 'section:Zinc'}, rules={'plan': 'section:RULES'}"
PLAN = """
format = 1
name = "Heart"
[target]
name = "disease"
task = "classification"
classes = ["no", "yes"]
[columns]
age = { type = "number" }
[zinc]
grams = 7
[survey]
moments = true
[reference]
"""
COMMENTS = """
[sections]
zinc = "Metal."
[keys]
"zinc.grams" = "of it"
"""


class TestSections:
    @pytest.fixture
    def zinc(self, installed, tmp_path):
        installed("zinc", ZINC, section=SECTION)
        (tmp_path / "extra_zinc/zinc/comments.toml").write_text(COMMENTS)

    @pytest.fixture
    def survey(self, installed):
        installed("survey", "sections={'survey': 'section:Survey'}", section=SURVEY)

    def test_a_plan_whose_extra_is_missing_is_refused_with_what_installs_it(self, installed):
        with pytest.raises(PlanError, match=r'pip install "predbayes-study\[zinc\]"') as refused:
            Plan.loads(PLAN)
        assert "\n" not in str(refused.value)

    def test_a_section_that_is_misspelt_is_a_slip(self, zinc):
        with pytest.raises(PlanError, match="no key 'znc'; did you mean 'zinc'"):
            Plan.loads(PLAN.replace("[zinc]", "[znc]").partition("[survey]")[0])

    @pytest.mark.parametrize(
        ("old", "new", "named"),
        [
            ("grams = 7", "grms = 7", r"zinc: no key 'grms'; did you mean 'grams'"),
            ("grams = 7", 'grams = "7"', r"zinc\.grams: input should be a valid integer"),
            ("grams = 7", "grams = 10", r"zinc\.grams: too many"),
            ("[zinc]", "[gate]\n[zinc]", r"with \[zinc\] leave gate out"),
            (
                "[zinc]",
                '[learner]\nsplit = "stratified"\n[zinc]',
                r"with \[zinc\] leave learner\.split out",
            ),
            (
                'task = "classification"\nclasses = ["no", "yes"]',
                'task = "regression"',
                r"target\.task: a regression does not go together with \[zinc\]",
            ),
        ],
    )
    def test_what_it_refuses_is_refused_in_one_line(self, zinc, survey, old, new, named):
        with pytest.raises(PlanError, match=rf"^[^\n]*{named}[^\n]*$"):
            Plan.loads(PLAN.replace(old, new))

    def test_it_is_written_with_its_comments_and_read_back(self, zinc, survey):
        plan = Plan.loads(PLAN)
        assert "# Metal.\n[zinc]\ngrams = 7" in dump(plan)
        assert Plan.loads(dump(plan)) == plan
        assert Plan.model_validate_json(plan.model_dump_json()) == plan
        assert plan.model_dump()["zinc"] == {"grams": 7}

    def test_the_digest_depends_neither_on_order_nor_on_what_is_installed(self, installed):
        """Nor on the order in which extras are found."""
        turned = PLAN.replace("[zinc]\ngrams = 7\n[survey]\nmoments = true\n", "")
        turned += "[survey]\nmoments = true\n[zinc]\ngrams = 7\n"
        both = {"zinc": (ZINC, SECTION), "survey": (OTHER, SURVEY)}
        found = set()
        for names in (("zinc", "survey"), ("survey", "zinc")):
            for name in names:
                fields, section = both[name]
                installed(name, fields, section=section)
            found |= {Plan.loads(PLAN).digest(), Plan.loads(turned).digest()}
            installed.forget()
        assert len(found) == 1
        assert Plan.loads(PLAN.partition("[zinc]")[0] + "[reference]").digest() not in found


def test_the_rest_of_a_study_knows_no_extra_by_name():
    """Not even where only types are checked, which the import contracts leave out."""
    source = Path(finder.__file__).parent
    named = re.compile(r"predbayes_study\.extras\.\w")
    assert {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "extras" not in path.relative_to(source).parts and named.search(path.read_text("utf-8"))
    } == {"extra.py"}  # whose docstring has an example


def test_every_reference_of_an_extra_names_something():
    for extra in finder.extras().values():
        assert isinstance(extra, Extra)
        for what in ("sections", "payloads", "rules", "events", "pages", "commands"):
            for reference in getattr(extra, what).values():
                assert extra.load(reference) is not None
