"""A first plan from a table: what can be seen in the cells is guessed, the rest is asked for.

    column of numbers            number, range from the least to the greatest, rounded outward
    of one or two whole numbers  category: a code, such as 0 and 1
    of at most 20 words          category, with `other` for words that only sites have
    all words differ             left out: a name, an identifier, a date
    the same in every row        left out: it tells nothing

A target of words, or of at most ten whole numbers, is a classification. With a column of events it
is a time until then, and intervals end at quantiles of the events' times, rounded. Where no row
has a label the author says what the target is: its classes, or centre and scale of a number. Every
guess that may be wrong and everything that no table tells (units, licence, legal basis) is a note
to the user.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError

from predbayes.errors import PlanError, TextError, no_such
from predbayes.exchange.strict import LARGEST
from predbayes.learning.named import AUTO
from predbayes.text import require_printable
from predbayes_study.plan.schema import (
    MAX_WEIGHT,
    Category,
    Column,
    Gate,
    Learner,
    Missing,
    Number,
    Plan,
    Pool,
    Reference,
    Rules,
    Target,
    refusal,
)
from predbayes_study.tables.column import Cells
from predbayes_study.tables.plausible import correlation as correlate

MAX_CATEGORIES = 20
"""A text column of more different words is not taken for a category."""

MAX_CLASSES = 50
"""A target of more different words is not taken for a class."""

EVALUATE_FRACTION = 0.3
"""Share of the labels that is set aside to score with, where there are enough of them."""

ROOM = 0.5
"""Of the width of a column's numbers, by which its range goes beyond them on each side: sites have
rows that the reference rows do not show."""

MIN_TREND = 0.1
"""Weaker correlations with the target are not told: their sign may be chance."""

MIN_TOLD = 50
"""Labels from which on the share of a class, and trends, are told."""

SPLIT: Literal["any", "stratified"] = "stratified"
"""How sites draw the rows that they hold out, by a new plan."""

GATE: Gate | None = Gate()
"""What a new plan asks sites for."""

LEARNER = AUTO
"""What sites fit by a new plan, and the coordinator to the labelled rows."""

_MAX_CODES = 2  # whole numbers that are a code and no quantity
_MAX_NUMBER_CLASSES = 10
_MAX_LISTED = 8  # names in one note
_MAX_INTERVALS = 10
_EVENTS_OF_INTERVAL = 10
_COVERED = 0.95  # of the events: those after the last interval are not looked at
_SUSPICIOUS = 0.9  # correlation at which a column may be the target in disguise
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_MARKERS = frozenset({"?", "-", ".", "na", "n/a", "nan", "null", "unknown"})


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan, and what its author should know and fill in."""

    plan: Plan
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """What a target is of which no reference row has a label."""

    classes: tuple[str, ...] = ()
    centre: float | None = None  # of a number: its mean, roughly
    scale: float | None = None  # and its standard deviation

    def target(self, name: str) -> Target:
        """Return the target; refuse what is neither classes nor a number."""
        numbers = (self.centre, self.scale)
        try:
            if self.classes and numbers == (None, None):
                return Target(name=name, task="classification", classes=self.classes)
            if not self.classes and None not in numbers:
                return Target(name=name, task="regression", centre=self.centre, scale=self.scale)
        except ValidationError as error:
            raise refusal(error, Target, "the target", "a target") from error
        raise PlanError(
            f"no row has a label in {name!r}, so say what it is: its classes (--classes no,yes), "
            "or of a number its mean and standard deviation, roughly (--centre 6 --scale 4)"
        )


