"""Attack: a kit altered on its way that shows the honest words on a terminal, or in its file."""

import shutil

import pytest
from typer.testing import CliRunner

from predbayes.errors import PlanError
from predbayes_study.cli.app import app
from predbayes_study.kit.kit import FINGERPRINT_FILE, Kit, freeze
from predbayes_study.plan.schema import Plan
from tests.study.world import make_world

Y = 'y = { type = "number", range = [-50, 50], missing = "flag" }'


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("honest"))


@pytest.fixture
def altered(honest, tmp_path):
    """The attacker's own plan, for predictions in half precision."""
    text = (honest.root / "plan.toml").read_text()
    (tmp_path / "plan.toml").write_text(
        text.replace('"predictions"', '"predictions"\nprecision = "float16"')
    )
    shutil.copy(honest.root / "reference.csv", tmp_path)
    return freeze(tmp_path / "plan.toml", tmp_path / "kit")


@pytest.mark.parametrize(
    "words",
    [
        "\\u001b[2K\\u001b[1Gfingerprint: {words}\\n\\u001b[8m",
        "\\nfingerprint: {words}",
        "\\rfingerprint: {words}",
        "\\u202e{words}",
        "\\u200b{words}",
        "\\u2028fingerprint: {words}",
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        (Y, Y + '\n"FAKE" = { type = "number", optional = true }'),
        (Y, Y + '\nz = { type = "category", categories = ["FAKE"], optional = true }'),
        ('unit = "mm"', 'unit = "FAKE"'),
        ('source = "drawn"', 'source = "FAKE"'),
        ('"red"', '"FAKE"'),
    ],
    ids=["column", "category", "unit", "source", "class"],
)
def test_no_string_of_a_plan_moves_a_cursor(honest, place, words):
    fake = words.format(words=honest.kit.fingerprint)
    text = (honest.root / "plan.toml").read_text()
    assert place[0] in text
    with pytest.raises(PlanError, match="cannot be seen") as caught:
        Plan.loads(text.replace(place[0], place[1].replace("FAKE", fake)))
    assert str(caught.value).isprintable()


def test_a_file_that_shows_the_honest_words_on_top_is_refused(honest, altered):
    path = altered.folder / FINGERPRINT_FILE
    text = path.read_text().replace(altered.fingerprint, honest.kit.fingerprint)
    path.write_text(f"{text}{60 * chr(10)}(build id {altered.fingerprint})\n")
    with pytest.raises(PlanError, match=altered.fingerprint):
        Kit.load(altered.folder)


@pytest.mark.parametrize("change", [" ", "\n", "x", "\x1b[8m", "\r"])
def test_the_file_is_compared_exactly(altered, change):
    path = altered.folder / FINGERPRINT_FILE
    path.write_bytes(path.read_bytes() + change.encode())
    with pytest.raises(PlanError, match=FINGERPRINT_FILE):
        Kit.load(altered.folder)


def test_line_endings_of_a_mail_program_are_no_change(altered):
    path = altered.folder / FINGERPRINT_FILE
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert Kit.load(altered.folder).fingerprint == altered.fingerprint


def test_the_words_are_computed_and_printed_last(altered, monkeypatch):
    (altered.folder / FINGERPRINT_FILE).unlink()  # they are never read from it
    monkeypatch.chdir(altered.folder.parent)
    table = altered.folder / "reference.csv"
    for command in (
        ["plan", "check", str(altered.folder)],
        ["site", "check", str(altered.folder), str(table)],
        ["study", "init", str(altered.folder), "--labels", "kit-labels.json"],
    ):
        said = CliRunner().invoke(app, command).stdout.splitlines()
        assert said[-1] == f"fingerprint: {altered.fingerprint}", command
