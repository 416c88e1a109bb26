"""A first `site.toml` from a site's table and the plan: guesses that a person reads.

    file       delimiter, decimal mark and encoding by what makes sense of the first lines
    columns    by name (spelling, units in brackets, synonyms), else by similar names, the best
               pairs first; else by values, if they leave one choice
    values     codes for "missing", factors between units, and other words for the plan's, if with
               them more cells fit the plan

A guess that may be wrong has a comment that says so (`a guess, check:`) and is a note as well, with
the line to look at. In a file that somebody wrote, every line that is added is marked as a guess.
A file names a value only if at least `min_cell` rows and five have it, so that it is a code and
nobody's own; notes go to a screen and name none but codes for missing that are known beforehand.
"""

from __future__ import annotations

import difflib
import heapq
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from numpy.typing import NDArray

from predbayes.errors import PlanError
from predbayes_study.plan.schema import Category, Column, Plan, Scalar, Vector
from predbayes_study.plan.text import assignments, toml_value
from predbayes_study.tables.column import Cells, key_of
from predbayes_study.tables.mapping import is_limit
from predbayes_study.tables.problem import least_cell
from predbayes_study.tables.reading import read_raw, sniff
from predbayes_study.tables.sitefile import FileForm, SiteColumn, SiteFile
from predbayes_study.tables.vectors import vector_words
from predbayes_study.tables.vocabulary import (
    MISSING_WORDS,
    NUMBER_CODES,
    UNITS,
    Conversion,
    concepts_of,
    conversions,
    meaning_of,
    name_likeness,
    normal,
    normal_unit,
    unit_in,
)
from predbayes_study.wording import six_digits

MAX_PAIRS = 2_500
"""Pairs of columns, left over by their names, whose values are compared."""

_SURE = 0.9  # likeness of names that are the same or synonyms
_SIMILAR = 0.6
_UNBEATEN = 0.8  # fit at which the same name ranks before a synonym whose values all fit
_FITS = 0.5  # share of values that must fit a column of a similar name
_FITS_ALONE = 0.95  # and of one whose name says nothing
_GAIN = 0.3  # by which a factor must improve the fit
_WORD_LIKENESS = 0.75
_MAX_WORD = 30  # letters of a word that may be a code; longer ones are somebody's remarks
_MAX_NAMED = 10
_DAYS = {
    "%d.%m.%Y": re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}"),
    "%Y-%m-%d": re.compile(r"\d{4}-\d{1,2}-\d{1,2}"),
    "%d/%m/%Y": re.compile(r"\d{1,2}/\d{1,2}/\d{4}"),
}
_CODE_WORDS = frozenset({"9", "99", "999", "-1", "-9", "-99", "-999"})  # in columns of words


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The text of a `site.toml`, and what its reader should look at."""

    sitefile_text: str
    notes: tuple[str, ...]
    lines: tuple[int, ...]  # of the text, one for each note; 0 where a note is about none


@dataclass(frozen=True, slots=True)
class Proposal:
    """How a column of the site might become one of the plan."""

    entry: SiteColumn
    checks: tuple[str, ...]
    fit: float  # share of its values that then fit the plan
    words: tuple[str, ...] = ()  # frequent ones that do not; for the draft alone, not the screen

    def with_doubt(self, check: str) -> Proposal:
        """Add one more thing to look at, if it is one."""
        return replace(self, checks=(check, *self.checks)) if check else self


def suggest(plan: Plan, path: Path, name: str) -> Suggestion:
    """Draft the file of a site, by its name as admitted to the study, from its table."""
    form = sniff(path)
    raw = read_raw(form, path, least=least_cell(plan))
    cells = Cells.of_all(raw, form.decimal)
    pairs = assign(plan, cells)
    codes = common_codes(cells, least_cell(plan))
    checks = [(who, check) for who in plan.names for check in _checks(pairs, who, plan)]
    used = {proposal.entry.column for proposal in pairs.values()}
    unused = [column.name for column in cells if column.name not in used]
    text = _write(plan, name, form, codes, pairs)
    SiteFile.loads(text)  # what is handed out can be read
    notes = [f"{who}: {check}" for who, check in checks]
    lines = [_line_of(plan, text, who) for who, _ in checks]
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
        lines.append(0)
    return Suggestion(text, tuple(notes), tuple(lines))


def common_codes(cells: Iterable[Cells], min_cell: int) -> tuple[str, ...]:
    """Return words for missing that are in the table often enough to be named."""
    rows: Counter[str] = Counter()
    for column in cells:
        for text, count in column.counts.items():
            if text.lower() in MISSING_WORDS:
                rows[text] += count
    return tuple(sorted(text for text, count in rows.items() if count >= min_cell))


def complete(plan: Plan, path: Path, text: str) -> Suggestion:
    """Add to a site's file what it does not say yet; all that somebody wrote stays as it is."""
    own, document = SiteFile.loads(text), tomlkit.parse(text)
    form = own.file if "file" in document else sniff(path)
    settled = [*own.columns, *([plan.target.name] if "target" in document else [])]
    taken = {own.entry(plan, name).column for name in settled if name in plan.names}
    raw = read_raw(form, path, least=least_cell(plan))
    cells = [c for c in Cells.of_all(raw, form.decimal) if c.name not in taken]
    open_ends = [name for name in plan.names if name not in settled]
    pairs = assign(plan, cells, open_ends)
    entries = {name: _written(name, proposal) for name, proposal in pairs.items()}
    if "file" not in document:
        document["file"] = _table(_shown(form))
    if "missing" not in document:
        codes = common_codes(cells, least_cell(plan))
        document["missing"] = _table({"codes": codes})
    columns = document.setdefault("columns", tomlkit.table())
    told: list[Pair] = []  # names of the plan, each with what to check about its line
    for name in open_ends:
        entry = entries.get(name, {})
        checks = _checks(pairs, name, plan) or ["is it this column?"] * bool(entry)
        told += [(name, check) for check in checks]
        if entry and name == plan.target.name:
            document["target"] = _guessed(entry, checks, pairs[name].words)
        elif entry:
            for key, value in _guessed({name: entry}, checks, pairs[name].words).items():
                columns.add(key, value)
    added = tomlkit.dumps(document)
    _require_kept(own, SiteFile.loads(added))
    notes = tuple(f"{who}: {check}" for who, check in told)
    return Suggestion(added, notes, tuple(_line_of(plan, added, who) for who, _ in told))


