"""The pages about studies say what is so: keys, files, commands, and the ledger's arithmetic."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from predbayes.exchange.header import UploadInfo
from predbayes_study import extra
from predbayes_study.cli.app import app
from predbayes_study.payloads.details import BinSums, Evaluation, Sums, save_signed
from predbayes_study.plan import schema as plan_module
from predbayes_study.plan.schema import Added, Plan, Section
from predbayes_study.result.evaluation import evaluation_upload
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.scoring import measures_of
from predbayes_study.tables import sitefile
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.tasks.classes import Intercept
from predbayes_study.tasks.echo import ModelLevel
from predbayes_study.tasks.numbers import ShiftScale
from predbayes_study.trust.signing import PublicKey
from tests.study.extras.survey.test_in_study import survey
from tests.study.messy import write_kit, write_messy
from tests.study.world import make_world, own_table

ROOT = Path(__file__).parents[2]
PLAN_PAGE = (ROOT / "docs" / "plan.md").read_text()
COORDINATOR_PAGE = (ROOT / "docs" / "coordinator.md").read_text()
MANAGER_PAGE = (ROOT / "docs" / "data-manager.md").read_text()


TABLES = {
    "Plan": "| key |",
    "Target": "### `[target]`",
    "Number": "| key of a number |",
    "Category": "| key of a category |",
    "Reference": "### `[reference]`",
    "Synthetic": "| key of `synthetic` |",
    "Model": "### `[model]`",
    "Learner": "### `[learner]`",
    "UploadRules": "### `[upload]`",
    "Gate": "### `[gate]`",
    "Moments": "### `[moments]`",
    "Pool": "### `[pool]`",
    "Rules": "### `[rules]`",
    "Measures": "### `[measures]`",
    "SurveyTerms": "### `[survey]`",
    "Sealed": "### `[sealed]`",
    "Privacy": "### `[privacy]`",
    "Frozen": "### `[frozen]`",
    "FrozenNetwork": "| key of `[frozen.network]` |",
    "SiteFile": "| key at the top |",
    "Policy": "| key of `[policy]` |",
    "FileForm": "| key of `[file]` |",
    "MissingCodes": "| key of `[missing]` |",
    "SiteColumn": "| key of a site's column |",
    "Vector": "| key of a vector |",
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
    if isinstance(default, tuple | list):
        return f"`{list(default)}`"
    return f"`{default}`" if isinstance(default, dict) else str(default)


ADDED = [found.load(where) for _, found, where in extra.added("sections")]


def sections() -> list[type[Section]]:
    modules = (plan_module, sitefile, *(importlib.import_module(kind.__module__) for kind in ADDED))
    kinds = {kind for module in modules for _, kind in inspect.getmembers(module, inspect.isclass)}
    found = [kind for kind in kinds if issubclass(kind, Section)]
    found = [k for k in found if k not in (Section, Added)]
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.__name__)
def test_every_key_is_in_the_docs_with_its_default(section):
    rows = rows_after(TABLES[section.__name__])
    own = [
        name
        for name in section.model_fields
        # Those are tables themselves.
        if section not in (Plan, SiteFile) or f"`[{name}]`" not in PLAN_PAGE
        if name != "sections"
    ]
    assert own
    assert sorted(rows) == sorted(own)
    for name in own:
        field = section.model_fields[name]
        default = field.get_default(call_default_factory=True)
        assert rows[name][2] == ("" if field.is_required() else written(default)), name


def test_the_sites_file_in_the_docs_is_one():
    (text,) = re.findall(r"^    format = 1\n(?:    .*\n)+", PLAN_PAGE, re.M)
    site = SiteFile.loads(textwrap.dedent(text))
    assert site.columns["chol"].factor == 38.67


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
    begun.add(survey(world, "Alpha"))
    begun.finish()
    model = CalibratedModel.load(begun.result_folder(1) / "model")
    plan, inputs = world.kit.plan, world.kit.inputs[:40]
    predictive, digest = model.predictive(inputs), model.weights_digest()
    targets = predictive.log_probs.argmax(1)
    told = evaluation_upload(plan, "Alpha", predictive, targets, digest)
    save_signed(told, world.root / "evaluation.safetensors", world.key("Alpha"))
    begun.add(world.root / "evaluation.safetensors")
    begun.finish()
    begun.delete("Beta")
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


def test_every_step_of_a_ledger_is_in_the_docs_with_its_data(study):
    rows, entries = rows_after("| step |"), study.ledger.entries()
    assert rows.keys() == {entry.step for entry in entries}
    for entry in entries:
        said = rows[entry.step][1]
        assert all(f"`{name}`" in said for name in entry.data), entry.step


def test_every_file_of_a_study_is_in_the_docs(study):
    for path in study.folder.rglob("*"):
        if path.is_file() and not path.name.startswith(".lock"):
            name = f"DIGEST{path.suffix}" if path.parent.name == "uploads" else path.name
            assert re.search(rf"^\| `(?:\w+/)?{re.escape(name)}` \|", PLAN_PAGE, re.M), name


def test_every_key_of_the_json_files_is_in_the_docs(study):
    folder = study.result_folder(1) / "model"
    header = json.loads((folder / "model.json").read_text())
    rows = rows_after("| key of `model.json` |")
    assert sorted(rows) == sorted([*header, "level", "adjustment"])
    assert all(f"`{name}`" in rows["level"][1] for name in ModelLevel.model_fields)
    for kind in (Intercept, ShiftScale):
        assert all(f"`{name}`" in rows["adjustment"][1] for name in kind.model_fields)
        assert f"`{kind.model_fields['kind'].default}`" in rows["adjustment"][1]
    labels = json.loads((study.folder / "labels.json").read_text())
    described = PLAN_PAGE.partition("## The labels")[2].partition("## Keys")[0]
    assert all(f"`{name}`" in described for name in (*labels, *labels["labelled"]))


def test_every_key_of_an_upload_is_in_the_docs(study):
    rows = rows_after("| text | keys |")
    for path in (study.folder / "uploads").glob("*.safetensors"):
        upload = path.read_bytes()
        metadata = json.loads(upload[8 : 8 + int.from_bytes(upload[:8], "little")])["__metadata__"]
        assert rows.keys() == metadata.keys()
        for name, text in metadata.items():
            assert all(f"`{key}`" in rows[name][1] for key in json.loads(text)), name
    assert all(f"`{name}`" in rows["predbayes"][1] for name in UploadInfo.model_fields)


@pytest.mark.parametrize("regression", [False, True])
def test_every_field_of_an_evaluation_is_in_the_docs(tmp_path, regression):
    rows = rows_after("| field of `evaluation` |")
    assert rows.keys() == Evaluation.model_fields.keys()
    assert all(f"`{name}`" in rows["metrics"][1] for name in Sums.model_fields)
    assert all(f"`{name}`" in rows["bins"][1] for name in BinSums.model_fields)
    plan = make_world(tmp_path, regression=regression).kit.plan
    assert all(f"`{m.name}`" in rows["metrics"][1] for m in measures_of(plan))


# What a site does


RUNNER = CliRunner()


def run(line: str) -> str:
    """All that a command says, errors included."""
    result = RUNNER.invoke(app, shlex.split(line, comments=True))
    error = "" if result.exit_code == 0 else f"predbayes: {result.exception}"
    return result.output + error


def test_what_a_site_does_in_the_docs_makes_a_file_that_counts(tmp_path, monkeypatch):
    world = make_world(tmp_path)
    table = own_table((tmp_path / "reference.csv").read_text())  # those with a label
    (tmp_path / "Budapest.csv").write_text(table)
    monkeypatch.chdir(tmp_path)
    lines = [line for line in commands(COORDINATOR_PAGE) if line.startswith("site ")]
    assert [line.split()[1] for line in lines] == ["key", "check", "check", "train"]
    said = [run(line) for line in lines]
    assert "no errors" in said[2]
    study = world.begin(sites=())
    study.admit("Budapest", PublicKey.load(Path("Budapest.pub")))
    accepted = study.add(Path("out/Budapest.safetensors"))
    assert accepted is not None
    assert accepted.num_rows == 80
    for path in [Path("site.toml"), *Path("out").rglob("*")]:
        name = path.relative_to("out").as_posix() if path.parts[0] == "out" else path.name
        if path.is_file():
            told = name.replace("Budapest", "NAME")
            assert f"| `{told}` |" in PLAN_PAGE, told
            hidden = name.startswith(".")  # of no concern to a data manager
            assert hidden or path.name.replace("Budapest", "Waldheim") in MANAGER_PAGE


def outputs(page: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a page with what they say there; an ellipsis stands for anything."""
    for block in re.findall(r"(?:^    .*\n)+", page, re.M):
        parts = re.split(r"^\$ predbayes (.*)\n", textwrap.dedent(block), flags=re.M)
        for command, output in zip(parts[1::2], parts[2::2], strict=True):
            yield command, output.split("\n$ ")[0].splitlines()


