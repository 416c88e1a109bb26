"""What holds for the whole package, whoever writes the next file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import predbayes

PACKAGE = Path(predbayes.__file__).parent
ROOT = Path(__file__).parent.parent
# From the sources: what is installed may be a wheel, and must have the same files.
SOURCES = {
    path: path.relative_to(source).as_posix()
    for source in sorted(ROOT.glob("packages/*/src"))
    for path in sorted(source.rglob("*.py"))
}
DOCS = ROOT / "docs"


def run_python(code: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return finished.stdout.strip()


def calls_of_attributes(nodes: list[tuple[str, ast.AST]]) -> list[tuple[str, ast.Call]]:
    """The calls `something.name(...)`."""
    return [
        (where, node)
        for where, node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


@pytest.fixture(scope="module")
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of every source file, with `file:line` where it has one."""
    found = []
    for path, name in SOURCES.items():
        walked = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found += [(f"{name}:{getattr(node, 'lineno', None)}", node) for node in walked]
    return found


def test_public_names_are_those_of_the_stub():
    stub = (PACKAGE / "__init__.pyi").read_text()
    listed = re.findall(r"^from \.(\S*) import (\w+) as (\w+)$", stub, re.M)
    assert sorted(name for _, name, _ in listed) == sorted(predbayes.__all__)
    for module, name, alias in listed:
        assert name == alias
        home = f"predbayes.{module}".rstrip(".")
        assert getattr(predbayes, name) is getattr(sys.modules[home], name)


def test_unknown_names_are_refused_like_any_modules():
    assert set(predbayes.__all__) <= set(dir(predbayes))
    with pytest.raises(AttributeError, match="attribute nonsense"):
        _ = predbayes.nonsense


def test_neither_the_package_nor_its_schemas_import_arrays():
    modules = (
        "predbayes.exchange.header",
        "predbayes.exchange.strict",
        "predbayes_study.trust.coordinator",
        "predbayes_study.trust.signing",
        "predbayes_study.plan.schema",
        "predbayes_study.tables.sitefile",
    )
    heavy = "{'torch', 'numpy', 'scipy', 'pandas'} & set(sys.modules)"
    found = f"{heavy} | {{'pydantic'}} & set(sys.modules)"
    package = f"import sys, predbayes, predbayes_study; found = {found}"
    schemas = "\n".join(f"import {module}" for module in modules)
    assert run_python(f"{package}\n{schemas}\nprint(sorted(found | {heavy}))") == "[]"


def test_nothing_is_drawn_from_global_generators(nodes):
    drawn = [
        where
        for where, node in nodes
        if isinstance(node, ast.Attribute)
        and not where.startswith("predbayes/seeding.py")
        and (
            "random" in (getattr(node.value, "id", ""), getattr(node.value, "attr", ""))
            or node.attr.endswith("manual_seed")
        )
    ]
    assert drawn == []


def test_every_draw_of_torch_names_its_generator(nodes):
    drawing = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal_"}
    unnamed = [
        where
        for where, node in calls_of_attributes(nodes)
        if node.func.attr in drawing
        and "generator" not in {keyword.arg for keyword in node.keywords}
    ]
    assert unnamed == []


def test_text_files_have_one_encoding_and_one_line_ending(nodes):
    """`Path.write_text` writes CR LF on Windows, and `read_text()` guesses an encoding.

    The linter sees only `open`, and a `Path` whose type it knows.
    """
    guessed = [
        where
        for where, node in calls_of_attributes(nodes)
        if node.func.attr == "write_text"
        or (node.func.attr == "read_text" and not (node.args or node.keywords))
    ]
    assert guessed == []


def test_modules_with_deviations_are_in_the_page_of_deviations():
    page = (DOCS / "deviations.md").read_text()
    missing = []
    for path, name in SOURCES.items():
        module = name.removesuffix(".py").replace("/", ".")
        if re.search(r"(Deviation|Released):", path.read_text()) and f"`{module}`" not in page:
            missing.append(module)
    assert missing == []


class TestEquations:
    text = (DOCS / "equations.md").read_text()
    rows = re.findall(r"^\| ((?:eq|alg):\w+) \|.*?\| `([\w.]+)` \| `([\w/.:]+)` \|$", text, re.M)

    def test_every_label_in_the_code_is_mapped(self):
        cited = set()
        for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]:
            cited |= set(re.findall(r"\b(?:eq|alg):[a-zA-Z]\w+", path.read_text()))
        assert cited == {label for label, _, _ in self.rows}

    def test_every_function_in_the_map_exists(self):
        for _, code, _ in self.rows:
            parts = code.split(".")
            cut = next(i for i, part in enumerate(parts) if part[0].isupper())
            thing = __import__(".".join(parts[:cut]), fromlist=["_"])
            for part in parts[cut:]:
                thing = getattr(thing, part)

    def test_every_test_in_the_map_exists(self):
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", self.text)
        assert len(tests) >= len(self.rows) + 8
        for file, name in tests:
            assert re.search(rf"def {name}\(", (ROOT / file).read_text()), f"{file}::{name}"


def test_ci_and_pre_commit_use_the_pinned_tools():
    constraints = (ROOT / "constraints.txt").read_text()
    for tool in ("ruff", "mypy", "import-linter", "pytest", "torch", "flwr"):
        assert re.search(rf"^{tool}==", constraints, re.M), tool
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert "rev:" not in hooks  # no second set of versions


@pytest.mark.parametrize(
    ("part", "others"),
    [
        ("core", ("study", "flower", "lab")),
        ("study", ("flower", "lab")),
        ("lab", ("flower", "study")),
        ("flower", ("lab",)),
    ],
)
def test_tests_of_a_distribution_need_no_other_that_it_does_not(part, others):
    """So a change of the study can break no test of the lab, and none is run."""
    names = "|".join(f"predbayes_{name}|tests\\.{name}" for name in others)
    wanted = re.compile(rf"^\s*(?:from|import) (?:{names})\b", re.M)
    paths = sorted((ROOT / "tests" / part).rglob("*.py"))
    found = [path.name for path in paths if wanted.search(path.read_text(encoding="utf-8"))]
    assert found == []
