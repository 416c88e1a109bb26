from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predbayes_study.plan.schema import Plan
from predbayes_study.tables import suggest as module
from predbayes_study.tables.coding import examine, target_problems
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.tables.suggest import suggest
from predbayes_study.tables.vocabulary import (
    CONCEPTS,
    CONVERSIONS,
    UNITS,
    concepts_of,
    name_likeness,
    normal,
    normal_unit,
)

CANARY = "Kanarienvogel"
PLAN = """
format = 1
name = "ward"
[target]
name = "outcome"
task = "classification"
classes = ["no", "yes"]
[columns]
age = { type = "number", unit = "years", range = [18, 100] }
sex = { type = "category", categories = ["female", "male"], other = false }
chol = { type = "number", unit = "mg/dl", range = [80, 700], missing = "flag" }
ward = { type = "category", categories = ["surgery", "intensive care"], optional = true }
[reference]
"""


def rows(num=60, **columns):
    draw = np.random.default_rng(0)
    table = {
        "age": draw.integers(30, 80, num).astype(str),
        "sex": draw.choice(["male", "female"], num),
        "chol": draw.integers(150, 300, num).astype(str),
        "ward": draw.choice(["surgery", "intensive care"], num),
        "outcome": draw.choice(["no", "yes"], num),
    }
    return pd.DataFrame(table | columns)


@pytest.fixture
def drafted(plan, tmp_path):
    def drafted(table, **options):
        path = tmp_path / "rows.csv"
        table.to_csv(path, index=False, **options)
        suggestion = suggest(plan, path, "Basel")
        site = SiteFile.loads(suggestion.sitefile_text)
        return site, suggestion, read_site_table(plan, site, path)

    return drafted


def test_the_same_name_in_another_spelling_or_language_is_sure_and_others_are_not():
    for ours, theirs in (
        *(("chol", "CHOL"), ("chol", "Chol [mmol/l]"), ("heart_rate", "Heart Rate")),
        *(("größe", "Groesse (cm)"), ("age", "Alter"), ("sex", "Geschlecht")),
        ("chol", "Gesamt-Cholesterin [mg/dl]"),
        ("creatinine", "S-Kreatinin (µmol/l)"),
    ):
        assert name_likeness(ours, theirs) >= 0.9
    for ours, theirs in (("age", "sex"), ("chol", "ward"), ("a", "b")):
        assert name_likeness(ours, theirs) < 0.6
    assert concepts_of("Nüchternblutzucker") == {"fasting glucose"}  # the longest synonym
    assert concepts_of("LDL-Cholesterin") == {"ldl"}


def wide(num):
    """A plan of many columns of similar names, and a table with most of them."""
    draw = np.random.default_rng(0)
    lines = [f"lab value {n}" for n in range(num)]
    number = '"{}" = {{ type = "number", range = [0, 100], centre = {}.0, scale = 9.0 }}'
    columns = "\n".join(number.format(name, n % 90) for n, name in enumerate(lines))
    start, end = PLAN.index("age ="), PLAN.index("[reference]")
    plan = Plan.loads(PLAN[:start] + columns + "\n" + PLAN[end:])
    table = {name.replace(" ", "_"): draw.normal(n % 90, 5, 40) for n, name in enumerate(lines)}
    return plan, pd.DataFrame(table).round(1).astype(str).assign(outcome="yes")


def assign_by_all_pairs(plan, cells):
    """`assign` as it is defined: every pair is ranked before the first is taken."""
    pairs = [(ours, theirs) for ours in plan.names for theirs in cells]
    fit = {(a, b.name): module.propose(plan, a, b).fit for a, b in pairs}
    alike = {pair: name_likeness(*pair) for pair in fit}
    taken, used = {}, set()
    for a, b in sorted(fit, key=lambda pair: -alike[pair] - 0.5 * fit[pair]):
        good = alike[a, b] >= 0.9 or (alike[a, b] >= 0.6 and fit[a, b] >= 0.5)
        if good and a not in taken and b not in used:
            taken[a] = b
            used.add(b)
    left = [p for p in fit if p[0] not in taken and p[1] not in used and fit[p] >= 0.95]
    alone = [p for p in left if sum(p[0] == a or p[1] == b for a, b in left) == 1]
    return taken | dict(alone)