def test_the_walk_of_the_data_manager_is_as_the_page_shows_it(tmp_path, monkeypatch):
    """Up to training: what comes after has the key in it, or takes long."""
    write_kit(tmp_path)
    write_messy(tmp_path)
    monkeypatch.chdir(tmp_path)
    shown_here = ("plan", "site check", "site approve kit")
    checks = [one for one in outputs(MANAGER_PAGE) if one[0].startswith(shown_here)]
    assert len(checks) == 6
    for number, (command, shown) in enumerate(checks):
        if number == 5:
            make_two_edits()
        assert_shows(run(command), shown)
        if command.endswith("--name Waldheim"):
            drafted = Path("site.toml").read_text(encoding="utf-8").splitlines()
            (sample,) = fenced(MANAGER_PAGE, "toml")
            assert [line for line in sample.splitlines() if line not in drafted] == ["# …"] * 3


def make_two_edits() -> None:
    (change,) = fenced(MANAGER_PAGE, "diff")
    text = Path("site.toml").read_text(encoding="utf-8")
    lines = change.splitlines()
    assert [line[0] for line in lines] == ["-", "+", "-", "+"]
    for old, new in pairwise(lines):
        if old[0] == "-":
            assert text.count(old[1:]) == 1
            text = text.replace(old[1:], new[1:])
    Path("site.toml").write_text(text, encoding="utf-8")


