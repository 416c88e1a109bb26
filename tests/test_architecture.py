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
SOURCES = sorted(PACKAGE.rglob("*.py"))
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def names_used(path: Path) -> set[str]:
    """Every dotted name in a file, as written."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            found.add(ast.unparse(node))
    return found


def function_lengths(path: Path) -> list[int]:
    """Lines of every function's body, without its docstring."""
    lengths = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            lengths.append((body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0)
    return lengths


def run_python(code: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return finished.stdout.strip()


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


def test_importing_the_package_imports_nothing_heavy():
    heavy = "{'torch', 'numpy', 'scipy', 'pandas', 'pydantic'} & set(sys.modules)"
    assert run_python(f"import sys, predbayes; print(sorted({heavy}))") == "[]"


@pytest.mark.parametrize(
    "module",
    [
        "exchange.coordinator",
        "exchange.header",
        "exchange.signing",
        "exchange.strict",
        "study.plan.schema",
        "study.tables.sitefile",
    ],
)
def test_schemas_need_no_arrays(module):
    heavy = "{'torch', 'numpy', 'scipy', 'pandas'} & set(sys.modules)"
    assert run_python(f"import sys, predbayes.{module}; print(sorted({heavy}))") == "[]"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
class TestEverySource:
    def test_states_its_idea(self, path):
        assert ast.get_docstring(ast.parse(path.read_text()))

    def test_draws_nothing_from_global_generators(self, path):
        used = names_used(path)
        assert not {name for name in used if name.startswith(("np.random", "random."))}
        if path.name != "seeding.py":
            assert not {name for name in used if name.endswith("manual_seed")}

    def test_neither_prints_nor_pickles(self, path):
        assert not {"print", "pickle", "torch.save", "torch.load"} & names_used(path)

    def test_says_everything_in_one_way(self, path):
        """`cli.show.say` passes no escape sequence and no line break on to a terminal."""
        if path.name != "show.py":
            assert not {"typer.echo", "typer.secho", "click.echo"} & names_used(path)

    def test_text_files_have_one_encoding_and_one_line_ending(self, path):
        """`Path.write_text` writes CR LF on Windows, and either guesses an encoding: bytes do not.

        The linter sees `open`, and a `Path` whose type it knows.
        """
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name, given = node.func.attr, [*node.args, *node.keywords]
                assert name != "write_text", f"line {node.lineno}: write_bytes(text.encode())"
                assert name != "read_text" or given, f"line {node.lineno}: name the encoding"

    def test_draws_with_a_generator(self, path):
        """Every call of a random function of torch names its generator."""
        drawing = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal_"}
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in drawing:
                assert "generator" in {keyword.arg for keyword in node.keywords}

    def test_tags_stand_in_the_deviations(self, path):
        text = path.read_text()
        if re.search(r"(Deviation|Released):", text):
            module = ".".join(("predbayes", *path.relative_to(PACKAGE).with_suffix("").parts))
            assert f"`{module}`" in (DOCS / "deviations.md").read_text()


class TestHouse:
    """The house as its imports draw it; which floor is above which, import-linter holds."""

    @staticmethod
    def rooms() -> dict[str, list[Path]]:
        """Files by folder, without those in folders below."""
        rooms: dict[str, list[Path]] = {}
        for path in SOURCES:
            rooms.setdefault(path.parent.relative_to(PACKAGE).as_posix(), []).append(path)
        return rooms

    def test_no_folder_holds_more_than_a_fifth_of_the_lines(self):
        lines = {
            room: sum(len(path.read_text().splitlines()) for path in paths)
            for room, paths in self.rooms().items()
        }
        assert max(lines.values()) <= sum(lines.values()) / 5

    def test_the_rooms_of_a_study_have_few_arrows_between_them(self):
        arrows = set()
        for path in (PACKAGE / "study").rglob("*.py"):
            here = path.relative_to(PACKAGE / "study").parts[0].removesuffix(".py")
            used = re.findall(r"^ *from predbayes\.study\.(\w+)", path.read_text(), re.M)
            arrows |= {(here, room) for room in used if room != here}
        assert 0 < len(arrows) <= 30, sorted(arrows)

    def test_functions_are_short(self):
        lengths = sorted(length for path in SOURCES for length in function_lengths(path))
        assert lengths[len(lengths) // 2] <= 4
        assert lengths[9 * len(lengths) // 10] <= 15
        assert lengths[-1] <= 49


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
