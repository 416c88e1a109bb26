"""The plan, and its TOML: what is written loads back equal, whatever is in it."""

from __future__ import annotations

import string
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import PlanError, TextError
from predbayes.exchange.strict import LARGEST, MAX_COUNT
from predbayes.text import require_printable
from predbayes_study.plan.schema import (
    Frozen,
    Plan,
)
from predbayes_study.plan.text import dump

TEXT = """
format = 1
name = "Heart 2024"

[target]
name = "disease"
task = "classification"
classes = ["no", "yes"]

[columns]
age = { type = "number", unit = "years", range = [18, 100] }
sex = { type = "category", categories = ["f", "m"], missing = "flag" }

[reference]
labelled = 30
"""

finite = st.one_of(
    st.floats(-LARGEST, LARGEST),
    st.sampled_from([1e-300, -0.0, 5e-324, 1e16, 1e22, 120.0]),
)
positive = st.floats(5e-324, LARGEST)
counts = st.integers(0, MAX_COUNT)
some = st.integers(1, 10**9)
awkward = st.sampled_from(['"', "'", "\\", "a.b", "#", "=", '"""', "\u00a0", "é"])


def shows(text):
    try:
        return require_printable(text) == text
    except TextError:
        return False


seen = st.characters(exclude_categories=["C", "Zl", "Zp"])
texts = st.one_of(
    st.text(seen, max_size=8), st.lists(st.one_of(awkward, st.text(seen)), max_size=4).map("".join)
).filter(shows)
lines = st.lists(texts, max_size=3).map("\n".join)
words = texts.filter(str.strip)


def distinct(least):
    return st.lists(words, min_size=least, max_size=4, unique=True).map(tuple)


missing = {"missing": st.sampled_from(["refuse", "impute", "flag"]), "optional": st.booleans()}
units = {"centre": finite, "scale": positive}
numbers = {"type": st.just("number"), "unit": texts, **missing, **units}
ranged = {"range": st.none() | st.tuples(finite, finite).filter(lambda ends: ends[0] < ends[1])}
categories = {"type": st.just("category"), "categories": distinct(1), "other": st.booleans()}
columns = st.fixed_dictionaries(numbers | ranged) | st.fixed_dictionaries(categories | missing)
classes = {"name": texts, "task": st.just("classification"), "classes": distinct(2)}
transform = {"transform": st.sampled_from(["none", "log"])}
number = {"name": texts, "task": st.just("regression"), "unit": texts, **transform, **units}
digests = {"inputs_digest": texts, "labels_digest": texts, "version": texts}
of_reference = dict.fromkeys(("file", "source", "licence", "legal_basis"), texts)
of_reference |= dict.fromkeys(("labelled", "evaluate", "unlabelled"), counts)
floors = st.floats(-LARGEST, -5e-324)
rules = {"quorum": some, "deadline": st.none() | st.dates(), "min_cell": some}


@st.composite
def plans(draw):
    target = draw(st.fixed_dictionaries(classes) | st.fixed_dictionaries(number))
    names = texts.filter(lambda name: name != target["name"])
    return Plan.model_validate(
        {
            "format": 1,
            "name": draw(st.text(string.ascii_letters + string.digits, min_size=1, max_size=64)),
            "description": draw(lines),
            "seed": draw(counts),
            "target": target,
            "columns": draw(st.dictionaries(names, columns, min_size=1, max_size=4)),
            "reference": draw(st.fixed_dictionaries(of_reference)),
            "model": {"hidden": tuple(draw(st.lists(some, max_size=3)))},
            "learner": {"num_epochs": draw(some), "holdout": draw(st.floats(0, 0.5))},
            "pool": {"own": draw(texts.filter(lambda t: ":" not in t)), "floor": draw(floors)},
            "rules": draw(st.fixed_dictionaries(rules)),
            "frozen": draw(st.none() | st.fixed_dictionaries(digests)),
        }
    )


UNSHOWN = {"encrypt", "max_weight", "min_rows", "retention_days", "split"}  # at their defaults


class TestToml:
    @given(plan=plans())
    @settings(max_examples=30)
    def test_what_is_written_loads_back_equal_and_in_the_same_order(self, plan):
        again = Plan.loads(dump(plan))
        assert again == plan
        assert list(again.columns) == list(plan.columns)
        assert again.digest() == plan.digest()
        assert Plan.loads(dump(plan).replace("\n", "\r\n")) == plan

    def test_every_rule_shows_and_a_column_is_one_line(self):
        text = dump(Plan.loads(TEXT))
        tables = tomllib.loads(text)
        for section in ("model", "learner", "upload", "pool", "rules"):
            kind = Plan.model_fields[section].annotation
            commented = {name for name in kind.model_fields if f"\n# {name} = " in text}
            assert set(kind.model_fields) - set(tables[section]) - commented <= UNSHOWN
        columns = 'age = { type = "number", unit = "years", range = [18, 100], missing = "refuse" }'
        assert columns in text.splitlines()


