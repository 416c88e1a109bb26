"""`predbayes site check` as a data manager meets it, with the table of a German hospital."""

from __future__ import annotations

import re
import shutil
import sys

import pytest

from predbayes.errors import DataError, PredbayesError
from predbayes_study.kit.kit import Kit
from predbayes_study.plan.networks import Installed
from predbayes_study.plan.schema import FrozenNetwork
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from tests.study.commands import invoke
from tests.study.messy import FILE, SITE, write_kit, write_messy
from tests.study.plan.distribution import install
from tests.study.world import make_world, own_table

CANARY = "Kanarienvogel"


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return write_kit(tmp_path_factory.mktemp("study"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_messy(tmp_path)
    return tmp_path


def run(kit, *arguments):
    return invoke("site", "check", kit.folder, FILE, *arguments)


def said(result):
    """All that a user sees."""
    return f"{result.output}{result.exception or ''}"


def suggested(kit):
    result = run(kit, "--suggest", "--name", SITE)
    assert result.exit_code == 0, said(result)
    return result


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_rows_held_out_are_those_that_train_holds_out(tmp_path, monkeypatch):
    """Most rows are of one patient, who stays together: the plan's share would be 16 of 80."""
    world = make_world(tmp_path / "world", learner="[learner]\nholdout = 0.2\nmin_steps = 200\n")
    monkeypatch.chdir(tmp_path)
    head, *lines = own_table((world.root / "reference.csv").read_text()).splitlines()
    patients = ["A"] * 50 + ["B"] * 10 + ["C"] * 10 + ["D"] * 10
    rows = [f"{line},{patient}" for line, patient in zip(lines, patients, strict=True)]
    (tmp_path / FILE).write_text("\n".join([f"{head},Pat", *rows]) + "\n")
    site = 'format = 1\nname = "Alpha"\npatient = "Pat"\n'
    (tmp_path / "site.toml").write_text(site)
    plan, own = world.kit.plan, SiteFile.loads(site)
    found = SiteRows.of(plan, read_site_table(plan, own, tmp_path / FILE)).split(plan, "Alpha")
    trained, held_out = map(len, found)
    assert held_out != 16
    shown = said(run(world.kit))
    assert f"{trained} rows to train on, {held_out} held out" in shown
    assert f"warning: {held_out} rows held out: with fewer than 30" in shown


class TestComplete:
    def test_what_somebody_wrote_stays_and_the_rest_is_added_as_guesses(self, kit, folder):
        path = folder / "site.toml"
        mine = (
            'format = 1\nname = "Waldheim"  # ours\n\n[columns]\n'
            '# by hand\nage = { column = "Alter (Jahre)", missing = ["0"] }\n'
        )
        path.write_text(mine)
        result = run(kit, "--suggest")
        assert result.exit_code == 0, said(result)
        added = path.read_text()
        lines = added.splitlines()
        assert set(mine.splitlines()) <= set(lines)
        own = SiteFile.load(path)
        assert own.file.delimiter == ";"
        assert own.columns["age"].missing == ("0",)
        assert own.columns["chol"].factor == 38.67
        assert own.target.column == "KHK"
        written = [n for n, line in enumerate(lines, 1) if re.match(r"\w+ = \{ c|column = ", line)]
        guesses = [n for n in written if lines[n - 1] not in mine.splitlines()]
        assert len(guesses) >= 9
        assert all(" # a guess, check: " in lines[n - 1] for n in guesses)
        printed = re.findall(r"^  - line (\d+): ", result.output, re.MULTILINE)
        assert sorted({int(n) for n in printed}) == guesses
        run(kit, "--suggest")
        assert path.read_text() == added  # nothing is added twice


class TestWalk:
    def test_the_messy_table_passes_after_a_draft_and_two_edits(self, kit, folder):
        asked = suggested(kit).output.splitlines()
        assert "predictions on 300 reference rows" in asked[1]  # what the plan asks comes first
        assert asked[-1] == f"fingerprint: {kit.plan.fingerprint}"
        first = run(kit)
        assert isinstance(first.exception, DataError)
        assert str(first.exception) == "herz.csv does not fit yet: 1 error, 1 warning"
        edit(
            folder / "site.toml",
            '[mmHg]", missing = ["-9"',
            '[mmHg]", missing = ["-9", "n. gemessen"',
        )
        edit(
            folder / "site.toml",
            'atypisch = "atypical" }',
            'atypisch = "atypical", typisch = "typical", "nicht anginös" = "non-anginal" }',
        )
        result = run(kit)
        assert result.exit_code == 0, said(result)
        assert "240 rows, 10 of 10 columns found" in result.output
        assert "warning: cp: at least 20 values not in the plan's list" in result.output
        assert "herz.csv fits the plan: no errors, 1 warning" in result.output


class TestAsked:
    @pytest.mark.parametrize(
        ("digest", "allowed", "problem"),
        [
            ("right", True, ""),
            ("right", False, 'to allow it write allow_networks = ["ours"] in site.toml'),
            ("wrong", True, "its files are not those of the plan"),
            ("absent", True, "no installed network 'ours'"),
        ],
    )
    def test_a_network_of_the_consortiums_own_must_be_the_agreed_one_and_allowed(
        self, kit, folder, monkeypatch, tmp_path, digest, allowed, problem
    ):
        monkeypatch.syspath_prepend(install(tmp_path / "site-packages"))
        agreed = Installed.find("ours").digest if digest == "right" else "0" * 64
        if digest == "absent":
            shutil.rmtree(tmp_path / "site-packages")
        stated = FrozenNetwork(
            distribution="ournets", version="1.0", digest=agreed, parameters=0, arrays={}
        )
        model = kit.plan.model.model_copy(update={"module": "ours"})
        frozen = kit.plan.frozen.model_copy(update={"network": stated})
        plan = kit.plan.model_copy(update={"model": model, "frozen": frozen})
        monkeypatch.setattr(Kit, "load", lambda folder: Kit(folder, plan, kit.rows))
        suggested(kit)
        if allowed:
            text = (folder / "site.toml").read_text()
            (folder / "site.toml").write_text(f'allow_networks = ["ours"]\n{text}')
        output = said(run(kit))
        assert f"network      ours: code of ournets 1.0, files {agreed[:16]}" in output
        assert problem in output
        assert f"{1 + bool(problem)} error" in output
        assert "ournets" not in sys.modules


class TestRefusals:
    def test_a_draft_needs_a_name_and_overwrites_nothing(self, kit, folder):
        path = folder / "site.toml"
        assert "--name NAME" in str(run(kit, "--suggest").exception)
        assert isinstance(run(kit, "--suggest", "--name", "../x").exception, PredbayesError)
        assert not path.exists()
        path.write_text("mine")
        result = run(kit, "--suggest", "--name", SITE)
        assert isinstance(result.exception, PredbayesError)
        assert path.read_text() == "mine"
        result = run(kit, "--suggest", "--name", SITE, "--site", "my site.toml")
        assert "herz.csv --site 'my site.toml'" in result.output
        assert SiteFile.load(folder / "my site.toml").name == SITE

    def test_without_a_file_the_plans_names_are_taken_and_a_draft_is_offered(self, kit, folder):
        (folder / FILE).write_bytes((kit.folder / "reference.csv").read_bytes())
        result = run(kit)
        assert "there is no site.toml, so your table must have the plan's names" in result.output
        assert "herz.csv --suggest --name NAME" in result.output
        assert "error: disease: the column is missing" in result.output
        assert str(result.exception) == "herz.csv does not fit yet: 1 error, 0 warnings"


COLUMNS = (
    "Alter (Jahre)",
    "Geschlecht",
    "Brustschmerz",
    "Cholesterin [mmol/l]",
    "KHK",
    "Bemerkung",
)
VALUES = (CANARY, "-73519,25", "73519.25", f"{CANARY} ruft an")


def spoil(path, column, value, num_rows):
    header, *lines = path.read_text("latin-1").splitlines()
    place = header.split(";").index(column)
    rows = [line.split(";") for line in lines]
    for row in rows[:num_rows]:
        row[place] = value
    text = "\n".join([header, *(";".join(row) for row in rows)])
    path.write_text(text, "latin-1")


class TestCanaries:
    @pytest.mark.parametrize("column", COLUMNS)
    def test_a_value_is_in_no_output_error_or_draft_but_for_whoever_asks(self, kit, folder, column):
        drafted, path = folder / "site.toml", folder / FILE
        table = path.read_bytes()
        form = '[file]\ndelimiter = ";"\nencoding = "latin-1"'
        for value in VALUES:
            path.write_bytes(table)
            drafted.unlink(missing_ok=True)
            spoil(path, column, value, 3)
            outputs = [said(run(kit)), said(suggested(kit)), drafted.read_text(), said(run(kit))]
            drafted.write_text(f'format = 1\nname = "{SITE}"\n{form}\n')
            outputs.append(said(run(kit)))
            assert not any(value in output for output in outputs)
        path.write_bytes(table)
        drafted.unlink()
        suggested(kit)
        spoil(path, column, CANARY, 3)
        assert CANARY not in said(run(kit))
        assert (CANARY in run(kit, "--show-values").output) is (column != "Bemerkung")

    def test_a_file_without_names_is_refused_without_its_first_row(self, kit, folder):
        text = (folder / FILE).read_text("latin-1").splitlines()
        text[1] = text[1].replace("48000", CANARY)
        (folder / FILE).write_text("\n".join(text[1:]), "latin-1")
        result = run(kit, "--suggest", "--name", SITE)
        assert isinstance(result.exception, DataError)
        assert CANARY not in said(result)