def _guessed(values: Mapping[str, Any], checks: Iterable[str], words: Sequence[str]) -> Any:
    """Lines to add to somebody's file; the first says that it is a guess, and what to look at.

    The comment is behind the line, where it stays also if the file has a section for each column.
    """
    table = _table(values)
    told = f" ({', '.join(words)})" if words else ""
    next(iter(table.values())).comment(f"a guess, check: {'; '.join(checks)}{told}")
    return table


def _line_of(plan: Plan, text: str, name: str) -> int:
    """The line of a site's file that says what a column of the plan is; 0 if none does."""
    lines = text.splitlines()
    if name == plan.target.name:
        starts = [n for n, line in enumerate(lines, 1) if line.startswith("[target]")]
        below = range(starts[-1] + 1 if starts else len(lines) + 1, len(lines) + 1)
        # A comment that says check is about the line below; one without a column is the line.
        return next((n for n in below if not lines[n - 1].startswith("#   ")), 0)
    key = assignments({name: 0})[0].removesuffix("0")
    said = [n for n, line in enumerate(lines, 1) if line.removeprefix("# ").startswith(key)]
    titled = [n for n, line in enumerate(lines, 1) if line.startswith(f"# {_one_line(name)}: ")]
    return (said or titled or [0])[-1]


def _table(values: Mapping[str, Any]) -> Any:
    """A section, written as in a draft."""
    table = tomlkit.table()
    for key, value in tomlkit.parse("\n".join([*assignments(values), ""])).items():
        table.add(key, value)
    return table


def _require_kept(before: SiteFile, after: SiteFile) -> None:
    """Refuse to write a file that lost something on the way."""
    same = {name: after.columns.get(name) for name in before.columns} == before.columns
    if not same or before.target not in (after.target, SiteColumn()) or before.name != after.name:
        raise PlanError("this site.toml cannot be completed; rename it to have a new one drafted")