class TestManyColumns:
    NAMES = "age Age alter agee chol Chol_1 Cholesterin ldl sex sexe gender x yy ward outcome"

    @pytest.mark.parametrize("seed", range(12))
    def test_pairs_are_those_of_ranking_them_all(self, plan, seed):
        draw = np.random.default_rng(seed)
        table = rows(40)
        names = draw.choice(self.NAMES.split(), 7, replace=False)
        mixed = {name: table[draw.choice(table.columns)].to_numpy() for name in names}
        for name in names[:3]:
            mixed[name] = np.where(draw.random(40) < draw.random(), "7", mixed[name])
        cells = module.Cells.of_all(pd.DataFrame(mixed), ".")
        assigned = {a: offer.entry.column for a, offer in module.assign(plan, cells).items()}
        assert assigned == assign_by_all_pairs(plan, cells)

    def test_few_of_very_many_pairs_are_compared(self, monkeypatch):
        compared, looked_at = [], []
        propose, likeness = module.propose, module.name_likeness
        monkeypatch.setattr(module, "propose", lambda *a: looked_at.append(a) or propose(*a))
        monkeypatch.setattr(module, "name_likeness", lambda *a: compared.append(a) or likeness(*a))
        plan, table = wide(300)
        assert len(module.assign(plan, module.Cells.of_all(table, "."))) == 301
        assert max(len(compared), len(looked_at)) <= 2 * 301  # of 301 * 301 pairs
        looked_at.clear()
        table.columns = [f"q{n:03d}" for n in range(301)]  # unknown names
        module.assign(plan, module.Cells.of_all(table, "."))
        assert len(looked_at) <= module.MAX_PAIRS


class TestColumns:
    def test_a_table_in_the_plans_terms_needs_nothing(self, drafted):
        site, suggestion, _ = drafted(rows())
        assert site.columns == {}
        assert suggestion.notes == ()
        assert suggestion.sitefile_text.count("taken as it is") == 4

    def test_renamed_columns_are_found_each_once(self, plan, drafted):
        names = {"age": "Alter (Jahre)", "sex": "Geschlecht", "chol": "S-Cholesterin"}
        site, _, frame = drafted(rows().rename(columns=names))
        assert {name: entry.column for name, entry in site.columns.items()} == names
        assert not examine(plan, frame).problems

    def test_values_alone_name_a_column_to_be_checked_unless_they_fit_two(self, drafted):
        table = rows().rename(columns={"chol": "Laborwert 17"})
        site, suggestion, _ = drafted(table)
        assert site.columns["chol"].column == "Laborwert 17"
        assert any(note.startswith("chol: found by its values") for note in suggestion.notes)
        site, suggestion, _ = drafted(table.assign(second=table["Laborwert 17"]))
        assert "chol" not in site.columns
        assert any(note.startswith("chol: no column of the file") for note in suggestion.notes)
        assert '# chol = { column = "" }' in suggestion.sitefile_text


class TestUnits:
    @pytest.mark.parametrize(
        ("column", "unit", "span", "stated", "factor"),
        [
            ("chol", "mg/dl", (80, 700), (3.9, 7.7), 38.67),
            ("chol", "mmol/l", (2, 18), (150, 300), 1 / 38.67),
            ("glucose", "mg/dl", (40, 500), (4, 12), 18.016),
            ("creatinine", "umol/l", (20, 1500), (0.5, 2.0), 88.42),
            ("height", "cm", (100, 220), (1.5, 1.95), 100.0),
            ("height", "m", (1, 2.2), (150, 195), 0.01),
            ("weight", "kg", (30, 120), (130, 260), 0.45359237),
            ("temp", "C", (30, 45), (95, 105), 5 / 9),  # and with an offset
        ],
    )
    def test_a_factor_is_proposed_where_values_are_out_of_range_by_it(
        self, tmp_path, column, unit, span, stated, factor
    ):
        text = PLAN.replace("chol =", f"{column} =").replace("mg/dl", unit)
        plan = Plan.loads(text.replace("[80, 700]", str(list(span))))
        values = np.linspace(*stated, 60).round(2)
        table = rows().drop(columns="chol").assign(**{column: values})
        table.to_csv(tmp_path / "rows.csv", index=False)
        suggestion = suggest(plan, tmp_path / "rows.csv", "Basel")
        site = SiteFile.loads(suggestion.sitefile_text)
        assert site.columns[column].factor == pytest.approx(factor, rel=1e-5)
        assert any("taken for" in note for note in suggestion.notes)
        assert not examine(plan, read_site_table(plan, site, tmp_path / "rows.csv")).problems

    def test_every_conversion_has_its_way_back(self):
        for one in CONVERSIONS:
            back = one.inverse()
            there = 7.0 * one.factor + one.offset
            assert there * back.factor + back.offset == pytest.approx(7.0)

    def test_words_and_units_are_known_in_the_spelling_that_is_looked_up(self):
        synonyms = [name for names in CONCEPTS.values() for name in names]
        assert [normal(name) for name in synonyms] == synonyms
        assert {normal_unit(unit) for unit in UNITS} == UNITS
        assert {one.concept for one in CONVERSIONS} <= {"", *CONCEPTS}

    def test_a_stated_unit_that_is_the_plans_is_believed(self, drafted):
        table = rows(chol=["5.2"] * 60).rename(columns={"chol": "Chol [mg/dl]"})
        site, suggestion, _ = drafted(table)
        assert site.columns["chol"].factor == 1.0
        assert any("few of its values fit" in note for note in suggestion.notes)


