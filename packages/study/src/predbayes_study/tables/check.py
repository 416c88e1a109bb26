"""Everything that is wrong with a site's table, and everything worth knowing, at once.

Each finding says which column, about how many rows, and what to write in `site.toml`; lines and
exact counts only where nothing is to be left out. Values are kept apart from the text, for whoever
asks to see them. Text names no cell but codes for missing that are known beforehand, such as -9 or
NA, if at least `min_cell` rows and five have them. Counts of classes below `min_cell` are not told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
from torch import Tensor

from predbayes.errors import DataError
from predbayes_study.plan.schema import Category, Column, Number, Plan
from predbayes_study.plan.text import assignments
from predbayes_study.rules import Finding, Rule, Severity, error, errors_of, warning
from predbayes_study.tables.coding import Examined, code_targets, examine, moments, target_problems
from predbayes_study.tables.column import Cells, key_of
from predbayes_study.tables.mapping import PATIENT, entry_problems, stores_of, translate
from predbayes_study.tables.plausible import Array, target_doubts, unit_doubt
from predbayes_study.tables.problem import Kind, Problem, least_cell, listed, stepped
from predbayes_study.tables.reading import read_raw
from predbayes_study.tables.sitefile import SITE_FILE, SiteColumn, SiteFile
from predbayes_study.tables.suggest import assign, common_codes, propose
from predbayes_study.tables.vectors import with_vectors
from predbayes_study.tasks import task_of
from predbayes_study.tasks.numbers import target_units
from predbayes_study.wording import counted

MIN_TRAIN_ROWS = 50
"""With fewer a site's model says little, and its share of the pool is small."""

MIN_HELD_OUT = 30
"""With fewer the comparison of models at the site has intervals too wide to choose by."""

MAX_VALUES = 5
"""Different values of one finding that are shown to whoever asks."""

_FEW_KNOWN = 0.5
_FAR = 2.0  # scales between the mean of all numbers of a column and the plan's
_UNLIKE = 4.0  # times their spread
_BECOMES = {
    Kind.UNLISTED: ", which become `other`",
    Kind.OUTSIDE: ", which become its nearest end",
}
_CODED = "if they mean missing, write missing = [...] {where} in {file}"
_ADVICE = {
    Kind.MISSING: "the plan needs it in every row: leave these rows out, or ask the coordinator",
    Kind.OUTSIDE: (
        "correct them, or write their code as missing = [...] {where} in {file}; "
        "if all rows are in another unit, write a factor"
    ),
    Kind.UNLISTED: "recode them to {words}, or write missing = [...] {where} in {file}",
    Kind.COMMA: 'write decimal = "," under [file] in {file}',
    Kind.POINT: 'write them with a comma, or decimal = "." under [file] in {file}',
}
"""What to do about a problem where nothing better is known."""