# Which column is which

_VECTORS = "lists, or row numbers of an array file beside the table"

Pair = tuple[str, str]  # names of the plan's and of the site's column


def assign(
    plan: Plan, cells: Sequence[Cells], names: Sequence[str] | None = None
) -> dict[str, Proposal]:
    """Return the site's column for each of the plan's, its target included; or for these alone."""
    columns = {column.name: column for column in cells}
    wanted = [n for n in (plan.names if names is None else names) if n not in plan.vectors]

    @cache
    def offer(pair: Pair) -> Proposal:
        return propose(plan, pair[0], columns[pair[1]])

    taken = _by_spelling(wanted, columns, offer)
    taken |= _by_name(_left(wanted, columns, taken), offer)
    rest = _left(wanted, columns, taken)
    # Of very many columns without a known name, values never leave one choice.
    few = rest if len(rest) <= MAX_PAIRS else []
    return taken | _by_values({pair: offer(pair) for pair in few})


def _left(
    wanted: Iterable[str], columns: Iterable[str], taken: Mapping[str, Proposal]
) -> list[Pair]:
    """Pairs of which neither has its counterpart yet."""
    used = {proposal.entry.column for proposal in taken.values()}
    names = [name for name in wanted if name not in taken]
    return list(itertools.product(names, [name for name in columns if name not in used]))


def _by_spelling(
    wanted: Iterable[str], columns: Iterable[str], offer: Callable[[Pair], Proposal]
) -> dict[str, Proposal]:
    """Names that are the same but for spelling, each there once, and that no other pair can beat.

    So names and values of other pairs need not be compared: a wide table is not a slow one.
    """
    ours, theirs = _spelt(wanted), _spelt(columns)
    both = [(ours[key], theirs[key]) for key in ours if key in theirs]
    pairs = [(a[0], b[0]) for a, b in both if len(a) == len(b) == 1]
    return {pair[0]: offer(pair) for pair in pairs if offer(pair).fit > _UNBEATEN}


def _spelt(names: Iterable[str]) -> dict[str, list[str]]:
    spelt: dict[str, list[str]] = {}
    for name in names:
        if key := normal(name):
            spelt.setdefault(key, []).append(name)
    return spelt


def _by_name(pairs: Sequence[Pair], offer: Callable[[Pair], Proposal]) -> dict[str, Proposal]:
    """Names that are the same, synonyms or similar, the best pairs first.

    A pair waits with the rank that it would have if all its values fitted. Its values are looked at
    only when its turn comes: of a wide table, few are.
    """
    likeness = {pair: alike for pair in pairs if (alike := name_likeness(*pair)) >= _SIMILAR}
    waiting = [(-alike - 0.5, False, n, pair) for n, (pair, alike) in enumerate(likeness.items())]
    heapq.heapify(waiting)
    taken: dict[str, Proposal] = {}
    used: set[str] = set()
    while waiting:
        _, is_ranked, number, pair = heapq.heappop(waiting)
        if pair[0] in taken or pair[1] in used:
            continue
        proposal, is_sure = offer(pair), likeness[pair] >= _SURE
        if not is_ranked:
            rank = -likeness[pair] - 0.5 * proposal.fit
            heapq.heappush(waiting, (rank, True, number, pair))
        elif is_sure or proposal.fit >= _FITS:
            doubt = "" if is_sure else "found by a similar name"
            few = "" if proposal.fit >= _FITS else "few of its values fit the plan"
            taken[pair[0]] = proposal.with_doubt(few or doubt)
            used.add(pair[1])
    return taken


def _by_values(offers: Mapping[Pair, Proposal]) -> dict[str, Proposal]:
    """Of the rest, those whose values leave one choice on both sides."""
    fitting = [pair for pair, offer in offers.items() if offer.fit >= _FITS_ALONE]
    times = Counter(name for ours, theirs in fitting for name in (("plan", ours), ("site", theirs)))
    return {
        ours: offers[ours, theirs].with_doubt("found by its values alone: is it this column?")
        for ours, theirs in fitting
        if times["plan", ours] == times["site", theirs] == 1
    }