class TestDigest:
    def test_layout_changes_nothing(self):
        sections = TEXT.strip().split("\n\n")
        turned = "\n\n\n".join([sections[0], *sections[:0:-1]]).replace(" = ", "  =   ")
        moved = Plan.loads("# a comment\n" + turned.replace("[reference]", "[reference]\nfile='x'"))
        assert moved.digest() == Plan.loads(TEXT).digest()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('["no", "yes"]', '["yes", "no"]'),
            ("[18, 100]", "[18, 101]"),
            ("labelled = 30", "labelled = 31"),
            ('"flag"', '"impute"'),
            ("Heart 2024", "Heart 2025"),
        ],
    )
    def test_content_changes_it(self, old, new):
        assert Plan.loads(TEXT.replace(old, new)).digest() != Plan.loads(TEXT).digest()

    def test_the_order_of_columns_changes_it(self):
        age, sex = [line for line in TEXT.splitlines() if "type" in line]
        turned = TEXT.replace(age, "x").replace(sex, age).replace("\nx\n", f"\n{sex}\n")
        assert set(Plan.loads(turned).columns) == {"age", "sex"}
        assert Plan.loads(turned).digest() != Plan.loads(TEXT).digest()


def problem(text):
    with pytest.raises(PlanError) as error:
        Plan.loads(text)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestErrors:
    @pytest.mark.parametrize("name", ["number", "category", "columns", "age"])
    def test_a_column_is_named_whatever_its_name(self, name):
        found = problem(TEXT.replace("age = {", f"{name} = {{ rnge = 3,"))
        assert f"columns.{name}: no key 'rnge'; did you mean 'range'?" in found

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ('type = "number"', 'type = "nmber"', "columns.age.type: must be 'number',"),
            ('["f", "m"]', '["f", "f"]', "columns.sex.categories: must be distinct"),
            ("age = {", "disease = {", "the target 'disease' is also one of the columns"),
            ("age = {", '"a\\nb" = { x = 1,', "columns.a b: no key 'x'"),
            ("[18, 100]", "[18, nan]", "columns.age.range.1: input should be a finite number"),
            ('classes = ["no", "yes"]', "", "a classification needs classes"),
            ("[reference]", "[reference", "is not TOML"),
            ("labelled = 30", f"labelled = {'9' * 5000}", "is not TOML"),
            ("labelled = 30", f"x = {'[' * 5000}", "is not TOML"),
            ("format = 1", 'format = 1\nsections = "text"', "must be a table"),
            ("Heart 2024", "../Heart", "name: string should match"),
            (
                "[reference]",
                '[learner]\nname = "linear-regression"\n[reference]',
                "learner.name: no learner for a classification 'linear-regression'",
            ),
            (
                "[reference]",
                '[learner]\nname = "sklearn.ensemble:RandomForestClassifier"\n[reference]',
                "learner.name: no learner for a classification 'sklearn",
            ),
            (
                "[reference]",
                '[frozen]\ninputs_digest = ""\nlabels_digest = ""\nversion = ""\n[reference]',
                "frozen: age have no centre",
            ),
        ],
    )
    def test_one_line_says_where_and_what(self, old, new, said):
        assert old in TEXT
        assert said in problem(TEXT.replace(old, new))

    def test_files_that_cannot_be_read(self, tmp_path):
        with pytest.raises(PlanError, match=r"cannot read .*: No such file"):
            Plan.load(tmp_path / "plan.toml")
        (tmp_path / "plan.toml").write_bytes(TEXT.replace("years", "größe").encode("latin-1"))
        with pytest.raises(PlanError, match=r"plan\.toml is not UTF-8 text"):
            Plan.load(tmp_path / "plan.toml")
        (tmp_path / "plan.toml").write_bytes(TEXT.encode("utf-8-sig"))
        assert Plan.load(tmp_path / "plan.toml") == Plan.loads(TEXT)


@pytest.mark.parametrize(("share", "taken"), [(0.5, True), (0.51, False), (0.9999, False)])
def test_no_plan_holds_out_more_than_half(share, taken):
    """By a seed that was searched for, the rest would be a person of the coordinator's choice."""
    text = dump(Plan.loads(TEXT)).replace("holdout = 0.2 ", f"holdout = {share} ")
    if taken:
        assert Plan.loads(text).learner.holdout == share
    else:
        with pytest.raises(PlanError, match=r"learner\.holdout"):
            Plan.loads(text)


class TestMeasuresOfADraft:
    def stated(self, text):
        """The plan of a draft of which the section of measures is taken out of the comments."""
        above, start, below = text.partition("# [measures]\n")
        lines = [line.removeprefix("# ") for line in below.splitlines()]
        return Plan.loads(above + start.removeprefix("# ") + "\n".join(lines))

    def test_it_can_be_asked_for_as_it_is_written(self):
        text = dump(Plan.loads(TEXT))
        assert Plan.loads(text).measures is None
        measures = self.stated(text).measures
        assert (measures.event, measures.groups) == ("yes", ("sex",))
        assert measures.thresholds == (0.1, 0.2)

    def test_a_plan_that_states_them_and_a_frozen_one_are_offered_nothing(self):
        plan = Plan.loads(f"{TEXT}\n[measures]\nthresholds = [0.3]\n")
        assert dump(plan).count("[measures]") == 1
        frozen = Frozen(inputs_digest="0" * 64, labels_digest="1" * 64, version="1")
        assert "[measures]" not in dump(Plan.loads(TEXT).model_copy(update={"frozen": frozen}))