def draft(
    frame: pd.DataFrame,
    *,
    name: str,
    target: str,
    file: str,
    labelled: int | None = None,
    evaluate: int | None = None,
    unlabelled: Unlabelled | None = None,
    event: str = "",
    vectors: Mapping[str, Column] | None = None,
) -> Draft:
    """Guess a plan.

    Args:
        frame: The reference rows, as `read_frame` gives them.
        name: Of the study.
        target: The column to predict; its cell is empty in rows without a label.
        file: Where the rows lie, relative to the plan.
        labelled: How many rows to tune on; those with a label that are not for evaluation.
        evaluate: How many rows to score on; three in ten of those with a label if this is enough
            to judge calibration, else none, and scores are cross-fitted.
        unlabelled: What the target is, where no row has a label.
        event: The column that says whether the event came at the time in the target's, or the row
            was last seen then; empty if the target is no such time.
        vectors: Columns of vectors, as `guess_vectors` finds them.
    """
    if name != study_name(name):
        raise PlanError(f"a study cannot be named {name!r}, but {study_name(name)!r}")
    if unlabelled is None and target not in frame.columns:
        missing = no_such("column", target, map(str, frame.columns))
        missing += "" if missing.endswith("?") else "."
        how = "write [target] by hand" if event else "--classes no,yes, or --centre 6 --scale 4"
        raise PlanError(f"{missing} If no row has a label, say what it is: {how}")
    columns: dict[str, Column] = dict(vectors or {})
    scalars = frame.drop(columns=[name for name in columns if name in frame.columns])
    scalars = scalars.set_axis([str(name) for name in scalars], axis=1)
    cells = {name: Cells.of(scalars, name) for name in scalars}
    labels = cells.setdefault(target, Cells(target, pd.Series([""] * len(frame), dtype=object)))
    if event:
        labels, goal, notes = _survival(labels, cells.get(event), frame, event, unlabelled)
        cells[target] = labels
    else:
        goal, notes = _target(labels) if unlabelled is None else _untold(labels, unlabelled)
    goal = _with_share(goal, labels)
    left_out = []
    for column in cells.values():
        if column.name == target or (event and column.name == event):
            continue
        guess = _guess(column)
        if isinstance(guess, str):
            left_out.append(f"{column.name or 'a column without a name'}: left out, {guess}")
        else:
            columns[column.name] = _with_trend(guess, column, goal, labels)
            notes += _doubts(column, guess, cells[target])
    if not columns:
        raise PlanError(f"no column to predict {target!r} from: {'; '.join(left_out)}")
    notes += _perhaps_codes([cells[c] for c, guess in columns.items() if guess.type == "number"])
    reference = _reference(file, len(frame), cells[target].num_filled, labelled, evaluate)
    plan = Plan(
        format=1,
        name=name,
        target=goal,
        columns=columns,
        reference=reference,
        **new_sections("network" if vectors else ""),  # the other learners are for single numbers
    )
    return Draft(plan, (*left_out, *notes, *_to_fill_in(plan)))


def new_sections(learner: str = "") -> dict[str, Any]:
    """Return what a new plan says of sites, pool and rules."""
    return {
        "learner": Learner(name=learner or LEARNER, split=SPLIT),
        "gate": GATE,
        "pool": Pool(own=learner or LEARNER),
        "rules": Rules(max_weight=MAX_WEIGHT),
    }


def study_name(text: str) -> str:
    """Make a name that a plan may have, from any text.

    Examples:
        >>> study_name("Herz (Basel), 2024")
        'Herz -Basel-- 2024'
    """
    return re.sub(r"[^A-Za-z0-9 ._-]", "-", text).strip(" ._-")[:64] or "study"


def round_outward(least: float, greatest: float) -> tuple[float, float]:
    """Return a range with round ends around two different numbers.

    Examples:
        >>> round_outward(29.0, 77.0), round_outward(0.013, 0.97)
        ((20.0, 80.0), (0.0, 1.0))
    """
    exponent = math.floor(math.log10(greatest - least)) if greatest - least < math.inf else 308
    step = 10.0 ** max(exponent, -307)  # Numerics: a smaller one may be 0
    low = round(math.floor(least / step) * step, max(-exponent, 0))
    high = round(math.ceil(greatest / step) * step, max(-exponent, 0))
    # Numerics: a step may be too small for the numbers, or the end too large for a float.
    return (
        low if math.isfinite(low) and low <= least else least,
        high if math.isfinite(high) and high >= greatest else greatest,
    )


def _words(column: Cells) -> list[str]:
    """The different values, in the order of a reader: A2 before A10."""

    def natural(word: str) -> list[tuple[bool, int, str]]:
        parts = re.split(r"([0-9]+)", word)
        return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]

    return sorted(column.counts, key=natural)