def propose(plan: Plan, ours: str, cells: Cells) -> Proposal:
    """Propose how a column of the site would become the plan's column, or its target."""
    column = plan.column(ours)
    assert not isinstance(column, Vector)
    if column.words:
        return _propose_words(column, cells, least_cell(plan))
    return _propose_number(ours, column, cells, least_cell(plan))


# Numbers


def _propose_number(ours: str, column: Scalar, cells: Cells, min_cell: int) -> Proposal:
    values = np.array(list(cells.number_counts), dtype=np.float64)
    rows = np.array(list(cells.number_counts.values()), dtype=np.float64)
    is_code = np.isin(values, list(NUMBER_CODES))
    if is_code.all():
        is_code = np.zeros(len(values), dtype=bool)
    conversion, checks = _best_conversion(ours, column, cells, values[~is_code], rows[~is_code])
    converted = values * conversion.factor + conversion.offset
    odd = is_code & _outside(column, converted, converted[~is_code])
    named = odd & (rows >= min_cell)
    missing = tuple(f"{value:.12g}" for value in sorted(values[named], key=abs))
    if missing and column.range is None:
        checks.append(f"taken for missing: {', '.join(missing)}")
    if (odd & ~named).any():
        checks.append(
            f"{int(rows[odd & ~named].sum())} values may be codes for missing: list them with "
            "--show-values"
        )
    limits = {w: n for w, n in cells.no_numbers.items() if is_limit(w)}
    if limits:
        checks.append("cells such as <5 are taken for half of it, such as >100 for the number")
    if how := _date_form(cells.no_numbers):
        checks.append(
            f'days: write date = "{how}" and until = "the column, or the day, that time is counted '
            'to"'
        )
    words = {w: n for w, n in cells.no_numbers.items() if w not in limits}
    # Digits alone may be somebody's value, in a spelling that is not understood.
    lettered = {w: n for w, n in words.items() if re.search(r"[^\W\d_]", w)}
    frequent = _frequent(lettered, min_cell)
    if words:
        advice = "add them to missing if they mean that"
        checks.append(_told(words, frequent, "no number", advice))
    kept = ~named
    num_left = cells.num_known - float(rows[named].sum()) - sum(limits.values())
    fit = _fit(column, converted[kept], rows[kept], num_left)
    entry = SiteColumn(
        column=cells.name,
        factor=conversion.factor,
        offset=conversion.offset,
        missing=missing,
        limit="half" if limits else "refuse",
    )
    return Proposal(entry, tuple(checks), fit, frequent)


def _date_form(words: Mapping[str, int]) -> str:
    """How days are written, if most of these words are days."""
    for form, how in _DAYS.items():
        if words and sum(bool(how.fullmatch(w)) for w in words) > len(words) / 2:
            return form
    return ""


def _best_conversion(
    ours: str,
    column: Scalar,
    cells: Cells,
    values: NDArray[np.float64],
    rows: NDArray[np.float64],
) -> tuple[Conversion, list[str]]:
    """The change of units with which the values fit best; none unless it is clearly better."""
    stated, wanted = unit_in(cells.name), normal_unit(column.unit)
    as_it_is = Conversion("", stated, wanted, 1.0)
    if stated and stated == wanted:
        return as_it_is, []
    total = float(rows.sum())
    plain_fit = _fit(column, values, rows, total)
    ways = conversions(concepts_of(ours) | concepts_of(cells.name), stated, wanted)
    fits = [_fit(column, v.factor * values + v.offset, rows, total) for v in ways]
    best = max(range(len(ways)), key=fits.__getitem__, default=None)
    differ = stated in UNITS and wanted in UNITS
    if best is not None and (fits[best] > plain_fit + _GAIN or (differ and fits[best] >= _FITS)):
        way = ways[best]
        rounded = replace(way, factor=six_digits(way.factor), offset=six_digits(way.offset))
        return rounded, [f"taken for {way.unit}, which becomes {way.to}"]
    if differ:
        return as_it_is, [f"the file has {stated}, the plan {wanted}: is a factor missing?"]
    return as_it_is, []


