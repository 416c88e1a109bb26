"""Every Python block of the README and the docs runs, and every example."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "regenerate")))


def blocks(path: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.M | re.S)


def test_the_code_of_the_readme_is_an_example_that_runs():
    (code,) = blocks("README.md")
    assert code in (ROOT / "examples" / "quickstart.py").read_text()


def test_nothing_is_installed_from_an_index_that_does_not_have_it():
    """Who may give the name to another package there would be installed instead."""
    kinds = (
        "README.md",
        "docs/*.md",
        "docs/gallery/*.md",
        "examples/*/*.md",
        "packages/*/src/**/*.py",
    )
    texts = {path: path.read_text("utf-8") for kind in kinds for path in ROOT.glob(kind)}
    asked = re.compile(r"pip install [^\n`]*?(?<![-/\w])predbayes(?:\[|['\" `]|$)", re.M)
    from_index = {
        path.name: asked.findall(text) for path, text in texts.items() if asked.search(text)
    }
    assert {name: found for name, found in from_index.items() if "clone" not in str(found)} == {}
    for page in ("README.md", "docs/index.md", "docs/releases.md"):
        assert "predbayes is on no package index yet" in texts[ROOT / page]


@pytest.mark.parametrize(("page", "least"), [("README.md", 3), ("docs/claims.md", 8)])
def test_what_shows_a_claim_exists(page, least):
    tests = re.findall(r"\btests/[\w/.]+", (ROOT / page).read_text())
    assert len(tests) >= least
    assert [name for name in tests if not (ROOT / name).exists()] == []


def test_the_architecture_page_names_every_layer_every_room_and_true_files():
    text = (ROOT / "docs" / "architecture.md").read_text()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    orders = [contract["layers"] for contract in settings["contracts"] if "layers" in contract]
    names = [
        name.rpartition(".")[2] for order in orders for row in order for name in row.split(" | ")
    ]
    assert len(names) >= 20
    assert [name for name in names if not re.search(rf"`{name}(?:/|\.py)?`", text)] == []
    modules = re.findall(r"`((?:\w+/)+\w+\.(?:py|html\.j2))`", text)
    assert len(modules) >= 20
    sources = [ROOT, *ROOT.glob("packages/*/src"), ROOT / "packages" / "core" / "src" / "predbayes"]
    missing = [name for name in modules if not any((at / name).exists() for at in sources)]
    assert missing == []


def test_the_ways_of_a_table_and_an_upload_are_short_and_their_files_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    ways = [re.findall(r"^ +\d+  (\S+\.py)", one, re.M) for one in drawn]
    table, upload = (way for way in ways if way)
    assert len(set(table)) <= 10
    assert len(upload) <= 8
    assert len(set(upload)) <= 7
    sources = [ROOT / "packages/core/src", ROOT / "packages/study/src/predbayes_study"]
    there = [any((at / name).is_file() for at in sources) for name in (*table, *upload)]
    assert all(there)


def test_the_pages_on_pools_run_as_printed():
    scope: dict[str, object] = {}
    for code in blocks("docs/pools.md"):
        exec(compile(code, "docs/pools.md", "exec"), scope)
    assert scope["tuned"].num_labels == 2


def test_the_quickstart_runs_as_printed(tmp_path, monkeypatch):
    """The script that it shows, then the blocks that go on from it."""
    monkeypatch.chdir(tmp_path)
    forest = pytest.importorskip("sklearn.ensemble").RandomForestClassifier
    scope: dict[str, object] = {"RandomForestClassifier": forest}
    for code in blocks("docs/quickstart.md"):
        if "x_labelled" not in code and "mlp(11" not in code:
            exec(compile(code, "docs/quickstart.md", "exec"), scope)
    first, again = (scope[name].predict(scope["x"]) for name in ("result", "again"))
    assert first.probs.shape == again.probs.shape


def test_pages_show_code_and_tables_as_their_files_have_them():
    """`scripts/regenerate inclusions` corrects a page that does not."""
    made = {path: page.decode() for path, page in SCRIPT.inclusions()}
    assert sum(page.count("<!-- from ") for page in made.values()) >= 20
    assert [path.name for path, page in made.items() if path.read_text("utf-8") != page] == []
    page = made[ROOT / "docs" / "flower.md"]
    changed = page.replace("[tool.flwr.app]", "[tool]")
    assert SCRIPT.with_inclusions(changed) == page != changed


EXAMPLES = [
    pytest.param(
        path,
        id=path.name,
        # The quickstart's blocks run above, and contracts train the method and pool of one's own.
        marks=[] if path.name == "own_learner.py" else [pytest.mark.slow("a whole example")],
    )
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_run(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "NLL" in printed
    if (example := f"examples/{path.name}") in SCRIPT.examples():
        assert list(SCRIPT.differences(SCRIPT.shown(example), printed)) == []


@pytest.mark.data
def test_the_config_in_the_docs_runs():
    """With the command in the docs, cut to what takes a second."""
    from predbayes_lab.config import load_experiment
    from predbayes_lab.run import plan, run_methods

    experiment = load_experiment(
        str(ROOT / "examples" / "small.toml"), assignments=["data.name=bike"], methods=["fedavg"]
    )
    ((record, _),) = run_methods(experiment, plan(experiment, [0]))
    assert record.scores["nll"] < 1.5
    assert len(load_experiment(str(ROOT / "examples" / "small.toml")).methods) == 6