def _codes(column: Cells) -> list[str] | None:
    """The different values if all are whole numbers; 1.0 is another way to write 1."""
    values = {word.removesuffix(".0") for word in column.counts}
    whole = all(_WHOLE.fullmatch(value) for value in values)
    return sorted(values, key=int) if whole else None


def _num_readable(column: Cells) -> int:
    return int(np.isfinite(column.numbers).sum())


def _is_number(column: Cells) -> bool:
    """True if most cells are numbers; the others may be marks for a missing value."""
    return 2 * _num_readable(column) > column.num_filled


def _by_row(column: Cells) -> list[str]:
    """The text of each row."""
    texts, places = column.distinct
    return [texts[place] for place in places]


def _guess(column: Cells) -> Number | Category | str:
    """What a column is, or why it is left out."""
    distinct = _words(column)
    if not column.name:
        return "it has no name"
    if len(distinct) < 2:
        return "the same in every row" if distinct else "it has no value"
    if unseen := _unseen(column):
        return unseen
    missing: Missing = "flag" if column.num_filled < len(column.series) else "impute"
    if _is_number(column):
        codes = _codes(column)
        if codes is not None and len(codes) < 2:  # 1 and 1.0
            return "the same in every row"
        if codes is not None and len(codes) <= _MAX_CODES:
            return Category(type="category", categories=tuple(codes), missing=missing)
        if _is_counter(column):
            return "it numbers the rows"
        readable = column.numbers[np.isfinite(column.numbers)]
        if np.abs(readable).max() > LARGEST / 100:  # its range is wider than its values
            return "its numbers are too large for a plan"
        return Number(type="number", range=_range(column), missing=missing)
    if len(distinct) == column.num_filled:
        return "all its words differ, as names, identifiers and dates do"
    if len(distinct) > MAX_CATEGORIES:
        return f"{len(distinct)} different words are too many for a category"
    return Category(type="category", categories=tuple(distinct), missing=missing)


def _with_trend(
    guess: Number | Category, column: Cells, goal: Target, labels: Cells
) -> Number | Category:
    """A number with its correlation with the target, or the second class; one digit will do."""
    if not isinstance(guess, Number) or labels.num_filled < MIN_TOLD or len(goal.classes or ()) > 2:
        return guess
    if goal.event:  # a correlation with times would be one with censoring, too
        return guess
    trend = round(correlate(column.numbers, _second(goal, labels)), 1)
    return guess.model_copy(update={"trend": trend}) if abs(trend) >= MIN_TREND else guess


def _second(goal: Target, labels: Cells) -> NDArray[np.float64]:
    """The target as a number: 0 and 1 for two classes."""
    if goal.classes is None:
        return labels.numbers
    codes = dict(zip(goal.classes, (0.0, 1.0), strict=True))
    # Of numbers 1 and 1.0 are the same class.
    words = (word if word in codes else word.removesuffix(".0") for word in _by_row(labels))
    return np.array([codes.get(word, np.nan) for word in words])


def _with_share(goal: Target, labels: Cells) -> Target:
    """Two classes with the share of the second, in hundredths, where it says something."""
    if len(goal.classes or ()) != 2 or labels.num_filled < MIN_TOLD:
        return goal
    share = round(float(np.nanmean(_second(goal, labels))), 2)
    return goal.model_copy(update={"share": min(max(share, 0.01), 0.99)})


def _unseen(column: Cells) -> str:
    """Why a plan cannot have the column's name, or its words if they are categories."""
    few = not _is_number(column) and len(_words(column)) <= MAX_CATEGORIES
    try:
        require_printable(column.name)
        for word in _words(column) if few else ():
            require_printable(word)
    except TextError as error:
        return f"its name, or a word in it, {error}"
    return ""


def _range(column: Cells) -> tuple[float, float] | None:
    """Half as wide again on both sides, but for a sign that no value has."""
    least, greatest = float(np.nanmin(column.numbers)), float(np.nanmax(column.numbers))
    if not least < greatest:
        return None
    room = ROOM * greatest - ROOM * least  # Numerics: their difference may be infinite
    low = max(least - room, 0.0) if least >= 0 else least - room
    high = min(greatest + room, 0.0) if greatest <= 0 else greatest + room
    ends = (low if math.isfinite(low) else least, high if math.isfinite(high) else greatest)
    return round_outward(*ends)


