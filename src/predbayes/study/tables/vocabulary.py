"""Names, words and units that hospitals use for the same thing, in a few languages.

What `suggest` knows beforehand, as plain tables: synonyms of columns, words for sex and for yes and
no, codes for "missing", and factors between units. Nothing here decides anything: a table's values
have to agree, and a person reads the draft.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

_BRACKETS = re.compile(r"\[([^\]]*)\]|\(([^)]*)\)")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})
_LONG = 4  # letters from which a synonym may be part of a longer name

_CONCEPTS = {
    "age": "age alter lebensalter patientenalter eta edad",
    "sex": "sex gender geschlecht sexe sesso sexo",
    "height": "height groesse koerpergroesse taille altezza statura",
    "weight": "weight gewicht koerpergewicht poids peso",
    "body mass index": "bmi bodymassindex koerpermasseindex imc",
    "temperature": "temperature temperatur koerpertemperatur temp",
    "cholesterol": "cholesterol cholesterin gesamtcholesterin chol colesterolo colesterol",
    "ldl": "ldl ldlcholesterin ldlcholesterol ldlc",
    "hdl": "hdl hdlcholesterin hdlcholesterol hdlc",
    "triglycerides": "triglycerides triglyzeride triglyceride neutralfette tg",
    "fasting glucose": "fbs nuechternblutzucker nuechternbz nuechternglukose fastingbloodsugar",
    "glucose": "glucose glukose blutzucker bz glycemie glicemia",
    "creatinine": "creatinine kreatinin krea crea",
    "urea": "urea harnstoff uree",
    "uric acid": "uricacid harnsaeure",
    "haemoglobin": "haemoglobin hemoglobin haemoglobine hb hgb",
    "systolic pressure": "trestbps sbp systolic systolisch rrsys rrsyst ruheblutdruck blutdrucksys",
    "diastolic pressure": "dbp diastolic diastolisch rrdia blutdruckdia",
    "heart rate": "thalach maxhr herzfrequenz heartrate puls pulse hf hfmax maxhf",
    "chest pain": "cp chestpain brustschmerz thoraxschmerz",
    "exercise angina": "exang belastungsangina exerciseangina",
    "electrocardiogram": "restecg ecg ekg ruheekg ecgrest",
    "diagnosis": "diagnosis diagnose disease krankheit outcome befund",
    "smoking": "smoker smoking raucher rauchen fumeur",
    "diabetes": "diabetes diabetiker diab",
}
CONCEPTS = {concept: tuple(names.split()) for concept, names in _CONCEPTS.items()}

_MEANINGS = {
    "male": "m male man mann maennlich maenlich herr homme masculin h uomo maschio hombre",
    "female": "f w female woman frau weiblich femme feminin donna femmina mujer",
    "yes": "yes y ja j oui o si s true wahr vrai t positive positiv x",
    "no": "no n nein non false falsch faux negative negativ",
}
_MEANING = {word: meaning for meaning, words in _MEANINGS.items() for word in words.split()}

_MISSING = (
    "? - -- --- . na n/a n.a. nan null none nil leer empty unbekannt unbek. unknown unk fehlt "
    "fehlend missing inconnu manquant k.a. ka nd n.d. n.b. #n/a #nv"
)
MISSING_WORDS = frozenset({*_MISSING.split(), "keine angabe", "nicht erhoben", "not known"})
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


_FORWARD = (
    *(Conversion(c, "mmol/l", "mg/dl", 38.67) for c in ("cholesterol", "ldl", "hdl")),
    *(Conversion(c, "mmol/l", "mg/dl", 18.016) for c in ("glucose", "fasting glucose")),
    Conversion("triglycerides", "mmol/l", "mg/dl", 88.57),
    Conversion("creatinine", "mg/dl", "umol/l", 88.42),
    Conversion("uric acid", "mg/dl", "umol/l", 59.48),
    Conversion("urea", "mmol/l", "mg/dl", 6.006),
    Conversion("haemoglobin", "mmol/l", "g/dl", 1.6114),
    Conversion("", "g/l", "g/dl", 0.1),
    Conversion("", "g/l", "mg/dl", 100.0),
    Conversion("", "m", "cm", 100.0),
    Conversion("", "mm", "cm", 0.1),
    Conversion("", "inch", "cm", 2.54),
    Conversion("", "lb", "kg", 0.45359237),
    Conversion("", "g", "kg", 0.001),
    Conversion("", "c", "f", 1.8, 32.0),
    Conversion("", "kpa", "mmhg", 7.50062),
    Conversion("", "months", "years", 1 / 12),
    Conversion("", "days", "years", 1 / 365.25),
)
CONVERSIONS = (*_FORWARD, *(conversion.inverse() for conversion in _FORWARD))
UNITS = frozenset(conversion.unit for conversion in CONVERSIONS)

_UNITS = {
    "°c": "c", "celsius": "c", "gradc": "c", "°f": "f", "fahrenheit": "f", "lbs": "lb",
    "pounds": "lb", "in": "inch", "meter": "m", "year": "years", "yrs": "years", "jahre": "years",
    "jahren": "years", "j": "years", "ans": "years", "monate": "months", "tage": "days",
    "mmolperl": "mmol/l", "mg/100ml": "mg/dl", "mg%": "mg/dl", "bpm": "/min", "1/min": "/min",
}  # fmt: skip


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
    return _UNITS.get(unit, unit)


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
