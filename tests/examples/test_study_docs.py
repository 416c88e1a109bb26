"""The pages about studies say what is so: keys, files, commands, and the ledger's arithmetic."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import click
import pytest
import typer

from predbayes.cli.app import app
from predbayes.exchange.signing import PublicKey
from predbayes.study import plan as plan_module
from predbayes.study.plan import Plan, Section
from tests.study.world import make_world

ROOT = Path(__file__).parents[2]
PLAN_PAGE = (ROOT / "docs" / "plan.md").read_text()
COORDINATOR_PAGE = (ROOT / "docs" / "coordinator.md").read_text()

TABLES = {
    "Plan": "| key |",
    "Target": "### `[target]`",
    "Number": "| key of a number |",
    "Category": "| key of a category |",
    "Reference": "### `[reference]`",
    "Model": "### `[model]`",
    "Learner": "### `[learner]`",
    "UploadRules": "### `[upload]`",
    "Pool": "### `[pool]`",
    "Rules": "### `[rules]`",
    "Frozen": "### `[frozen]`",
}  # where the page has the keys of each section


def fenced(page: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page, re.M | re.S)
    return [textwrap.dedent(code) for _, code in found]


def rows_after(mark: str) -> dict[str, list[str]]:
    """The cells of the first table that begins at or after a mark, by key."""
    _, found, rest = PLAN_PAGE.partition(mark)
    assert found, mark
    table = re.search(r"(?:^\|.*\n)+", "\n" + (mark if mark[0] == "|" else "") + rest, re.M)
    assert table is not None
    rows = {}
    for line in table[0].splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows |= dict.fromkeys(re.findall(r"`(\w+)`", cells[0]), cells)
    return rows


def written(default: object) -> str:
    """A default as the page has it."""
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str):
        return f'`"{default}"`' if default else '`""`'
    return f"`{list(default)}`" if isinstance(default, tuple) else str(default)


def sections() -> list[type[Section]]:
    kinds = [kind for _, kind in inspect.getmembers(plan_module, inspect.isclass)]
    return [kind for kind in kinds if issubclass(kind, Section) and kind is not Section]


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.__name__)
def test_every_key_of_a_plan_is_in_the_docs_with_its_default(section):
    rows = rows_after(TABLES[section.__name__])
    own = [
        name
        for name in section.model_fields
        if section is not Plan or f"`[{name}]`" not in PLAN_PAGE  # those are tables themselves
    ]
    assert own
    assert sorted(rows) == sorted(own)
    for name in own:
        field = section.model_fields[name]
        assert rows[name][2] == ("" if field.is_required() else written(field.default)), name


def test_the_example_plan_is_the_one_whose_words_the_walk_reads_out():
    (text,) = fenced(PLAN_PAGE, "toml")
    plan = Plan.loads(text)
    assert plan.frozen is not None
    assert COORDINATOR_PAGE.count(f"fingerprint: {plan.fingerprint}") == 3


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    world = make_world(tmp_path_factory.mktemp("docs"))
    begun = world.begin(sites=("Alpha", "Beta", "Gamma"))
    for site in ("Alpha", "Beta", "Gamma"):
        begun.add(world.file(site))
    begun.withdraw("Gamma")
    begun.finish()
    return begun


@pytest.fixture
def last_digest():
    (code,) = fenced(PLAN_PAGE, "python")
    scope: dict[str, object] = {}
    exec(compile(code, "docs/plan.md", "exec"), scope)
    imported = set(re.findall(r"\w+", code.splitlines()[0])) - {"import"}
    assert imported <= sys.stdlib_module_names
    return scope["last_digest"]


def test_the_snippet_in_the_docs_agrees_with_a_ledger(last_digest, study):
    assert last_digest(study.ledger.path) == study.state().last


def test_the_snippet_in_the_docs_finds_every_altered_byte(last_digest, study, tmp_path):
    content, path = study.ledger.path.read_bytes(), tmp_path / "ledger.jsonl"
    for place in [*range(0, len(content), 11), len(content) - 1]:
        altered = bytearray(content)
        altered[place] ^= 1 << place % 8
        path.write_bytes(altered)
        with pytest.raises(ValueError, match="entry"):
            last_digest(path)


def test_the_snippet_in_the_docs_finds_entries_dropped_or_moved(last_digest, study, tmp_path):
    lines, path = study.ledger.path.read_bytes().splitlines(keepends=True), tmp_path / "ledger"
    for altered in (lines[1:], lines[:2] + lines[3:], [*lines[:3], lines[4], lines[3], *lines[5:]]):
        path.write_bytes(b"".join(altered))
        with pytest.raises(ValueError, match="does not follow"):
            last_digest(path)


def test_every_step_of_a_ledger_is_in_the_docs_with_its_data(study):
    rows = rows_after("| step |")
    for entry in study.ledger.entries():
        said = rows[entry.step][1]
        assert all(f"`{name}`" in said for name in entry.data), entry.step


def test_every_file_of_a_study_is_in_the_docs(study):
    for path in study.folder.rglob("*"):
        if path.is_file() and path.name != ".lock":
            name = "DIGEST.safetensors" if path.parent.name == "uploads" else path.name
            assert re.search(rf"^\| `(?:\w+/)?{re.escape(name)}` \|", PLAN_PAGE, re.M), name


def test_every_key_of_the_json_files_is_in_the_docs(study):
    header = json.loads((study.result_folder(1) / "model" / "model.json").read_text())
    assert sorted(rows_after("| key of `model.json` |")) == sorted(header)
    labels = json.loads((study.folder / "labels.json").read_text())
    described = PLAN_PAGE.partition("## The labels")[2].partition("## Keys")[0]
    assert all(f"`{name}`" in described for name in (*labels, *labels["labelled"]))
    upload = next((study.folder / "uploads").iterdir()).read_bytes()
    metadata = json.loads(upload[8 : 8 + int.from_bytes(upload[:8], "little")])["__metadata__"]
    rows = rows_after("| text | keys |")
    assert rows.keys() == metadata.keys()
    for name, text in metadata.items():
        assert all(f"`{key}`" in rows[name][1] for key in json.loads(text)), name


def test_what_a_site_does_in_the_docs_makes_a_file_that_counts(tmp_path, monkeypatch):
    world = make_world(tmp_path)
    table = (tmp_path / "reference.csv").read_text().splitlines(keepends=True)
    (tmp_path / "Budapest.csv").write_text("".join(table[:81]))  # those with a label
    monkeypatch.chdir(tmp_path)
    (code,) = fenced(COORDINATOR_PAGE, "python")
    exec(compile(code, "docs/coordinator.md", "exec"), {})
    study = world.begin(sites=())
    study.admit("Budapest", PublicKey.load(Path("Budapest.pub")))
    accepted = study.add(Path("Budapest.safetensors"))
    assert accepted is not None
    assert accepted.num_rows == 80


def commands(page: str) -> list[str]:
    """The command lines of a page's code blocks."""
    return re.findall(r"^ {4}(?:\$ )?predbayes (\S.*)$", page, re.M)


@pytest.mark.parametrize("path", ["README.md", "docs/coordinator.md"])
def test_commands_in_the_docs_exist(path):
    found = commands((ROOT / path).read_text())
    assert len(found) >= 10
    for line in found:
        arguments = shlex.split(line, comments=True)
        command = typer.main.get_command(app)
        while isinstance(command, click.Group):
            name = arguments.pop(0)
            assert name in command.commands, line
            command = command.commands[name]
        # Parsed and not run: unknown options, missing ones and missing arguments are errors.
        command.make_context(str(command.name), arguments)


def test_a_command_that_does_not_exist_would_be_found():
    with pytest.raises(click.UsageError):
        typer.main.get_command(app).commands["demo"].make_context("demo", ["--no-such"])


def test_links_between_the_pages_lead_somewhere():
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    for name in ("coordinator.md", "plan.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", pages[name]):
            if target.startswith("https:"):
                continue
            file, _, anchor = target.partition("#")
            assert (ROOT / "docs" / file).exists(), target
            if anchor:
                titles = re.findall(r"^#+ (.*)$", pages[file or name], re.M)
                assert anchor in [re.sub(r"[^\w]+", "-", title.lower()) for title in titles]