def _outside(
    column: Scalar, values: NDArray[np.float64], others: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Values that make no sense: outside the plan's range, or else far from all others."""
    if column.range is not None:
        return (values < column.range[0]) | (values > column.range[1])
    if not len(others):
        return np.zeros(len(values), dtype=bool)
    least, greatest = float(others.min()), float(others.max())
    spread = greatest - least
    return (values < least - spread) | (values > greatest + spread)


def _fit(
    column: Scalar, values: NDArray[np.float64], rows: NDArray[np.float64], total: float
) -> float:
    """Share of rows in range, less if their middle is far from that of the reference rows."""
    if not len(values) or total <= 0:
        return 0.0
    inside = np.ones(len(values), dtype=bool)
    if column.range is not None:
        inside = (values >= column.range[0]) & (values <= column.range[1])
    share = float(rows[inside].sum()) / total
    if column.centre is None or column.scale is None:
        return share
    order = values.argsort()
    middle = values[order][np.searchsorted(rows[order].cumsum(), rows.sum() / 2)]
    distance = (float(middle) - column.centre) / (2 * column.scale)
    return share * math.exp(-0.5 * min(distance**2, 100.0))


# Words


def _propose_words(column: Scalar, cells: Cells, min_cell: int) -> Proposal:
    known = {key_of(word) for word in column.words}
    recode: dict[str, str] = {}
    checks: dict[str, None] = {}  # in order, each once
    unknown = {word: count for word, count in cells.known.items() if word not in known}
    missing = tuple(w for w in unknown if w in _CODE_WORDS and unknown[w] >= min_cell)
    for word, count in sorted(unknown.items()):
        same = same_word(word, column.words) if count >= min_cell else None
        if same is not None:
            recode[word] = same[0]
            checks |= {same[1]: None} if same[1] else {}
    missing = tuple(code for code in missing if code not in recode)
    if missing:
        checks[f"taken for missing: {', '.join(missing)}"] = None
    left = {w: n for w, n in unknown.items() if w not in recode and w not in missing}
    frequent = _frequent(left, min_cell)
    if left:
        advice = (
            "they become other" if _has_other(column) else "recode them, or add them to missing"
        )
        checks[_told(left, frequent, "not in the plan", advice)] = None
    entry = SiteColumn(column=cells.name, recode=recode, missing=missing)
    fit = 1 - sum(left.values()) / cells.num_known if cells.num_known else 0.0
    return Proposal(entry, tuple(checks), fit, frequent)


def _has_other(column: Column) -> bool:
    return isinstance(column, Category) and column.other


def _frequent(words: Mapping[str, int], min_cell: int) -> tuple[str, ...]:
    """Words that may be named: short, and those of several rows."""
    ranked = sorted(words.items(), key=lambda pair: (-pair[1], pair[0]))
    short = [(w, n) for w, n in ranked if n >= min_cell and len(w) <= _MAX_WORD]
    return tuple(f"{toml_value(_one_line(w))} in {n} rows" for w, n in short[:_MAX_NAMED])


def _told(words: Mapping[str, int], frequent: Sequence[str], what: str, advice: str) -> str:
    """A note about words that names none."""
    count = "1 word is" if len(words) == 1 else f"{len(words)} words are"
    rest = len(words) - len(frequent)
    where = "named in the draft" if not rest else "list them with --show-values"
    return f"{count} {what}: {where}; {advice}"


def same_word(word: str, categories: Sequence[str]) -> tuple[str, str] | None:
    """Return the plan's word for one of the site's, and what to check about it."""
    spelt = [c for c in categories if normal(c) == normal(word) != ""]
    meant = [c for c in categories if meaning_of(c) == meaning_of(word) != ""]
    answers = [c for c in categories if _yes_or_no(c) == _yes_or_no(word) != ""]
    if not all(map(_yes_or_no, categories)):
        answers = []
    near = difflib.get_close_matches(normal(word), map(normal, categories), 1, _WORD_LIKENESS)
    alike = [c for c in categories if near and normal(c) == near[0] and not c.isdecimal()]
    for candidates, check in (
        (spelt, ""),
        (meant, ""),
        (answers, "0 is taken for no, 1 for yes"),
        (alike, "words that are spelt alike are taken for the same"),
    ):
        if len(candidates) == 1:
            return candidates[0], check
    return None


def _yes_or_no(word: str) -> str:
    meaning = meaning_of(word)
    return meaning if meaning in ("yes", "no") else {"0": "no", "1": "yes"}.get(word, "")


# Writing


def _write(
    plan: Plan, name: str, form: FileForm, codes: tuple[str, ...], pairs: Mapping[str, Proposal]
) -> str:
    lines = [
        "# How this site's table becomes one in the plan's columns, words and units.",
        "# A draft: read every line, above all where it says check.",
        *assignments({"format": 1, "name": name}),
        f"# key = {toml_value(f'{name}.key')}  # the private key, beside this file",
        "",
        "[file]",
        *assignments(_shown(form)),
        "",
        "# What means missing in every column.",
        "[missing]",
        *assignments({"codes": codes}),
        "",
        "# One line for each column of the plan:",
        '# plan = { column = "yours", factor = 1, offset = 0, recode = { a = "b" }, '
        'missing = ["-9"] }',
        "# A number becomes value * factor + offset; words are recoded; codes are emptied.",
        "[columns]",
    ]
    for ours in (*plan.columns, *plan.outcomes[1:]):
        lines += _column_lines(plan, ours, pairs)
    lines += ["", f"# What is predicted: {_plan_words(plan, plan.target.name)}.", "[target]"]
    return "\n".join([*lines, *_target_lines(plan, pairs)]) + "\n"


def _shown(form: FileForm) -> dict[str, Any]:
    return form.model_dump(exclude=None if form.skip else {"skip"})


def _column_lines(plan: Plan, ours: str, pairs: Mapping[str, Proposal]) -> Iterator[str]:
    yield f"# {_one_line(ours)}: {_plan_words(plan, ours)}"
    yield from _comments(plan, ours, pairs)
    if ours not in pairs:
        yield f"# {assignments({ours: {'column': ''}})[0]}"
    elif entry := _written(ours, pairs[ours]):
        yield from assignments({ours: entry})
    else:
        yield "#   taken as it is"


def _target_lines(plan: Plan, pairs: Mapping[str, Proposal]) -> Iterator[str]:
    ours = plan.target.name
    yield from _comments(plan, ours, pairs)
    yield from assignments(_written(ours, pairs[ours])) if ours in pairs else ['# column = ""']


def _written(ours: str, proposal: Proposal) -> dict[str, Any]:
    """The keys of an entry that change something; a name that is the plan's does not."""
    keys = proposal.entry.model_dump(exclude_defaults=True)
    return {key: value for key, value in keys.items() if (key, value) != ("column", ours)}


def _comments(plan: Plan, ours: str, pairs: Mapping[str, Proposal]) -> Iterator[str]:
    mark = "a guess, check" if ours in pairs else "check"
    yield from (f"#   {mark}: {check}" for check in _checks(pairs, ours, plan))
    yield from (f"#     {word}" for word in (pairs[ours].words if ours in pairs else ()))


def _checks(pairs: Mapping[str, Proposal], ours: str, plan: Plan) -> list[str]:
    if ours in pairs:
        return [_one_line(check) for check in pairs[ours].checks]
    if ours in plan.vectors:
        return [f"{_VECTORS}; file = ... says where an array file is that has another name"]
    if ours in plan.columns and plan.columns[ours].optional:
        return ["no column of the file looks like it; the plan does not need it"]
    return ["no column of the file looks like it; write its name"]


def _plan_words(plan: Plan, ours: str) -> str:
    """What the plan wants of a column, in a few words."""
    column = plan.column(ours)
    if column.words:
        other = ", or other words" if _has_other(column) else ""
        return f"one of {', '.join(map(_one_line, column.words))}{other}"
    if isinstance(column, Vector):
        return vector_words(column)
    unit = f" in {column.unit}" if column.unit else ""
    between = f", {column.range[0]:g} to {column.range[1]:g}" if column.range else ""
    return f"a number{unit}{between}"


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
