"""Names, words and units that hospitals use for the same thing, in a few languages.

What `suggest` knows beforehand: synonyms of columns, words for sex and for yes and no, codes for
"missing", and factors between units. They are in `vocabulary.toml`, where a language or a unit is
one more line. Nothing here decides anything: a table's values have to agree, and a person reads the
draft.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

_BRACKETS = re.compile(r"\[([^\]]*)\]|\(([^)]*)\)")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})
_LONG = 4  # letters from which a synonym may be part of a longer name

with resources.files(__package__).joinpath("vocabulary.toml").open("rb") as _file:
    _KNOWN = tomllib.load(_file)

CONCEPTS = {concept: tuple(names.split()) for concept, names in _KNOWN["concepts"].items()}
_MEANING: dict[str, str] = {
    word: m for m, words in _KNOWN["meanings"].items() for word in words.split()
}
_SPELLINGS: dict[str, str] = {
    word: unit for unit, words in _KNOWN["units"].items() for word in words.split()
}

MISSING_WORDS = frozenset({*_KNOWN["missing"]["words"].split(), *_KNOWN["missing"]["phrases"]})
"""Words for "missing", in small letters."""

NUMBER_CODES = frozenset(
    sign * float(digit * length)
    for digit in "789"
    for length in (1, 2, 3, 4, 5)
    for sign in (1, -1)
) | {0.0, -1.0, 98.0, 998.0, 9998.0}
"""Numbers that often stand for "missing" where they make no sense as values."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The value in ``to`` is value * factor + offset."""

    concept: str  # what is measured; empty if the units alone determine the factor
    unit: str
    to: str
    factor: float
    offset: float = 0.0

    def inverse(self) -> Conversion:
        """Return the way back."""
        return Conversion(
            self.concept, self.to, self.unit, 1 / self.factor, -self.offset / self.factor
        )


_FORWARD = tuple(
    Conversion(concept, way["unit"], way["to"], way["factor"], way.get("offset", 0.0))
    for way in _KNOWN["conversions"]
    for concept in way.get("concepts", [""])
)
CONVERSIONS = (*_FORWARD, *(conversion.inverse() for conversion in _FORWARD))
UNITS = frozenset(conversion.unit for conversion in CONVERSIONS)


@cache
def normal(text: str) -> str:
    """Keep letters and digits alone, small, without accents; what is in brackets is left out.

    Examples:
        >>> normal("Größe (cm)"), normal("RR_sys."), normal("Numéro")
        ('groesse', 'rrsys', 'numero')
    """
    small = _BRACKETS.sub("", text).casefold().translate(_UMLAUTS)
    ascii_only = unicodedata.normalize("NFKD", small).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", ascii_only)


def normal_unit(text: str) -> str:
    """Return a unit in one spelling.

    Examples:
        >>> normal_unit("µmol / L"), normal_unit("Jahre"), normal_unit("°C")
        ('umol/l', 'years', 'c')
    """
    unit = re.sub(r"\s", "", text).lower().replace("µ", "u").replace("μ", "u")
    return _SPELLINGS.get(unit, unit)


def unit_in(name: str) -> str:
    """Return the unit that a column's name has in brackets, if any.

    Examples:
        >>> unit_in("Chol [mmol/l]"), unit_in("age")
        ('mmol/l', '')
    """
    brackets = _BRACKETS.search(name)
    return normal_unit(brackets.group(1) or brackets.group(2) or "") if brackets else ""


@cache
def concepts_of(name: str) -> frozenset[str]:
    """Return what a column may be about, by its name; an exact synonym rules out all others."""
    joined = normal(name)
    exact = frozenset(c for c, names in CONCEPTS.items() if joined in names)
    if exact:
        return exact
    parts = {normal(part) for part in re.split(r"[\W_]+", _BRACKETS.sub("", name))}
    within = {
        concept: max((len(n) for n in names if n in parts or _is_part(n, joined)), default=0)
        for concept, names in CONCEPTS.items()
    }
    longest = max(within.values())
    return frozenset(c for c, length in within.items() if length == longest and length)


def _is_part(name: str, joined: str) -> bool:
    return len(name) >= _LONG and name in joined


def name_likeness(ours: str, theirs: str) -> float:
    """Return how alike two names of columns are, from 0 to 1; 1 is the same but for spelling."""
    a, b = normal(ours), normal(theirs)
    if not a or not b:
        return 0.0
    if a == b:
        return 1.0
    if concepts_of(ours) & concepts_of(theirs):
        return 0.9
    likeness = difflib.SequenceMatcher(None, a, b).ratio()
    if min(len(a), len(b)) >= _LONG and (a in b or b in a):
        likeness = max(likeness, 0.8)
    return 0.85 * likeness


def meaning_of(word: str) -> str:
    """Return male, female, yes, no, or nothing."""
    # In full: a lone + or - has no letters.
    return {"+": "yes"}.get(word.strip(), _MEANING.get(normal(word), ""))


def conversions(concepts: Iterable[str], unit: str, to: str) -> list[Conversion]:
    """Return ways to a unit; a unit that nobody stated may be any."""
    known = set(concepts)
    return [
        one
        for one in CONVERSIONS
        if (one.concept in known or (not one.concept and to))
        and (not unit or one.unit == unit)
        and (not to or one.to == to)
    ]
