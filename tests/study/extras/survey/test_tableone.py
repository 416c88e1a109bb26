"""Table 1: what sites told, summed up, and what of it may be public."""

import numpy as np
import pandas as pd
import pytest

from predbayes_study.extras.survey.merge import merge
from predbayes_study.extras.survey.surveyfile import Survey, misfit
from predbayes_study.extras.survey.tableone import (
    Cell,
    Count,
    Group,
    Line,
    Middle,
    TableOne,
    in_public,
    summed,
    table_blocks,
    table_one,
)
from tests.study.invented import DRAFT, plan, survey_of, table, tables


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tables of four hospitals, the smallest of which lacks the pulse, and their Table 1."""
    folder, frames = tmp_path_factory.mktemp("told"), tables(0)
    frames["Split"] = frames["Split"].drop(columns="pulse")
    surveys = [survey_of(frame, folder, name) for name, frame in frames.items()]
    merged = merge(plan(), surveys).plan
    rules = merged.rules.model_copy(update={"max_weight": 10.0})  # so that every row counts
    return frames, table_one(merged.model_copy(update={"rules": rules}), surveys, num_sites=5)


def cell(found, name, group=None):
    index = [line.name for line in found.lines].index(name)
    return (group or found.total).cells[index]


def test_the_total_is_of_all_rows_and_never_too_high(made):
    frames, found = made
    assert (found.total.rows, found.total.num_sites, found.num_sites) == (4650, 4, 5)
    rows = pd.concat(frames.values())
    for name in ("age", "creatinine", "crp", "temperature"):
        values = pd.to_numeric(rows[name], errors="coerce")
        theirs = np.nanquantile(values, (0.25, 0.5, 0.75))
        middle = cell(found, name).middle
        ours = (middle.low, middle.median, middle.high)
        assert ours == pytest.approx(theirs, abs=0.1 * values.std()), name
        assert middle.sites == 4
    count, real = cell(found, "sex").words[0], int((rows["sex"] == "female").sum())
    assert real - 4 * 5 < count.rows <= real
    assert count.sites == 4


def test_rows_at_a_site_without_the_column_lack_it(made):
    frames, found = made
    gone = sum(int((frames[n]["pulse"] == "").sum()) for n in ("Graz", "Trieste", "Brno"))
    assert cell(found, "pulse").missing.rows == pytest.approx(350 + gone, abs=15)
    (split,) = [site for site in found.sites if site.name == "Split"]
    assert cell(found, "pulse", split) is None
    (block,) = table_blocks(found)
    names = [row.name for row in block.rows]
    missing = block.rows[names.index("pulse, 1/min") + 1]
    assert (missing.name, missing.figures[block.groups.index(split)]) == (
        "missing",
        "not recorded",
    )


def test_no_figure_is_made_by_a_site_that_claims_many_rows(tmp_path):
    """It counts for three times the median site, in every cell of the total and of the public."""
    surveys = [survey_of(table(name), tmp_path, name) for name in ("Graz", "Brno", "Split")]
    last = survey_of(table("Trieste").drop(columns="pulse"), tmp_path, "Trieste")
    huge = 10**9

    def claimed(times):
        """All its rows have the first word and no number, so many times as it has."""
        rows, columns = last.rows * times, {}
        for name, one in last.columns.items():
            if one.type == "category":
                words = {word: rows if k == 0 else 0 for k, word in enumerate(one.words)}
                change = {"words": words, "unlisted": {}, "other": None, "missing": None}
            else:
                change = {"missing": rows, "unreadable": None, "codes": {}, "quantiles": {}}
            columns[name] = one.model_copy(update=change)
        told = last.model_copy(update={"rows": rows, "columns": columns, "moments": None})
        return Survey.model_validate_json(told.model_dump_json())

    cap = 3 * 700  # the median site has 700 rows
    found, most = (
        table_one(plan(), [*surveys, claimed(times)], num_sites=4)
        for times in (huge // last.rows, cap // last.rows + 1)
    )
    assert found.total == most.total
    assert found.total.rows == 2100 + 700 + 350 + cap
    shown = in_public(found, 3)
    assert shown is not None
    for one in (*found.total.cells, *shown.total.cells):
        for count in () if one is None else one.counts.values():
            assert count.rows <= found.total.rows
    assert found.sites[-1].rows > 10**8  # its own column says what it told


def of_words(whole, alone, rows, sites):
    """A table of one column of words, with no other words."""
    line = Line(name="kind", words=tuple("abcdef"[: len(whole.words) - 1]))
    total = Group(name="All sites", rows=rows, num_sites=len(sites), cells=(whole,))
    groups = tuple(Group(name=f"Site {k}", rows=n, cells=(alone[k],)) for k, n in enumerate(sites))
    return TableOne(step=5, num_sites=len(sites), lines=(line,), total=total, sites=groups)


def told(*counts, missing=None, sites=4):
    words = tuple(None if one is None else Count(rows=one[0], sites=one[1]) for one in counts)
    whole = Cell(missing=missing, words=(*words, None))
    alone = Cell(missing=None, words=whole.words)
    return of_words(whole, [alone] * sites, 1000, [250] * sites)


def by_site(*told):
    """By what sites of 1,000 rows told of each word."""
    words = [(*(None if n is None else Count(rows=n) for n in one), None) for one in told]
    whole = Cell(missing=None, words=tuple(map(summed, zip(*words, strict=True))))
    cells = [Cell(missing=None, words=one) for one in words]
    return of_words(whole, cells, 1000 * len(told), [1000] * len(told))


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        # All counts together are the rows, so one that is left out alone would follow.
        (told((40, 2), (600, 4), (90, 4), (200, 3)), [None, 600, None, 200, None]),
        # Two words that one site has are together the rows less the others.
        (
            by_site([300, 200, 100, 395], [500, 500, None, None], [490, 510, None, None]),
            [1290, None, None, None, None],
        ),
        # So are rows of which one site did not tell.
        (by_site([500, None, None], *[[600, 400, None]] * 3), [2300, None, None, None]),
        (by_site([995, 5], [1000, None], [1000, None]), [None, None, None]),
        (by_site([500, 495], [600, 400], [300, 700]), [1400, 1595, None]),
        # Missing rows are one of the counts.
        (told((400, 4), (500, 4), missing=Count(rows=40, sites=1)), [None, 500, None]),
    ],
)
def test_in_public_no_count_is_of_few_sites_or_follows_from_others(found, shown):
    (public,) = in_public(found, 3).total.cells
    assert [count and count.rows for count in public.words] == shown
    assert public.missing is None


def test_in_public_there_is_no_single_site_and_no_quartile_of_few(made):
    shown = in_public(made[1], 3)
    assert shown.sites == ()
    assert all(site not in shown.model_dump_json() for site in ("Graz", "Split"))
    assert in_public(told((500, 2), sites=2), 3) is None
    middle = Cell(missing=None, middle=Middle(low=1, median=2, high=3, sites=2))
    whole = Group(name="All", rows=9, num_sites=3, cells=(middle,))
    found = TableOne(step=5, num_sites=3, lines=(Line(name="x"),), total=whole, sites=(whole,) * 3)
    (public,) = in_public(found, 3).total.cells
    assert public.middle is None


def test_a_share_is_a_bound_where_a_site_did_not_tell_its_part():
    (block,) = table_blocks(told((500, 4), (200, 3)))
    figures = {row.name: row.figures[0] for row in block.rows if row.figures}
    assert figures == {"a": "500 (50 %)", "b": "200 (≥ 20 %)"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("age = {", "years = {", "age"),
        ('unit = "years"', 'unit = "months"', "age"),
        ('"female", "male"', '"f", "m"', "sex"),
        (
            'pulse = { type = "number", unit = "1/min" }',
            'pulse = { type = "category", categories = ["a", "b"] }',
            "pulse",
        ),
    ],
)
def test_a_survey_of_other_columns_does_not_fit(tmp_path, old, new, said):
    survey = survey_of(table("Brno"), tmp_path, "Brno")
    assert DRAFT.count(old) == 1
    assert said in misfit(plan(DRAFT.replace(old, new)), survey)
    assert misfit(plan(), survey) == ""
