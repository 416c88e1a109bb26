"""What `plan merge` makes of surveys: proposals, and every planted disagreement but no other."""

import pandas as pd
import pytest

from predbayes.errors import StudyError
from predbayes_study.extras.survey.merge import merge
from predbayes_study.kit.draft import GATE, LEARNER
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.text import dump
from predbayes_study.trust.signing import SigningKey
from tests.study.invented import DRAFT, plan, survey_of, table, tables

TAKEN = {}  # surveys by the table, which is kept: most tests change that of one site


def surveys_of(frames, folder, of=None):
    if of is not None:
        return [survey_of(frame, folder, name, of=of) for name, frame in frames.items()]
    for name, frame in frames.items():
        if (name, id(frame)) not in TAKEN:
            TAKEN[name, id(frame)] = frame, survey_of(frame, folder, name)
    return [TAKEN[name, id(frame)][1] for name, frame in frames.items()]


def divided(factor, places=1):
    return lambda cell: f"{float(cell) / factor:.{places}f}"


def recoded(**words):
    return lambda cell: words.get(cell, cell)


PLANTED = {
    "units of glucose": ("Brno", "glucose", divided(18.016), "factor = 18.016"),
    "units of creatinine": ("Graz", "creatinine", divided(88.42, 2), "factor = 88.42"),
    "units of haemoglobin": ("Split", "haemoglobin", divided(1.6114), "factor = 1.6114"),
    "a power of ten": ("Split", "crp", divided(10, 2), "factor = 10"),
    "degrees": ("Trieste", "temperature", lambda c: f"{float(c) * 1.8 + 32:.1f}", "(f to c)"),
    "case": ("Graz", "sex", str.title, "'Male' (1,"),
    "a letter": ("Brno", "smoking", recoded(current="curent"), "'curent' ("),
    "other words": (
        "Trieste",
        "sex",
        recoded(male="M", female="F"),
        '{ M = "male", F = "female" }',
    ),
    "numbers for words": ("Split", "diabetes", recoded(no="0", yes="1"), '{ 0 = "no", 1 = "yes" }'),
    "a list of codes": (
        "Trieste",
        "smoking",
        recoded(never="1", former="2", current="3"),
        "'1', '2', '3' and none of the plan's words",
    ),
    "a new word": ("Graz", "smoking", recoded(former="ex-smoker"), "'ex-smoker' ("),
    "a word that is not used": ("Graz", "smoking", recoded(former="never"), "rows of 'former'"),
    "an absent column": ("Split", "pulse", None, "Split has no such column"),
    "an empty column": ("Brno", "pulse", lambda _: "", "100% of the rows of Brno lack it"),
    "a swapped target": ("Split", "death", recoded(no="yes", yes="no"), "'no' and 'yes' swapped?"),
    "words for numbers": ("Split", "age", lambda c: f"{c} years", "have something that is no"),
}


def told_otherwise(column, **changes):
    def change(survey):
        told = survey.columns[column].model_copy(update=changes)
        return {"columns": {**survey.columns, column: told}}

    return change


MISFITS = {
    "each column of the plan": lambda _: {"absent": ("age",)},
    "death is told by other words": told_otherwise("death", words={"yes": 40, "no": 300}),
    "sex is told by other words": told_otherwise("sex", unlisted={"male": 20}),
}


def plant(frames, site, column, change):
    frame = frames[site]
    if change is None:
        return {**frames, site: frame.drop(columns=column)}
    cells = [change(cell) if cell else cell for cell in frame[column]]
    return {**frames, site: frame.assign(**{column: cells})}


@pytest.fixture(scope="module")
def clean():
    return tables(0)


@pytest.mark.parametrize("what", PLANTED)
def test_each_planted_disagreement_is_found_and_no_other(clean, what, tmp_path):
    site, column, change, words = PLANTED[what]
    (doubt,) = merge(plan(), surveys_of(plant(clean, site, column, change), tmp_path)).doubts
    assert (doubt.column, doubt.sites) == (column, (site,))
    assert words in doubt.text
    assert doubt.text.startswith(f"{column}: ")
    assert site in doubt.text
    assert "\n" not in doubt.text


def test_a_code_for_missing_is_found(clean, tmp_path):
    frame = clean["Trieste"].copy()
    frame.loc[frame.index[:50], "sodium"] = "999"
    merged = merge(plan(), surveys_of({**clean, "Trieste": frame}, tmp_path))
    (doubt,) = merged.doubts
    assert doubt.text.startswith("sodium: 999 in 50 rows of Trieste looks like a code for missing")
    assert merged.plan.columns["sodium"].range[1] < 999


@pytest.mark.parametrize("num_rows", [60, 75])
def test_a_small_site_in_another_unit_is_found_by_its_median(clean, num_rows, tmp_path):
    frames = plant(
        {**clean, "Split": table("Split", num_rows=num_rows)}, "Split", "sodium", divided(10)
    )
    surveys = surveys_of(frames, tmp_path)
    assert list(surveys[-1].columns["sodium"].quantiles) == [50]
    (doubt,) = merge(plan(), surveys).doubts
    assert doubt.sites == ("Split",)
    assert doubt.text.startswith("sodium: the median at Split is 1")
    assert "ask Split and Graz, Trieste and Brno whether it is the same quantity" in doubt.text


def test_a_median_alone_counts_for_no_proposal(clean, tmp_path):
    """It may be in another unit and yet within a wide spread, as creatinine in mg/dl is."""
    small = {**clean, "Split": table("Split", num_rows=70)}
    draft = plan(DRAFT + "[rules]\nmax_weight = 4.0\n")  # so that no hospital is limited
    surveys = surveys_of(plant(small, "Split", "creatinine", divided(88.42, 2)), tmp_path, draft)
    with_it, without = (merge(draft, told).plan.columns for told in (surveys, surveys[:-1]))
    assert with_it["creatinine"] == without["creatinine"]