_VECTOR_ADVICE = (
    "the table must have a column with lists, or with row numbers of an array file; "
    f"file = ... in {SITE_FILE} says where that is"
)


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """What a check found, errors first, and what the table is like in a few lines."""

    findings: tuple[Finding, ...]
    summary: tuple[str, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that keep the site from training."""
        return errors_of(self.findings)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that the site should know."""
        return tuple(one for one in self.findings if one.severity == "warning")


CountHeldOut = Callable[[pd.DataFrame, Examined], int]


@dataclass(frozen=True)  # without slots, where the likely columns are kept
class _Table:
    """A site's table before and after its translation."""

    plan: Plan
    site: SiteFile
    raw: pd.DataFrame
    frame: pd.DataFrame
    ambiguous: tuple[Problem, ...]
    least: int  # count that is told, and the step of greater ones; 0: all, and lines
    count_held_out: CountHeldOut | None = None

    def entry(self, name: str) -> SiteColumn:
        """Return how the plan's column, or its target, comes about."""
        return self.site.entry(self.plan, name)

    def has(self, name: str) -> bool:
        """Return whether the site has a column, or a file of arrays, for it."""
        return self.entry(name).column in self.raw.columns or name in self.frame.columns

    def cells(self, name: str) -> Cells:
        """Return the site's column for one of the plan's."""
        return Cells.of(self.raw, self.entry(name).column, self.site.file.decimal)

    def num_held_out(self, num_known: int) -> int:
        """Return how many rows training holds out; of a table that it would refuse, about so many.

        Rows of one patient stay together, so it may be another number than the plan's share.
        """
        return int(self.plan.learner.holdout * num_known) if self._dealt is None else self._dealt

    @cached_property
    def _dealt(self) -> int | None:
        try:
            count = self.count_held_out
            return None if count is None else count(self.frame, self.examined)
        except DataError:
            return None

    @cached_property
    def examined(self) -> Examined:
        """The table's codes, as training sees them, and what is wrong with it."""
        return examine(self.plan, self.frame, "clip few")

    @cached_property
    def wrong(self) -> frozenset[str]:
        """The columns that have problems already."""
        problems = (*self.examined.problems, *self.ambiguous)
        return frozenset(problem.column for problem in problems)

    def sound_columns(self) -> Iterator[tuple[str, Tensor]]:
        """Yield columns without problems, and their codes; vectors have none."""
        for name, codes in zip(self.plan.columns, self.examined.codes.T, strict=True):
            there = self.has(name) or not self.plan.columns[name].optional
            if there and name not in self.plan.vectors and name not in self.wrong:
                yield name, codes

    @cached_property
    def targets(self) -> Tensor | None:
        """The targets as training sees them; None if some cannot be read."""
        of_targets = any(problem.column in self.plan.outcomes for problem in self.ambiguous)
        wrong = of_targets or target_problems(self.plan, self.frame)
        return None if wrong else code_targets(self.plan, self.frame)

    @property
    def num_known(self) -> int:
        """Rows whose target is known."""
        return 0 if self.targets is None else int((~self.targets.isnan()).sum())

    @cached_property
    def likely(self) -> dict[str, str]:
        """The site's columns that the plan's may be, by the rules of `suggest`."""
        known = [name for name in self.plan.names if self.has(name)]
        used = {self.entry(name).column for name in known}
        cells = [c for c in Cells.of_all(self.raw, self.site.file.decimal) if c.name not in used]
        lost = [name for name in self.plan.names if name not in known]
        return {ours: o.entry.column for ours, o in assign(self.plan, cells, lost).items()}


def site_problems(
    plan: Plan,
    site: SiteFile,
    path: Path,
    least: int | None = None,
    count_held_out: CountHeldOut | None = None,
) -> SiteCheck:
    """Check a site's table against the plan; a file that cannot be read is refused.

    Args:
        plan: What the table must fit.
        site: How it becomes one in the plan's columns and units.
        path: The table.
        least: The least count that texts tell, greater ones in steps of it; `least_cell` of the
            plan. 0 tells all counts, and lines.
        count_held_out: Counts the rows that training would hold out of a table in the plan's
            columns and units, given with what was examined of it; without it the plan's share is
            told.
    """
    told = least_cell(plan) if least is None else least
    raw = read_raw(site.file, path, least=told)
    frame, ambiguous = translate(plan, site, raw)
    frame = with_vectors(plan, frame, path, stores_of(plan, site))
    table = _Table(plan, site, raw, frame, ambiguous, told, count_held_out)
    rules = (*RULES, *plan.rules_of("table"))
    findings = [found for rule in rules for found in rule.findings(table)]
    findings.sort(key=lambda finding: finding.severity)
    return SiteCheck(tuple(findings), tuple(_summary(table)))


# The site's file


def _lost_recodes(table: _Table) -> Iterator[str]:
    """Recodes that lead nowhere."""
    for name in table.plan.names:
        words = _plan_words(table.plan, name)
        recoded = table.entry(name).recode.values()
        unknown = {word for word in recoded if word and words and word not in words}
        if unknown:
            yield (
                f"{name}: {SITE_FILE} recodes to {counted(len(unknown), 'word')} that "
                f"{_are(len(unknown))} not in the plan; the plan has {', '.join(words)}"
            )


def _idle_codes(table: _Table) -> Iterator[Finding]:
    """Codes that no cell has."""
    for name in table.plan.names:
        if table.has(name) and name not in table.plan.vectors and (idle := _idle(table, name)):
            codes = f"{counted(len(idle), 'code')} of {SITE_FILE} {_are(len(idle))}"
            yield warning(f"{name}: {codes} in no cell; check the spelling", idle)


def _idle(table: _Table, name: str) -> list[str]:
    """Recodes and missing codes of one column that match nothing."""
    entry, decimal = table.entry(name), table.site.file.decimal
    if not (entry.recode or entry.missing):
        return []
    is_number = isinstance(table.plan.column(name), Number)
    seen = {key_of(text, decimal, is_number=is_number) for text in table.cells(name).counts}
    return [
        code
        for code in (*entry.recode, *entry.missing)
        if not seen & {key_of(code.strip(), mark, is_number=is_number) for mark in (decimal, ".")}
    ]


def _plan_words(plan: Plan, name: str) -> tuple[str, ...]:
    """The words that a column may have, or nothing where it may have any or numbers."""
    column = plan.column(name)
    return column.categories if isinstance(column, Category) else ()


# Columns


def _units(table: _Table) -> Iterator[str]:
    """Numbers that may be in another unit, or of another column."""
    for name, codes in table.sound_columns():
        yield from _unit(table, name, table.plan.columns[name], codes.numpy())


def _unit(
    table: _Table, name: str, column: Column, values: Array, *, is_log: bool = False
) -> Iterator[str]:
    if isinstance(column, Number):
        theirs, where = table.entry(name).column, f"{_where(table, name)} in {SITE_FILE}"
        doubt = unit_doubt(name, column, values, theirs=theirs, where=where, is_log=is_log)
        yield from filter(None, [doubt])


def _vectors(table: _Table) -> Iterator[str]:
    """Vectors whose numbers do not have about the mean and the spread of the plan's."""
    for name, column in table.plan.vectors.items():
        found = None if name in table.wrong else moments(table.examined.vectors.get(name))
        if found is None or column.centre is None or column.scale is None:
            continue
        mean, std = found
        off, ratio = abs(mean - column.centre) / column.scale, std / column.scale
        if off > _FAR or not 1 / _UNLIKE < ratio < _UNLIKE:
            # With a tiny scale of the plan these would have all digits of the site's mean.
            how = (
                f": their mean is {off:.1f} scales from the plan's centre and their spread "
                f"{ratio:.2g} of its scale"
            )
            yield (
                f"{name}: its values are unlike those of the plan{'' if table.least else how}. Are "
                "they of another range, or made in another way?"
            )


def _few_values(table: _Table) -> Iterator[str]:
    for name, codes in table.sound_columns():
        known = codes[~codes.isnan()]
        if not len(known):
            yield f"{name}: missing in all rows"
        elif len(known) < _FEW_KNOWN * len(codes):
            yield f"{name}: missing in more than half of the rows"


def _constants(table: _Table) -> Iterator[str]:
    for name, codes in table.sound_columns():
        known = codes[~codes.isnan()]
        if len(known) and bool((known == known[0]).all()):
            yield name


# What to do


def _problems(
    table: _Table, problems: Iterable[Problem], severity: Severity = "error"
) -> Iterator[Finding]:
    """Problems with what to do about them, and the first different cells that have them."""
    for problem in problems:
        so = _BECOMES.get(problem.kind, "") if severity == "warning" else ""
        values: tuple[str, ...] = ()
        is_text = problem.column not in table.plan.vectors
        if problem.lines and problem.kind is not Kind.MISSING and is_text:
            cells = table.raw.loc[list(problem.lines), table.entry(problem.column).column]
            values = tuple(dict.fromkeys(cells))[:MAX_VALUES]
        text = f"{problem.told(table.least)}{so}; {_remedy(table, problem)}"
        yield Finding(severity, text, values, hides=bool(table.least and problem.lines))


def _remedy(table: _Table, problem: Problem) -> str:
    """What to write in `site.toml`, where that may help."""
    name = problem.column
    where = _where(table, name)
    if name in table.plan.vectors:
        return _VECTOR_ADVICE
    if not table.has(name):
        likely = table.likely.get(name, "your name for it")
        return f'write column = "{likely}" {where} in {SITE_FILE}'
    if problem.kind not in (Kind.MISSING, Kind.POINT):
        addition = _addition(table, name).model_dump(exclude_defaults=True)
        hidden = addition.pop("recode", {}) if table.least else {}  # its words are cells
        told = [*assignments(addition), *(["a recode, which --suggest drafts,"] if hidden else [])]
        if told:
            return f"perhaps write {', '.join(told)} {where} in {SITE_FILE}"
    words = ", ".join(_plan_words(table.plan, name))
    return _ADVICE.get(problem.kind, _CODED).format(where=where, words=words, file=SITE_FILE)


def _where(table: _Table, name: str) -> str:
    return "under [target]" if name == table.plan.target.name else f"for {name}"


def _addition(table: _Table, name: str) -> SiteColumn:
    """What `suggest` would write and the site's file has not; with frequent codes alone."""
    entry, cells = table.entry(name), table.cells(name)
    offer = propose(table.plan, name, cells).entry
    settled = {*table.site.missing.codes, *entry.missing, *entry.recode}
    words = common_codes([cells], least_cell(table.plan))
    is_scaled = (entry.factor, entry.offset) != (1.0, 0.0)
    return SiteColumn(
        factor=1.0 if is_scaled else offer.factor,
        offset=0.0 if is_scaled else offer.offset,
        recode={word: to for word, to in offer.recode.items() if word not in settled},
        missing=tuple(code for code in (*offer.missing, *words) if code not in settled),
        limit=offer.limit if entry.limit == "refuse" else "refuse",
    )


# Rows


def _task_doubts(table: _Table) -> Iterator[Finding]:
    if (targets := table.targets) is not None and len(known := targets[~targets.isnan()]):
        least = max(table.least, least_cell(table.plan))
        yield from task_of(table.plan).doubts(table.plan, known, least)


def _target_doubts(table: _Table) -> Iterator[Finding]:
    """Whether it is the plan's target, and the right way round."""
    severity: Severity = "warning" if table.site.target.confirmed else "error"
    if table.num_known and table.targets is not None:
        codes = table.examined.codes.numpy()
        for text in target_doubts(table.plan, codes, table.targets.numpy()):
            yield Finding(severity, text)


def _target_unit(table: _Table) -> Iterator[str]:
    plan, target = table.plan, table.plan.target
    if not table.num_known or not task_of(plan).is_scaled or target.scale is None:
        return
    column = Number(type="number", unit=target.unit, centre=target.centre, scale=target.scale)
    centre, scale = target_units(plan)
    assert table.targets is not None
    values = (centre + scale * table.targets).numpy()
    yield from _unit(table, target.name, column, values, is_log=target.transform == "log")


def _rows(table: _Table) -> Iterator[Finding]:
    """Whether there are rows enough to train on, and to compare models on."""
    if table.targets is None:
        return
    plan, num_known, num_rows = table.plan, table.num_known, len(table.targets)
    held_out = table.num_held_out(num_known)
    trained = num_known - held_out
    if num_known < num_rows:
        rows = stepped(num_rows - num_known, "row", table.least)
        yield warning(f"{plan.target.name}: missing in {rows}, which are not trained on")
    if trained < plan.rules.min_rows:
        yield error(
            f"{plan.target.name}: known in {stepped(num_known, 'row', table.least)}; with fewer "
            f"than min_rows = {plan.rules.min_rows} of the plan to train on a site does not take "
            "part"
        )
    elif trained < MIN_TRAIN_ROWS:
        yield warning(
            f"{counted(trained, 'row')} to train on: with fewer than {MIN_TRAIN_ROWS} a model says "
            "little"
        )
    if plan.learner.holdout and held_out < MIN_HELD_OUT:
        yield warning(
            f"{counted(held_out, 'row')} held out: with fewer than {MIN_HELD_OUT} nobody can say "
            "which model is best for you"
        )


def _repeated(table: _Table) -> Iterator[Finding]:
    again = table.frame.drop(columns=PATIENT, errors="ignore").duplicated().to_numpy()
    if again.any():
        lines = table.frame.index[again].tolist()
        where = "" if table.least else f" ({listed(lines)})"
        found = warning(
            f"{stepped(len(lines), 'row', table.least)} {_are(table.least or len(lines))} the same "
            f"as an earlier row in all columns of the plan{where}; are they different patients?"
        )
        yield replace(found, hides=bool(table.least))


RULES = (
    Rule[_Table](
        "site.toml",
        "error",
        lambda table: entry_problems(table.plan, table.site, table.raw.columns),
    ),
    Rule[_Table]("recode", "error", _lost_recodes),
    Rule[_Table]("codes", "warning", _idle_codes),
    Rule[_Table]("cells", "error", lambda table: _problems(table, table.ambiguous)),
    Rule[_Table]("cells", "error", lambda table: _problems(table, table.examined.problems)),
    Rule[_Table](
        "cells", "warning", lambda table: _problems(table, table.examined.oddities, "warning")
    ),
    Rule[_Table](
        "absent",
        "warning",
        lambda table: (
            name
            for name, column in table.plan.columns.items()
            if column.optional and not table.has(name)
        ),
        "{found}: the table does not have it; the plan does not need it",
    ),
    Rule[_Table]("vectors", "warning", _vectors),
    Rule[_Table]("missing", "warning", _few_values),
    Rule[_Table](
        "constant",
        "warning",
        _constants,
        "{found}: the same in every row that has it; is it the right column?",
    ),
    Rule[_Table]("unit", "warning", _units),
    Rule[_Table](
        "cells", "error", lambda table: _problems(table, target_problems(table.plan, table.frame))
    ),
    Rule[_Table]("rows", "warning", _rows),
    Rule[_Table]("target", "warning", _task_doubts),
    Rule[_Table]("target", "error", _target_doubts),
    Rule[_Table]("unit", "warning", _target_unit),
    Rule[_Table]("repeated", "warning", _repeated),
)
"""What is looked for in a site's table."""


def _summary(table: _Table) -> Iterator[str]:
    plan, frame, least = table.plan, table.frame, table.least
    num_there = sum(table.has(name) for name in plan.columns)
    missing = {name: int((frame[name] == "").sum()) for name in plan.names if name in frame}
    unknown = [missing.pop(name, len(frame)) for name in plan.outcomes]
    num_unknown = max(unknown)  # of a survival at least so many
    num_known, rows = len(frame) - num_unknown, counted(len(frame), "row")
    if num_unknown and least:
        # The number of all rows would tell how many lack a target: the upload tells of the others.
        without = stepped(num_unknown, "row", least)
        rows = f"{counted(num_known, 'row')} with {plan.target.name}, {without} without"
    yield f"{rows}, {num_there} of {len(plan.columns)} columns found"
    counts = {name: stepped(count, "row", least) for name, count in missing.items() if count}
    yield f"missing values: {', '.join(f'{name} in {n}' for name, n in counts.items()) or 'none'}"
    if plan.target.name in frame:
        num_held_out = table.num_held_out(num_known)
        yield f"{num_known - num_held_out:,} rows to train on, {num_held_out:,} held out"


def _are(num: int) -> str:
    return "is" if num == 1 else "are"