class TestCodes:
    @pytest.mark.parametrize("code", ["0", "-9", "999", "9999", "-99"])
    def test_numbers_out_of_range_that_recur_mean_missing(self, drafted, code):
        table = rows()
        table.loc[:9, "chol"] = code
        table.loc[10:19, "chol"] = "99"  # which is in range
        site, _, frame = drafted(table)
        assert site.columns["chol"].missing == (code,)
        assert (frame["chol"] == "").sum() == 10

    @pytest.mark.parametrize("word", ["NA", "?", "leer", "n/a", "k.A.", "unbekannt"])
    def test_words_for_missing_are_found_in_any_column(self, plan, drafted, word):
        table = rows()
        table.loc[:2, "chol"] = table.loc[:2, "ward"] = word
        site, _, frame = drafted(table)
        assert site.missing.codes == (word,)
        assert (frame["chol"] == "").sum() == (frame["ward"] == "").sum() == 3

    @pytest.mark.parametrize(
        "words",
        [("m", "w"), ("M", "F"), ("männlich", "weiblich"), ("Homme", "Femme"), (" MALE", "Female")],
    )
    def test_words_for_sex_are_understood(self, drafted, words):
        odd = np.arange(60) % 2
        _, _, frame = drafted(rows(sex=np.where(odd, *words)))
        assert frame["sex"].tolist() == list(np.where(odd, "male", "female"))

    def test_codes_for_sex_are_not_guessed(self, drafted):
        table = rows()
        table["sex"] = np.where(np.arange(60) % 2, "1", "2")
        site, suggestion, _ = drafted(table)
        assert "sex" not in site.columns
        assert any(note.startswith("sex: 2 words are not in the plan") for note in suggestion.notes)

    @pytest.mark.parametrize("words", [("1", "0"), ("ja", "nein"), ("Yes", "NO"), ("oui", "non")])
    def test_the_target_is_recoded_likewise(self, plan, drafted, words):
        table = rows()
        table["outcome"] = np.where(np.arange(60) % 3, *words)
        site, _, frame = drafted(table)
        assert not target_problems(plan, frame)
        assert frame["outcome"].tolist() == list(np.where(np.arange(60) % 3, "yes", "no"))
        assert site.target.recode[words[0]] == "yes"


class TestSecrecy:
    @pytest.mark.parametrize("column", ["age", "sex", "chol", "ward", "outcome", "remark"])
    @pytest.mark.parametrize("value", [CANARY, "-73519", "73519.25", "leer " + CANARY])
    def test_a_value_of_few_rows_is_in_no_draft_and_no_note(self, drafted, column, value):
        table = rows(remark="")
        table.loc[:3, column] = value
        _, suggestion, _ = drafted(table)
        assert value not in suggestion.sitefile_text
        assert not any(value in note for note in suggestion.notes)

    @pytest.mark.parametrize(
        ("column", "code"),
        [("chol", "-9999"), ("sex", "weiblich"), ("ward", "unbekannt"), ("outcome", "nein")],
    )
    def test_even_a_code_that_is_understood_is_named_only_if_many_rows_have_it(
        self, plan, drafted, column, code
    ):
        table = rows()
        for num_rows in (plan.rules.min_cell - 1, plan.rules.min_cell):
            table.loc[: num_rows - 1, column] = code
            text = drafted(table)[1].sitefile_text
            assert (code in text) == (num_rows == plan.rules.min_cell)

    def test_a_word_of_many_rows_is_in_a_comment_alone_and_a_remark_is_nowhere(self, drafted):
        table = rows()
        for word, shown in (
            (CANARY, True),
            ('a"\n[target]', True),
            (f"{CANARY} called, call back on Monday", False),
        ):
            table.loc[:9, "ward"] = word
            site, suggestion, _ = drafted(table)
            lines = suggestion.sitefile_text.splitlines()
            named = [line for line in lines if " in 10 rows" in line]
            assert bool(named) is shown
            assert all(line.startswith("#") for line in named)
            assert (CANARY in suggestion.sitefile_text) is (word == CANARY)
            assert not any(word in note for note in suggestion.notes)
            assert site.target.column == ""


class TestRegression:
    @pytest.fixture
    def plan(self):
        target = '[target]\nname = "stay"\ntask = "regression"\nunit = "days"\n[columns]'
        text = PLAN.split("[target]")[0] + target + PLAN.split("[columns]")[1]
        return Plan.loads(text.replace("range = [80, 700], ", ""))

    @pytest.fixture
    def table(self):
        return rows(stay=[f"{day}" for day in range(1, 61)]).drop(columns="outcome")

    def test_a_code_far_from_all_values_is_missing_where_there_is_no_range(self, drafted, table):
        table.loc[:9, "stay"] = "9999"
        table.loc[10:19, "stay"] = "77"
        site, suggestion, _ = drafted(table)
        assert site.target.missing == ("9999",)
        assert "stay: taken for missing: 9999" in suggestion.notes
