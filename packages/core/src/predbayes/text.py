r"""Text that came from a file or over a wire: which is taken, and how it is shown.

A terminal obeys some characters, others turn lines around or cannot be seen, and several spellings
look alike. So whoever writes a name could show another one. `require_printable` refuses such text
where it is read; `printable` writes it in escapes where it is shown, whether it was checked or not.

A spreadsheet runs a cell that begins like a formula. `to_cell` puts an apostrophe before it, and
`from_cell` takes that away again. Numbers stay as they are.

A notebook shows HTML. `html_table` escapes every cell of a table.
"""

from __future__ import annotations

import html
import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence

from predbayes.errors import TextError

_REFUSED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control, format (zero-width and bidirectional), surrogate, private, unassigned, separators."""

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks of other categories that Unicode calls default ignorable."""

_MAX_SHOWN = 100

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# Elsewhere columns are separated by one of the marks in the middle, and a cell begins there, too.
_FORMULA = re.compile(r"(^|[;\t|\r\n])(?='*[=+\-@＝＋－＠\t\r\n])")
_GUARDED = re.compile(r"(^|[;\t|\r\n])'(?='*[=+\-@＝＋－＠\t\r\n])")


def require_printable(text: str, besides: str = "") -> str:
    r"""Return a text that shows what it is; refuse any other.

    Args:
        text: From a file or over a wire.
        besides: Characters that it may also have, such as a line break.

    Examples:
        >>> require_printable("Zürich, 5 µmol/l")
        'Zürich, 5 µmol/l'
        >>> require_printable("two\nlines", besides="\n")
        'two\nlines'
        >>> require_printable("\x1b[8m")
        Traceback (most recent call last):
        predbayes.errors.TextError: has U+001B, which cannot be seen or moves other text
    """
    if text.isascii() and text.isprintable():
        return text
    for character in text:
        if character not in besides and not _is_seen(character):
            code = f"U+{ord(character):04X}"
            raise TextError(f"has {code}, which cannot be seen or moves other text")
    if not unicodedata.is_normalized("NFC", text):
        raise TextError("is not in Unicode's normal form C; type it anew")
    return text


def printable(text: str, most: int | None = _MAX_SHOWN) -> str:
    r"""Return a text for one line of a message, with escapes for what `require_printable` refuses.

    Args:
        text: Whatever it is.
        most: Characters of it that are shown; None is all.

    Examples:
        >>> print(printable("a\nb\x1b[31m"))
        a\nb\x1b[31m
        >>> printable("abcdef", most=3)
        'abc…'
    """
    if most is not None and len(text) > most:
        return f"{printable(text[:most], None)}…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_seen(c) else c.encode("unicode_escape").decode() for c in text)


def to_cell(text: str) -> str:
    """Return a text as a cell of a CSV file that no spreadsheet takes for a formula.

    Examples:
        >>> to_cell("=SUM(A1)"), to_cell("-1.5e3"), to_cell("a;@x"), to_cell("blue")
        ("'=SUM(A1)", '-1.5e3', "a;'@x", 'blue')
    """
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub(r"\1'", text)


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet would run a text. Signs alone, such as `-` or `++`, do nothing.

    Examples:
        >>> is_formula("=SUM(A1)"), is_formula("-"), is_formula("-1"), is_formula("blue")
        (True, False, False, False)
    """
    return to_cell(text) != text and any(character.isalnum() for character in text)


def from_cell(cell: str) -> str:
    """Return the text of a cell that `to_cell` made."""
    return _GUARDED.sub(r"\1", cell) if "'" in cell else cell


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return a table for a notebook; the first cell of a row names it, and every cell is escaped.

    Examples:
        >>> html_table([("<b>", "3")]).count("<b>")
        0
    """
    left = "style='text-align:left'"
    named = "".join(f"<th scope='col' {left}>{_escaped(name)}</th>" for name in head)
    lines = (
        f"<tr><th scope='row' {left}>{_escaped(first)}</th>"
        + "".join(f"<td {left}>{_escaped(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return f"<table>{f'<tr>{named}</tr>' if named else ''}{''.join(lines)}</table>"


def html_lines(lines: Iterable[str]) -> str:
    """Return paragraphs for a notebook, escaped."""
    return "".join(f"<p>{_escaped(line)}</p>" for line in lines)


def _escaped(text: str) -> str:
    return html.escape(printable(text, None))


class OneLine(logging.Formatter):
    """The message of a log record in one line that holds nothing raw."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, in escapes where it must be."""
        return printable(super().format(record), None)


def _is_seen(character: str) -> bool:
    return unicodedata.category(character) not in _REFUSED and not _INVISIBLE.match(character)
