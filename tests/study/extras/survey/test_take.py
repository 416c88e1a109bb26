"""What a survey tells of a table, and what it keeps to itself."""

import functools
import json

import numpy as np
import pandas as pd
import pytest

from predbayes.errors import DataError, PlanError, StudyError
from predbayes_study.extras.survey.surveyfile import read_survey
from predbayes_study.extras.survey.take import (
    BOUND,
    ROWS_PER_SUM,
    num_sums,
    told_counts,
    told_quantiles,
)
from predbayes_study.trust.signing import SigningKey
from tests.study.invented import DRAFT, STEP, plan, survey_of, table

NO_COUNTS = {"quantiles", "factor", "offset", "decimals", "moments", "format"}


@pytest.fixture(scope="module")
def graz(tmp_path_factory):
    frame = table("Graz")
    return frame, survey_of(frame, tmp_path_factory.mktemp("graz"))


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    key = SigningKey.generate()
    return key, survey_of(table("Split"), tmp_path_factory.mktemp("split"), key=key)


class TestCounts:
    @pytest.mark.parametrize(
        ("counts", "told"),
        [
            ([100, 60, 3, 2], [100, 60, None, None]),
            # Nor does a small one follow from the others.
            ([100, 60, 3, 0], [100, None, None, None]),
            ([100, 60, 2, 2], [100, None, None, None]),
            ([97, 3], [None, None]),
        ],
    )
    def test_a_small_count_is_not_told(self, counts, told):
        assert told_counts(counts, STEP) == told

    def test_none_and_few_look_the_same(self, tmp_path):
        told = []
        for num in (0, 3):
            frame = table("Graz")[:600].assign(sodium="140")
            frame.loc[frame.index[:num], "sodium"] = ""
            told.append(survey_of(frame, tmp_path).columns["sodium"])
        assert told[0] == told[1]

    def test_one_row_more_moves_a_count_by_a_step_at_the_most(self):
        rng = np.random.default_rng(0)
        for _ in range(200):
            counts = rng.integers(10, 60, 4)
            more = counts + np.eye(4, dtype=int)[rng.integers(4)]
            pairs = zip(told_counts(counts, STEP), told_counts(more, STEP), strict=True)
            assert sum(b - a for a, b in pairs) in (0, STEP)

    def test_all_counts_of_a_file_are_in_steps(self, graz):
        counts = []

        def collect(value):
            if isinstance(value, dict):
                for key, part in value.items():
                    if key not in NO_COUNTS:
                        collect(part)
            elif isinstance(value, int):
                counts.append(value)

        collect(json.loads(graz[1].content()))
        assert len(counts) > 10
        assert all(count % STEP == 0 for count in counts)