def _is_counter(column: Cells) -> bool:
    """Whether the numbers go up by one from row to row."""
    return len(column.series) > _MAX_CODES + 1 and bool((np.diff(column.numbers) == 1).all())


def _target(cells: Cells) -> tuple[Target, list[str]]:
    codes = _codes(cells)
    distinct = codes or _words(cells)
    if len(distinct) < 2:
        what = "is the same in every row" if distinct else "has no labels"
        raise PlanError(f"the target {cells.name!r} {what}")
    if unseen := _unseen(cells):
        raise PlanError(f"the target {cells.name!r}: {unseen}")
    few = codes is not None and len(distinct) <= _MAX_NUMBER_CLASSES
    if _is_number(cells) and not few:
        doubt = _unreadable(cells)
        return Target(name=cells.name, task="regression"), [doubt] if doubt else []
    if len(distinct) > MAX_CLASSES:
        raise PlanError(
            f"the target {cells.name!r} has {len(distinct)} different words: too many for classes"
        )
    notes = []
    if few and len(distinct) > _MAX_CODES:
        notes.append(
            f"{cells.name}: taken for {len(distinct)} classes; if it is a quantity, set "
            'task = "regression" and delete the line of classes'
        )
    return Target(name=cells.name, task="classification", classes=tuple(distinct)), notes


_EVENT_WORDS = frozenset({"dead", "death", "deceased", "died", "event", "true", "yes", "y"})


def _survival(
    times: Cells,
    events: Cells | None,
    frame: pd.DataFrame,
    name: str,
    unlabelled: Unlabelled | None,
) -> tuple[Cells, Target, list[str]]:
    """The times of rows of which the event is known, what the target is, and what to look at."""
    if unlabelled is not None:
        raise PlanError(
            "--classes, --centre and --scale are for targets without --event. A time to an event "
            'without any label is written by hand: [target] with task = "survival", times and '
            "codes"
        )
    if events is None:
        raise PlanError(f"--event: {no_such('column', name, map(str, frame.columns))}")
    codes = _codes(events) or _words(events)
    if len(codes) != 2:
        raise PlanError(
            f"--event {name}: has {len(codes)} different values, and must have two: one for rows "
            "last seen without the event, one for the event"
        )
    # Numbers stay in their order: 0 and 1, and 1 and 2, both have the event last.
    codes = sorted(codes, key=lambda word: word.strip().casefold() in _EVENT_WORDS)
    words = dict(zip(codes, (False, True), strict=True))
    plain = [w if w in words else w.removesuffix(".0") for w in _by_row(events)]
    happened = np.array([words.get(word, False) for word in plain])
    known = np.array([word != "" for word in _by_row(events)])
    if bool((times.numbers < 0).any()):
        raise PlanError(f"the target {times.name!r} has negative times")
    ends = interval_ends(times.numbers[happened & np.isfinite(times.numbers)])
    if len(ends) < 2:
        raise PlanError(f"the target {times.name!r} has too few events for intervals")
    labels = Cells(times.name, times.series.where(known))
    goal = Target(
        name=times.name, task="survival", event=name, codes=(codes[0], codes[1]), times=ends
    )
    note = (
        f"{name}: {codes[1]!r} is taken for the event, {codes[0]!r} for none; intervals end at "
        f"{', '.join(f'{end:g}' for end in ends)}: choose times that mean something, and as the "
        "last the horizon that matters"
    )
    return labels, goal, [note]


