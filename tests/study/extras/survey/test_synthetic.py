"""Reference rows drawn from surveys: like the sites' rows in what was told, and nobody's."""

import pandas as pd
import pytest

from predbayes_study.extras.survey.merge import merge
from predbayes_study.extras.survey.synthetic import draw_rows
from predbayes_study.plan.schema import Number
from tests.study.invented import DRAFT, plan, survey_of, table, tables

NUM = 4000


def numbers(frame, name):
    return pd.to_numeric(frame[name], errors="coerce")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Tables of four hospitals, one of which lacks a column, their surveys, and the plan."""
    folder, frames = tmp_path_factory.mktemp("told"), tables(0)
    frames["Split"] = frames["Split"].drop(columns="pulse")
    draft = plan(DRAFT + "[rules]\nmax_weight = 4.0\n")  # so that no hospital is limited
    surveys = [survey_of(frame, folder, name, of=draft) for name, frame in frames.items()]
    return pd.concat(frames.values()), surveys, merge(draft, surveys).plan


@pytest.fixture(scope="module")
def drawn(told):
    _, surveys, merged = told
    return draw_rows(merged, surveys, NUM, seed=0)


class TestRows:
    def test_columns_are_like_those_of_all_sites_together(self, told, drawn):
        real, _, merged = told
        for name, column in merged.columns.items():
            if isinstance(column, Number):
                ours, theirs = numbers(drawn, name), numbers(real, name)
                assert ours.median() == pytest.approx(theirs.median(), abs=0.15 * theirs.std()), (
                    name
                )
                assert ours.std() == pytest.approx(theirs.std(), rel=0.15), name
            else:
                shares = (real[name].value_counts() / len(real)).drop("", errors="ignore")
                for word, share in shares.items():
                    assert (drawn[name] == word).mean() == pytest.approx(share, abs=0.03), word

    def test_values_are_in_range_and_written_as_the_sites_write_them(self, told, drawn):
        for name, column in told[2].columns.items():
            if isinstance(column, Number):
                values = numbers(drawn, name).dropna()
                assert values.between(*column.range).all()
        assert drawn["age"].str.fullmatch(r"\d+").all()
        assert drawn["temperature"][drawn["temperature"] != ""].str.fullmatch(r"\d+\.\d").all()

    def test_columns_go_together_as_they_do_at_the_sites(self, told, drawn):
        real = told[0]
        for one, other in [("age", "creatinine"), ("creatinine", "haemoglobin"), ("crp", "age")]:
            ours, theirs = (
                numbers(frame, one).rank().corr(numbers(frame, other).rank())
                for frame in (drawn, real)
            )
            assert ours == pytest.approx(theirs, abs=0.08), (one, other)
        gap = [
            numbers(f, "glucose")[f["diabetes"] == "yes"].mean() - numbers(f, "glucose").mean()
            for f in (drawn, real)
        ]
        assert gap[0] == pytest.approx(gap[1], rel=0.3)

    def test_values_are_missing_as_often_as_at_the_sites(self, told, drawn):
        real = told[0].fillna("")
        for name in ("sodium", "pulse", "smoking", "age"):
            assert (drawn[name] == "").mean() == pytest.approx((real[name] == "").mean(), abs=0.015)

    def test_and_together_where_they_are_missing_together(self, tmp_path):
        frame = table("Graz")
        for name in ("sodium", "crp"):
            frame.loc[frame.index[:300], name] = ""
        surveys = [survey_of(frame, tmp_path)]
        rows = draw_rows(merge(plan(), surveys).plan, surveys, NUM, 0)
        gone = [(rows[name] == "").to_numpy() for name in ("sodium", "crp")]
        assert (gone[0] & gone[1]).mean() > 3 * gone[0].mean() * gone[1].mean()

    def test_none_is_a_row_of_a_site(self, told):
        real, surveys, merged = told
        for seed in range(2):
            rows = draw_rows(merged, surveys, 2000, seed)
            assert rows.merge(real.fillna(""), on=list(merged.columns)).empty

    def test_a_seed_gives_the_same_rows_in_whatever_order_surveys_come(self, told, drawn):
        _, surveys, merged = told
        assert draw_rows(merged, surveys[::-1], NUM, 0).equals(drawn)
        assert not draw_rows(merged, surveys, NUM, 1).equals(drawn)

    def test_without_sums_columns_are_drawn_apart(self, told):
        _, surveys, merged = told
        bare = [survey.model_copy(update={"moments": None}) for survey in surveys]
        rows = draw_rows(merged, bare, NUM, 0)
        assert abs(numbers(rows, "creatinine").corr(numbers(rows, "haemoglobin"))) < 0.08

    def test_a_site_in_another_unit_is_drawn_like_others(self, tmp_path):
        frames = tables(1)
        cells = [f"{float(cell) / 18.016:.1f}" for cell in frames["Split"]["glucose"]]
        frames["Split"] = frames["Split"].assign(glucose=cells)
        surveys = [survey_of(frame, tmp_path, name) for name, frame in frames.items()]
        rows = draw_rows(merge(plan(), surveys).plan, surveys, 1000, 0)
        assert numbers(rows, "glucose").min() > 30