@pytest.mark.parametrize("seed", range(2))
def test_small_hospitals_in_the_plans_units_do_not_disagree(seed, tmp_path):
    frames = {name: table(name, seed, num_rows=70) for name in ("Brno", "Split")}
    frames = {**tables(seed), **frames}
    assert merge(plan(), surveys_of(frames, tmp_path)).doubts == ()


def test_if_most_are_in_another_unit_than_the_plans_they_are_told(clean, tmp_path):
    frames = clean
    for site in ("Graz", "Trieste", "Split"):
        frames = plant(frames, site, "glucose", divided(18.016))
    (doubt,) = merge(plan(), surveys_of(frames, tmp_path)).doubts
    assert set(doubt.sites) == {"Graz", "Trieste", "Split"}
    assert "factor = 18.016" in doubt.text


@pytest.mark.parametrize("seed", range(6))
def test_hospitals_that_differ_in_patients_alone_do_not_disagree(seed, tmp_path):
    assert merge(plan(), surveys_of(tables(seed), tmp_path)).doubts == ()


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    frames = plant(tables(3), "Split", "pulse", None)
    return merge(plan(), surveys_of(frames, tmp_path_factory.mktemp("merged")))


class TestProposals:
    def test_ranges_hold_nearly_all_values_and_are_no_ends(self, merged):
        rows = pd.concat(tables(3).values())
        for name in ("age", "creatinine", "crp", "sodium", "temperature"):
            low, high = merged.plan.columns[name].range
            values = pd.to_numeric(rows[name]).dropna()
            assert ((values >= low) & (values <= high)).mean() > 0.999, name
            assert not {values.min(), values.max()} & ({low, high} - {0.0}), name

    def test_centres_scales_and_the_share_are_those_of_all_rows(self, merged):
        rows = pd.concat(tables(3).values())
        assert merged.plan.target.share == pytest.approx((rows["death"] == "yes").mean(), abs=0.015)
        for name in ("age", "creatinine", "sodium", "glucose"):
            column, values = merged.plan.columns[name], pd.to_numeric(rows[name]).dropna()
            assert column.centre == pytest.approx(values.mean(), abs=0.1 * values.std()), name
            assert column.scale == pytest.approx(values.std(), rel=0.15), name

    def test_what_a_site_lacks_is_optional_and_flagged(self, merged):
        columns = merged.plan.columns
        assert columns["pulse"].optional
        assert columns["pulse"].missing == "flag"
        assert not any(column.optional for name, column in columns.items() if name != "pulse")
        assert columns["sodium"].missing == "flag"  # what some rows lack
        assert columns["age"].missing == "impute"

    def test_what_the_draft_says_stays(self, tmp_path):
        said = DRAFT.replace(
            'unit = "years"', 'unit = "years", range = [10, 130], missing = "impute"'
        )
        of = plan(said + '[learner]\nname = "network"\n')
        merged = merge(of, surveys_of({"Graz": table("Graz")}, tmp_path, of)).plan
        assert merged.columns["age"].range == (10, 130)
        assert merged.learner.name == "network"

    def test_the_text_reads_back_with_a_comment_above_each_column(self, merged):
        text = dump(merged.plan, merged.notes)
        assert Plan.loads(text) == merged.plan
        assert (merged.plan.learner.name, merged.plan.gate) == (LEARNER, GATE)
        assert "# pulse: by 3 sites, 4,300 rows\n# ask: pulse: Split has no such column" in text

    def test_a_doubted_unit_moves_no_proposal(self, tmp_path, clean):
        frames = plant(clean, "Split", "glucose", divided(18.016))
        told = [merge(plan(), surveys_of(f, tmp_path)).plan for f in (clean, frames)]
        assert told[1].columns["glucose"].centre == pytest.approx(
            told[0].columns["glucose"].centre, rel=0.03
        )

    def test_a_number_to_predict_has_centre_and_scale(self, tmp_path):
        number = DRAFT.replace(
            'task = "classification"\nclasses = ["no", "yes"]', 'task = "regression"'
        )
        frames = {
            name: frame.assign(death=[str(10 + k % 7) for k in range(len(frame))])
            for name, frame in tables(0).items()
        }
        of = plan(number)
        target = merge(of, surveys_of(frames, tmp_path, of)).plan.target
        assert target.centre == pytest.approx(13, abs=0.5)
        assert target.scale == pytest.approx(2, rel=0.3)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return survey_of(table("Split"), tmp_path_factory.mktemp("split"), "Split")


class TestRefusals:
    def test_another_draft_a_site_twice_or_a_key_under_two_names(self, split, tmp_path):
        key = SigningKey.generate()
        pair = [survey_of(table("Split"), tmp_path, name, key=key) for name in ("Split", "Brno")]
        capitals = survey_of(table("Split"), tmp_path, "SPLIT")
        other = plan(DRAFT.replace('"years"', '"months"'))
        for of, surveys, named in (
            (other, [split], "Split is of another draft"),
            (plan(), [split, split], "two surveys of Split"),
            (plan(), [split, capitals], "two surveys of SPLIT"),
            (plan(), pair, "Split and Brno are signed with one key"),
        ):
            with pytest.raises(StudyError, match=named):
                merge(of, surveys)

    @pytest.mark.parametrize("words", MISFITS)
    def test_what_does_not_fit_the_draft(self, split, words):
        odd = split.model_copy(update=MISFITS[words](split))
        with pytest.raises(StudyError, match=words) as refused:
            merge(plan(), [odd])
        assert str(refused.value).startswith("the survey of Split does not fit the draft: ")