def interval_ends(times: NDArray[np.float64]) -> tuple[float, ...]:
    """Return ends of at most ten intervals with about equally many events, to two digits.

    Examples:
        >>> interval_ends(np.arange(1.0, 401.0))
        (39.0, 77.0, 110.0, 150.0, 190.0, 230.0, 270.0, 300.0, 340.0, 380.0)
    """
    num = min(_MAX_INTERVALS, len(times) // _EVENTS_OF_INTERVAL)
    if not num:
        return ()
    ends = np.quantile(times, _COVERED * np.arange(1, num + 1) / num)
    rounded = sorted({float(f"{end:.2g}") for end in ends.tolist()})
    return tuple(end for end in rounded if end > 0)


def _untold(cells: Cells, unlabelled: Unlabelled) -> tuple[Target, list[str]]:
    """The target as its author says it is."""
    if cells.num_filled:
        raise PlanError(
            f"{cells.num_filled} rows have a label in {cells.name!r}: leave out --classes, "
            "--centre and --scale, which are for rows without any"
        )
    return unlabelled.target(cells.name), []


def _reference(
    file: str, num_rows: int, num_labels: int, labelled: int | None, evaluate: int | None
) -> Reference:
    if evaluate is None:
        evaluate = math.floor(EVALUATE_FRACTION * num_labels) if labelled is None else 0
        if evaluate < Rules().min_labels_to_judge:
            evaluate = 0
    if labelled is None:
        labelled = max(num_labels - evaluate, 0)
    if min(labelled, evaluate) < 0 or labelled + evaluate > num_labels:
        raise PlanError(
            f"{labelled} labelled and {evaluate} evaluation rows do not fit the {num_labels} labels"
        )
    return Reference(
        file=file,
        labelled=labelled,
        evaluate=evaluate,
        unlabelled=num_rows - labelled - evaluate,
    )


def _doubts(column: Cells, guess: Number | Category, target: Cells) -> list[str]:
    """What may be wrong with a guess."""
    doubts = []
    if isinstance(guess, Number) and (doubt := _unreadable(column)):
        doubts.append(doubt)
    if isinstance(guess, Category):
        marks = [word for word in guess.categories if word.lower() in _MARKERS]
        doubts += [
            f"{column.name}: {mark!r} became a category; if it means missing, leave the cells empty"
            for mark in marks
        ]
    correlation = abs(correlate(column.numbers, target.numbers))
    if correlation > _SUSPICIOUS:
        doubts.append(
            f"{column.name}: follows the target (correlation {correlation:.2f}); delete its line "
            "if it is not known when a prediction is made"
        )
    return doubts


def _perhaps_codes(columns: Iterable[Cells]) -> list[str]:
    """One note on all numbers that may stand for words."""
    names = [
        column.name
        for column in columns
        if (codes := _codes(column)) is not None and len(codes) <= _MAX_NUMBER_CLASSES
    ]
    if not names:
        return []
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return [
        f"{', '.join(names[:_MAX_LISTED])}{more}: few whole numbers; if they are codes and no "
        'quantities, make them type = "category"'
    ]


def _unreadable(column: Cells) -> str:
    count = column.num_filled - _num_readable(column)
    if not count:
        return ""
    cells = "1 cell is no number" if count == 1 else f"{count} cells are no numbers"
    return f"{column.name}: {cells}; if this means missing, leave them empty"


def _to_fill_in(plan: Plan) -> list[str]:
    reference = plan.reference
    if reference.evaluate:
        scores = "labels of evaluate rows are opened only to score"
    elif reference.labelled:
        scores = "too few labels to set some aside, so scores are cross-fitted"
    else:
        scores = "nothing is tuned, and sites score the model on rows of their own"
    notes = [
        f"reference rows: {reference.labelled} labelled, {reference.evaluate} evaluate, "
        f"{reference.unlabelled} unlabelled; {scores}",
    ]
    if any(isinstance(column, Number) for column in plan.columns.values()):
        notes.append(
            "ranges are twice as wide as what this table shows; at sites few values beyond are "
            "clipped, many are an error"
        )
        notes.append("fill in the unit of each number")
    if "unit" in plan.target.allowed:
        notes.append(f"fill in the unit of {plan.target.name}")
    if plan.target.share is not None or any(_trend(c) for c in plan.columns.values()):
        notes.append(
            "share and trend tell sites how labels are, so that they notice swapped classes; "
            "delete them if sites must not know"
        )
    notes.append("fill in source, licence and legal_basis of the reference rows")
    return notes


def _trend(column: Column) -> float | None:
    return column.trend if isinstance(column, Number) else None
