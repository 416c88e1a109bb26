"""Table 1: what sites told, summed up, and what of it may be public."""

import numpy as np
import pandas as pd
import pytest

from predbayes.errors import StudyError
from predbayes_study.extras.survey.merge import merge
from predbayes_study.extras.survey.surveyed import _sum, require_fitting, table_one
from predbayes_study.extras.survey.tableone import (
    Cell,
    Count,
    Group,
    Line,
    Middle,
    TableOne,
    in_public,
)
from predbayes_study.extras.survey.tableone_page import table_blocks
from tests.study.invented import DRAFT, plan, survey_of, table, tables


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tables of four hospitals, the smallest of which lacks the pulse, their surveys and plan."""
    folder, frames = tmp_path_factory.mktemp("told"), tables(0)
    frames["Split"] = frames["Split"].drop(columns="pulse")
    surveys = [survey_of(frame, folder, name) for name, frame in frames.items()]
    merged = merge(plan(), surveys).plan
    return frames, surveys, table_one(merged, surveys, num_sites=5)


def cell(found: TableOne, name: str, group: Group | None = None) -> Cell | None:
    index = [line.name for line in found.lines].index(name)
    return (group or found.total).cells[index]


class TestTotal:
    def test_rows_are_the_sum_of_what_sites_told(self, made):
        _, surveys, found = made
        assert found.total.rows == sum(survey.rows for survey in surveys) == 4650
        assert (found.total.num_sites, found.num_sites) == (4, 5)

    def test_quartiles_are_those_of_all_rows_together(self, made):
        frames, _, found = made
        for name in ("age", "creatinine", "crp", "temperature"):
            values = pd.to_numeric(pd.concat(f[name] for f in frames.values()), errors="coerce")
            theirs = np.nanquantile(values, (0.25, 0.5, 0.75))
            middle = cell(found, name).middle
            ours = (middle.low, middle.median, middle.high)
            assert ours == pytest.approx(theirs, abs=0.1 * values.std()), name
            assert middle.sites == 4

    def test_counts_are_of_those_who_told_and_never_too_high(self, made):
        frames, _, found = made
        everybody = pd.concat(frames.values())
        count = cell(found, "sex").words[0]
        real = int((everybody["sex"] == "female").sum())
        assert real - 4 * 5 < count.rows <= real
        assert count.sites == 4

    def test_rows_at_a_site_without_the_column_lack_it(self, made):
        frames, _, found = made
        missing = cell(found, "pulse").missing
        gone = sum(int((frames[n]["pulse"] == "").sum()) for n in ("Graz", "Trieste", "Brno"))
        assert missing.rows == pytest.approx(350 + gone, abs=15)
        (split,) = [site for site in found.sites if site.name == "Split"]
        assert cell(found, "pulse", split) is None


def told(*counts: Count | None, missing: Count | None = None, sites: int = 4) -> TableOne:
    """A table of one column of words, with no other words."""
    line = Line(name="kind", words=tuple("abcdef"[: len(counts)]))
    words = (*counts, None)
    whole = Group(
        name="All sites", rows=1000, num_sites=sites, cells=(Cell(missing=missing, words=words),)
    )
    alone = Group(name="One", rows=250, cells=(Cell(missing=None, words=words),))
    return TableOne(step=5, num_sites=sites, lines=(line,), total=whole, sites=(alone,) * sites)


def by_site(*told: list[int | None]) -> TableOne:
    """A table of one column of words, by what sites of 1,000 rows told of each."""
    line = Line(name="kind", words=tuple("abcdef"[: len(told[0])]))
    words = [(*(None if rows is None else Count(rows=rows) for rows in one), None) for one in told]
    sites = tuple(
        Group(name=f"Site {k}", rows=1000, cells=(Cell(missing=None, words=one),))
        for k, one in enumerate(words)
    )
    sums = tuple(_sum(counts) for counts in zip(*words, strict=True))
    whole = Group(
        name="All sites",
        rows=1000 * len(told),
        num_sites=len(told),
        cells=(Cell(missing=None, words=sums),),
    )
    return TableOne(step=5, num_sites=len(told), lines=(line,), total=whole, sites=sites)


class TestPublic:
    def test_it_has_no_single_site(self, made):
        shown = in_public(made[2], 3)
        assert shown.sites == ()
        assert all(site not in shown.model_dump_json() for site in ("Graz", "Split"))

    def test_of_few_sites_there_is_none(self):
        assert in_public(told(Count(rows=500), sites=2), 3) is None

    def test_a_count_of_few_sites_is_left_out_and_the_smallest_other_with_it(self):
        """All counts together are the rows, so one that is left out alone would follow."""
        few, many, least = (
            Count(rows=40, sites=2),
            Count(rows=600, sites=4),
            Count(rows=90, sites=4),
        )
        (shown,) = in_public(told(few, many, least, Count(rows=200, sites=3)), 3).total.cells
        assert [count and count.rows for count in shown.words] == [None, 600, None, 200, None]

    def test_words_of_one_site_alone_do_not_add_up_to_what_the_rest_is(self):
        """Two words that one site has are together the rows less the others."""
        found = by_site([300, 200, 100, 395], [500, 500, None, None], [490, 510, None, None])
        (shown,) = in_public(found, 3).total.cells
        assert [count and count.rows for count in shown.words] == [1290, None, None, None, None]

    def test_nor_do_rows_of_which_one_site_did_not_tell(self):
        found = by_site([500, None, None], *[[600, 400, None]] * 3)
        (shown,) = in_public(found, 3).total.cells
        assert [count and count.rows for count in shown.words] == [2300, None, None, None]

    def test_all_words_are_left_out_if_nothing_else_helps(self):
        (shown,) = in_public(by_site([995, 5], [1000, None], [1000, None]), 3).total.cells
        assert shown.words == (None, None, None)

    def test_words_that_all_sites_told_are_shown(self):
        found = by_site([500, 495], [600, 400], [300, 700])
        (shown,) = in_public(found, 3).total.cells
        assert [count and count.rows for count in shown.words] == [1400, 1595, None]

    def test_missing_rows_are_one_of_the_counts(self):
        many, few = Count(rows=400, sites=4), Count(rows=40, sites=1)
        (shown,) = in_public(told(many, Count(rows=500, sites=4), missing=few), 3).total.cells
        assert shown.missing is None
        assert [count and count.rows for count in shown.words] == [None, 500, None]

    def test_quartiles_of_few_sites_are_left_out(self):
        middle = Middle(low=1, median=2, high=3, sites=2)
        whole = Group(name="All", rows=9, num_sites=3, cells=(Cell(missing=None, middle=middle),))
        found = TableOne(
            step=5, num_sites=3, lines=(Line(name="x"),), total=whole, sites=(whole,) * 3
        )
        (shown,) = in_public(found, 3).total.cells
        assert shown.middle is None


class TestRows:
    def test_a_share_is_a_bound_where_a_site_did_not_tell_its_part(self):
        (block,) = table_blocks(told(Count(rows=500, sites=4), Count(rows=200, sites=3)))
        figures = {row.name: row.figures[0] for row in block.rows if row.figures}
        assert figures == {"a": "500 (50 %)", "b": "200 (≥ 20 %)"}

    def test_a_column_that_a_site_lacks_is_not_recorded(self, made):
        (block,) = table_blocks(made[2])
        at = [group.name for group in block.groups].index("Split")
        names = [row.name for row in block.rows]
        missing = block.rows[names.index("pulse, 1/min") + 1]
        assert (missing.name, missing.figures[at]) == ("missing", "not recorded")


class TestFitting:
    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("age = {", "years = {", "age, which is no column of the plan"),
            ('unit = "years"', 'unit = "months"', "age in another unit"),
            ('"female", "male"', '"f", "m"', "words of sex"),
            (
                'pulse = { type = "number", unit = "1/min" }',
                'pulse = { type = "category", categories = ["a", "b"] }',
                "pulse as a number",
            ),
        ],
    )
    def test_a_survey_of_other_columns_is_refused(self, tmp_path, old, new, said):
        survey = survey_of(table("Brno"), tmp_path, "Brno")
        assert DRAFT.count(old) == 1
        with pytest.raises(StudyError, match=said):
            require_fitting(plan(DRAFT.replace(old, new)), survey)