def assert_shows(said: str, shown: list[str]) -> None:
    """Every line that is shown was said, in that order, with nothing between but ellipses."""
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(line) + "\n" for line in shown)
    assert re.fullmatch(pattern, f"{said.strip()}\n"), said


def commands(page: str) -> list[str]:
    """The command lines of a page's code blocks."""
    return re.findall(r"^ {4}(?:\$ )?predbayes (\S.*)$", page, re.M)


PAGES = {
    "README.md": 6,
    "docs/beginnings.md": 11,
    "docs/coordinator.md": 15,
    "docs/data-manager.md": 15,
    "docs/data-protection.md": 2,
    "examples/four-hospitals/README.md": 1,
}  # with the commands that each has at least


@pytest.mark.parametrize("path", PAGES)
def test_commands_in_the_docs_exist(path):
    found = commands((ROOT / path).read_text())
    assert len(found) >= PAGES[path]
    for line in found:
        arguments = shlex.split(line, comments=True)
        command, context = typer.main.get_command(app), None
        while isinstance(command, click.Group):
            context = click.Context(command, context, command.name)
            command = command.get_command(context, arguments.pop(0))
            assert command is not None, line
        # Parsed and not run: unknown options, missing ones and missing arguments are errors.
        command.make_context(str(command.name), arguments)
