from __future__ import annotations

import pytest

from predbayes.errors import DataError
from predbayes_study.tables.reading import Remedies, read_csv

REMEDIES = Remedies("re-encode", "has other marks: split anew", "; look closer")


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "rows.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(("blank_rows", "lines"), [(True, [2, 4, 5]), (False, [2, 5])])
def test_a_line_of_delimiters_is_a_row_where_rows_may_be_blank(write, blank_rows, lines):
    """A reference row may lack every value; a spreadsheet leaves such lines behind."""
    path = write("a;b\n1;2\n\n ; \n;4\n")
    assert list(read_csv(path, REMEDIES, delimiter=";", blank_rows=blank_rows).index) == lines


@pytest.mark.parametrize("encoding", ["UTF-8", "utf8", "cp1252", "utf-16"])
def test_the_first_name_has_no_byte_order_mark(write, encoding):
    marked = "utf-8-sig" if encoding in ("UTF-8", "utf8") else encoding
    frame = read_csv(write("Größe,b\n1,2\n".encode(marked)), REMEDIES, encoding=encoding)
    assert list(frame.columns) == ["Größe", "b"]


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("a,b\nä,1\n".encode("latin-1"), "re-encode"),
        (b"a,b\n" + b"1,2\n" * 50_000 + b"\xe4,2\n", "re-encode"),
        ('a;b\n"1";2\n', "split anew"),  # and not a stray quotation mark
        ("a|b\n1|2\n", "split anew"),
        ("a,b\n1\n", "look closer"),
        ("a,b\n\0,1\n", "is not text"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(write, content, remedy):
    with pytest.raises(DataError, match=rf"rows\.csv.*{remedy}"):
        read_csv(write(content), REMEDIES)
