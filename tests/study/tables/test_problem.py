from __future__ import annotations

import pytest

from predbayes.study.tables.problem import Kind, Problem, errors_of, warning
from predbayes.study.tables.problem import error as error_of


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_one_line_with_column_lines_and_detail(kind):
    text = str(Problem(kind, "age", (4, 17), "{detail}"))  # braces of names stay as they are
    assert text.startswith("age: 2 values ")
    assert text.endswith(" (lines 4, 17)")
    assert text.count("{detail}") == (kind in (Kind.MISNAMED, Kind.OUTSIDE, Kind.SIZE))


def test_errors_are_told_from_warnings_and_values_are_not_shown():
    wrong, odd = error_of("wrong", ["cell"]), warning("odd")
    assert errors_of([odd, wrong]) == (wrong,)
    assert "cell" not in repr(wrong)