class TestWords:
    def survey(self, tmp_path, words):
        frame = pd.concat([table("Graz")[:600]] * (len(words) // 600 + 1))[: len(words)]
        return survey_of(frame.assign(smoking=words), tmp_path).columns["smoking"]

    def test_frequent_words_that_the_plan_lacks_are_told(self, tmp_path):
        told = self.survey(tmp_path, ["never"] * 50 + ["Current"] * 33 + ["vapes"] * 17)
        assert told.words == {"never": 50, "former": None, "current": None}
        assert told.unlisted == {"Current": 30, "vapes": 15}

    def test_rare_and_long_words_and_free_text_are_not(self, tmp_path):
        rare = ["never"] * 50 + ["Anna Huber"] * 3 + ["former"] * 47
        notes = ["A. Huber"] * 8 + [f"patient {k}" for k in range(92)]
        for words in (rare, notes, ["never"] * 80 + ["x" * 31] * 20):
            told = self.survey(tmp_path, words)
            assert told.unlisted == {}
            assert "Huber" not in told.model_dump_json()


class TestNumbers:
    def test_quantiles_are_near_and_stand_for_a_step_of_rows(self, graz):
        frame, survey = graz
        for name in ("age", "creatinine", "crp", "temperature"):
            values = pd.to_numeric(frame[name]).dropna().to_numpy()
            for level, told in survey.columns[name].quantiles.items():
                assert abs((values <= told).mean() - level / 100) < 0.05, (name, level)
                beyond = min((values <= told).sum(), (values >= told).sum())
                assert beyond >= STEP

    def test_ends_are_never_told(self):
        rng = np.random.default_rng(1)
        for num in (20, 40, 100, 1000):
            values = rng.standard_normal(num) * 1000
            told = told_quantiles(values, STEP)
            assert all(min(p, 100 - p) * num >= 400 * STEP for p in told)
            assert not {values.min(), values.max()} & set(told.values())
        assert told_quantiles(np.arange(39.0), STEP) == {}

    def test_no_told_number_is_one_persons_value(self):
        """Continuous values: rounding leaves none of them as it was."""
        values = np.random.default_rng(2).standard_normal(200) * np.pi
        assert not set(told_quantiles(values, STEP).values()) & set(values)

    def test_codes_for_missing_are_named_and_no_quantile(self, tmp_path):
        frame = table("Graz")
        frame.loc[frame.index[:60], "sodium"] = "999"
        told = survey_of(frame, tmp_path).columns["sodium"]
        assert told.codes == {"999": 60}
        assert max(told.quantiles.values()) < 160
        few = table("Graz")
        few.loc[few.index[:4], "sodium"] = "999"
        assert survey_of(few, tmp_path).columns["sodium"].codes == {}


class TestPatients:
    def test_somebody_with_many_rows_counts_once(self, tmp_path):
        frame = table("Split")
        frame["pid"] = [f"p{k}" for k in range(len(frame))]
        often = frame.iloc[[0] * 25].assign(smoking="pipe")
        both = pd.concat([frame, often], ignore_index=True)
        alone = survey_of(frame, tmp_path)
        told = survey_of(both, tmp_path, patient="pid")
        assert survey_of(both, tmp_path).columns["smoking"].unlisted == {"pipe": 25}
        assert told.columns["smoking"].unlisted == {}
        assert told.rows == alone.rows == 350


class TestMoments:
    def test_sums_are_those_of_bounded_features(self, graz):
        frame, survey = graz
        told = survey.moments
        names = [(f.column, f.kind, f.word) for f in told.features]
        age, ill = names.index(("age", "value", "")), names.index(("diabetes", "word", "yes"))
        missing = {f.column for f in told.features if f.kind == "missing"}
        assert missing == {"sodium", "crp", "haemoglobin", "temperature", "smoking"}
        feature = told.features[age]
        values = ((frame["age"].astype(float) - feature.centre) / feature.scale).clip(-BOUND, BOUND)
        yes = (frame["diabetes"] == "yes").astype(float)
        assert told.sums[ill] == yes.sum() // STEP * STEP
        assert told.products[ill][age] == pytest.approx((values * yes).sum(), abs=BOUND * STEP / 2)
        assert all(number % STEP == 0 for line in told.products for number in line)

    def test_too_few_rows_have_none(self, tmp_path, graz):
        needed = ROWS_PER_SUM * num_sums(len(graz[1].moments.features))
        frame = table("Graz", num_rows=needed)
        assert survey_of(frame, tmp_path).moments is not None
        assert survey_of(frame[:-1], tmp_path).moments is None

    def test_they_are_told_only_where_plan_and_site_say_so(self, tmp_path):
        frame, quiet = table("Graz"), plan(DRAFT.replace("moments = true", ""))
        assert survey_of(frame, tmp_path, of=quiet).moments is None
        assert survey_of(frame, tmp_path, moments=False).moments is None


class TestFile:
    def test_a_table_of_few_rows_is_not_surveyed(self, tmp_path):
        with pytest.raises(DataError, match="fewer than 20 rows are not surveyed"):
            survey_of(table("Split")[:19], tmp_path)

    def test_it_reads_back_and_any_change_is_found(self, tmp_path):
        key, path = SigningKey.generate(), tmp_path / "Split.survey"
        frame = table("Split").drop(columns="crp")
        survey, again = (survey_of(frame, tmp_path, "Split", key=key) for _ in range(2))
        assert survey.absent == ("crp",)
        assert "crp" not in survey.columns
        assert survey.file(key) == again.file(key)
        path.write_bytes(survey.file(None))
        assert read_survey(path) == (survey, False)  # as it is held back
        path.write_bytes(survey.file(key))
        assert read_survey(path) == (survey, True)
        path.write_bytes(path.read_bytes().replace(b'"rows": 350', b'"rows": 950'))
        with pytest.raises(StudyError, match="key that it names, or was altered"):
            read_survey(path)

    @pytest.mark.parametrize("content", [b"", b"{}", b"{}\n\n", b"nonsense\n", b"{\n" * 9])
    def test_nothing_else_is_one(self, tmp_path, content):
        path = tmp_path / "x.survey"
        path.write_bytes(content)
        with pytest.raises(StudyError, match=r"^x\.survey is "):
            read_survey(path)

    @pytest.mark.parametrize(
        ("where", "value"),
        [
            ("rows", 10**400),
            ("step", 10**400),
            ("columns age missing", 10**400),
            ("columns age missing", 355),
            ("columns age unreadable", 355),
            ("columns age codes", {"999": 355}),
            ("columns sex words", {"female": 355, "male": None}),
            ("columns sex other", 355),
            ("columns age codes", {str(k): 175 for k in range(3)}),
            ("columns sex words", {"female": 350, "male": 5}),
            ("columns sex unlisted", {"f": 200, "m": 155}),
            ("columns age quantiles", {"50": 1e100}),
            ("columns age quantiles", {"50": -2e15}),
            ("columns age quantiles", {"25": 60.0, "50": -1.0}),  # not in order
            ("columns sex unlisted", {f"word {k}": 5 for k in range(21)}),
            ("columns sex unlisted", {"w" * 31: 5}),
            ("moments sums", [1e308]),
            ("moments products", [[1e308]]),
        ],
        ids=lambda part: part if isinstance(part, str) else "",
    )
    def test_figures_are_bounded_and_the_first_beyond_is_named(self, split, tmp_path, where, value):
        """A signed file may say anything."""
        (key, survey), path = split, tmp_path / "x.survey"
        one = {"features": [{"column": "age", "kind": "value"}], "sums": [5.0], "products": [[5.0]]}
        content = json.loads(survey.content()) | {"moments": one}
        *parents, last = where.split()
        functools.reduce(dict.__getitem__, parents, content)[last] = value
        text = json.dumps(content, indent=1).encode()
        path.write_bytes(text + f"\n{key.sign('survey', text)}\n".encode())
        named = where.removeprefix("columns ").split()[0]
        with pytest.raises(StudyError, match=rf"x.survey is not a survey.*: .*{named}"):
            read_survey(path)


class TestOneLine:
    """What cannot be surveyed is said in one line that names the column."""

    @pytest.mark.parametrize("size", [1e15, 1e202, 1.7e308])
    def test_numbers_beyond_all_measure(self, tmp_path, size):
        frame = table("Split")
        values = np.linspace(-1.0, 1.0, len(frame)) * 1.0001 * size
        with pytest.raises(DataError, match=r"crp: a number is beyond ±1e\+15"):
            survey_of(frame.assign(crp=[f"{v:g}" for v in values]), tmp_path)

    @pytest.mark.parametrize("words", ['"1", "1.0", "never"', '"never", "1.0", "1.00"'])
    def test_two_words_that_are_one(self, tmp_path, words):
        of = plan(DRAFT.replace('"never", "former", "current"', words))
        with pytest.raises(PlanError, match="smoking: two categories are one word"):
            survey_of(table("Split"), tmp_path, of=of)
