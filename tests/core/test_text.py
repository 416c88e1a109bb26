"""Text that came from elsewhere is refused or shown in escapes."""

import logging
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import TextError
from predbayes.text import OneLine, from_cell, printable, require_printable, to_cell

UNSEEN = {
    "control": "\x1b",
    "line break": "\n",
    "carriage return": "\r",
    "delete": "\x7f",
    "C1": "\x9b",
    "right to left": "\u202e",
    "isolate": "\u2066",
    "zero width": "\u200b",
    "joiner": "\u200d",
    "byte order mark": "\ufeff",
    "soft hyphen": "\u00ad",
    "grapheme joiner": "\u034f",
    "Hangul filler": "\u3164",
    "variation selector": "\ufe0f",
    "tag": "\U000e0041",
    "surrogate": "\ud800",
    "private": "\ue000",
    "unassigned": "\u0378",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
}


@pytest.mark.parametrize("character", UNSEEN.values(), ids=UNSEEN)
class TestUnseen:
    def test_is_refused_with_its_code(self, character):
        with pytest.raises(TextError, match=f"has U\\+{ord(character):04X}"):
            require_printable(f"a{character}b")

    def test_is_shown_as_an_escape(self, character):
        shown = printable(f"a{character}b")
        assert shown.isascii()
        assert shown == f"a{character.encode('unicode_escape').decode()}b"

    def test_may_be_allowed_where_it_is_meant(self, character):
        assert require_printable(f"a{character}b", besides=character)


def test_other_normal_forms_are_refused():
    with pytest.raises(TextError, match="normal form C"):
        require_printable(unicodedata.normalize("NFD", "Zürich"))


@pytest.mark.parametrize("text", ["", "Zürich", "µmol/l", "Αθήνα", "京都", "दिल्ली", "10 %", "×10⁹"])
def test_words_of_every_script_pass(text):
    assert require_printable(text) == printable(text) == text


@given(st.text())
def test_what_is_shown_can_be_shown_and_what_is_taken_is_shown_as_it_is(text):
    shown = printable(text, None)
    assert printable(shown, None) == shown
    assert "\n" not in shown
    assert "\x1b" not in shown
    try:
        require_printable(text)
    except TextError:
        return
    assert shown == text


def test_a_log_record_is_one_line():
    record = logging.LogRecord("x", 20, "f", 1, "%s said", ("Beta\nGamma: in\x1b[8m",), None)
    assert OneLine().format(record) == r"Beta\nGamma: in\x1b[8m said"


@given(st.text(alphabet="=+-@;|'\t\n a1.＝"))
def test_a_cell_is_no_formula_and_can_be_read_back(text):
    cell = to_cell(text)
    assert from_cell(cell) == text
    for part in re.split(r"[;|\t\r\n]", cell):
        assert not part.startswith(tuple("=+-@＝")) or is_number(cell)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_stay_as_they_are(number):
    for text in (repr(number), f"{number:+}", f"{number:.6g}"):
        assert to_cell(text) == from_cell(text) == text


def is_number(text):
    try:
        return bool(float(text)) or True
    except ValueError:
        return False
