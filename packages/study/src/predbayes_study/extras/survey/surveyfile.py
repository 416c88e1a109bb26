r"""The survey of a site: what it tells of its columns before there is anything to train on.

    columns    of each column of the plan: rows without a value, quantiles of a number, rows by word
               of a category; the target is one of them
    absent     columns of the plan that the site's table does not have
    moments    if the plan asks for them: sums of features of columns, and of products of two

A file is JSON that a person can read and, below it, the signature of its bytes by the site's key,
which it names. All counts are in steps of `step`, rounded down; a count that is not there (null) is
smaller than that, perhaps none, or hides one that is. `survey.take` makes one.
"""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from predbayes.exchange.strict import MAX_ROWS, Finite, RowCount, SiteName, Sparse, Strict
from predbayes.files import open_regular
from predbayes.text import is_formula
from predbayes_study.plan.schema import Digest, Plan, Positive
from predbayes_study.trust.signing import SigningKey
from predbayes_study.trust.statement import Signed, Statement

LEVELS = (1, 5, 10, 25, 50, 75, 90, 95, 99)
"""Of the quantiles that may be told, in percent."""

MAX_WORDS = 20
"""Words that the plan does not have, told of one column."""

MAX_WORD = 30
"""Letters of such a word."""

LARGEST = 1e15
"""Magnitude of a number that is told: it can be squared and added up, and is no measurement."""

MAX_BYTES = 20_000_000
"""Of a file that is looked at."""

Bounded = Annotated[Finite, Field(ge=-LARGEST, le=LARGEST)]
Counts = dict[Annotated[str, Field(max_length=MAX_WORD)], RowCount]


class Told(Strict):
    """What is told of any column."""

    missing: RowCount | None  # rows without a value


class NumberTold(Told):
    """What is told of a column of numbers, in the plan's unit."""

    type: Literal["number"] = "number"
    unit: str
    factor: Finite  # by which the site's numbers came to the unit, and
    offset: Finite
    unreadable: RowCount | None  # rows with something that is no number
    # Numbers far from all others that often mean missing, and their rows.
    codes: Annotated[Counts, Field(max_length=MAX_WORDS)]
    decimals: Annotated[int, Field(ge=0, le=6)]  # with which nearly all of them are written
    quantiles: dict[int, Bounded]  # by level in percent

    @field_validator("quantiles")
    @classmethod
    def _in_order(cls, told: dict[int, float]) -> dict[int, float]:
        rising = all(a <= b for a, b in itertools.pairwise(told.values()))
        if not rising or list(told) != sorted(told) or not set(told) <= set(LEVELS):
            raise ValueError("must be in order, and of the levels that may be told")
        return told

    @property
    def middle(self) -> float | None:
        """The median, if it is told."""
        return self.quantiles.get(50)

    @property
    def spread(self) -> float:
        """The standard deviation that a normal distribution of these quartiles has; 0: untold."""
        if not {25, 75} <= self.quantiles.keys():
            return 0.0
        return (self.quantiles[75] - self.quantiles[25]) / 1.349

    @property
    def counts(self) -> tuple[int | None, ...]:
        """All counts of rows."""
        return self.missing, self.unreadable, *self.codes.values()


class CategoryTold(Told):
    """What is told of a column of words."""

    type: Literal["category"] = "category"
    words: dict[str, RowCount | None]  # rows of each word of the plan
    # Of frequent words that the plan does not have.
    unlisted: Annotated[Counts, Field(max_length=MAX_WORDS)]
    other: RowCount | None  # of all rarer ones together

    @field_validator("unlisted")
    @classmethod
    def _run_nowhere(cls, told: dict[str, int]) -> dict[str, int]:
        # They become categories of a plan, and cells of its reference rows.
        if any(map(is_formula, told)):
            raise ValueError("a word is a formula; its site recodes it")
        return told

    @property
    def counts(self) -> tuple[int | None, ...]:
        """All counts of rows."""
        return self.missing, self.other, *self.words.values(), *self.unlisted.values()


class Feature(Strict):
    """One column of numbers of which sums are told: a value, a word, or that there is none."""

    column: str
    kind: Literal["value", "word", "missing"]
    word: str = ""
    centre: Finite = 0.0  # a value counts as (value - centre) / scale, within bounds,
    scale: Positive = 1.0  # and as 0 where it is missing


class Moments(Strict):
    """Sums over rows of features, and of products of two."""

    features: tuple[Feature, ...]
    sums: tuple[Bounded, ...]
    products: tuple[tuple[Bounded, ...], ...]  # of each feature with those up to itself

    @model_validator(mode="after")
    def _check(self) -> Self:
        num = len(self.features)
        if len(self.sums) != num or [len(row) for row in self.products] != [*range(1, num + 1)]:
            raise ValueError("must have as many sums and products as the features ask for")
        return self


class Survey(Statement):
    """What a site tells."""

    kind: Literal["survey"] = "survey"
    plan: Digest  # of the draft that it answers
    site: SiteName
    key: Digest  # that signs it
    # The head in the signed kit that it answers, which names the study; empty: it answers a draft.
    seen: Sparse[Annotated[str, Field(pattern=r"^$|^[0-9a-f]{64}$")]] = ""
    step: Annotated[int, Field(gt=0, le=MAX_ROWS)]
    rows: Annotated[int, Field(gt=0, le=MAX_ROWS)]
    columns: dict[str, Annotated[NumberTold | CategoryTold, Field(discriminator="type")]]
    absent: tuple[str, ...]
    moments: Moments | None

    @model_validator(mode="after")
    def _counts_are_of_its_rows(self) -> Self:
        # No row is in two counts, and all are rounded down to steps as the rows are: steps of parts
        # are no more than steps of the whole.
        for name, told in self.columns.items():
            if sum(count or 0 for count in told.counts) > self.rows:
                raise ValueError(f"{name} has counts of more rows than there are")
        return self

    @property
    def signer(self) -> str:
        """The site's key."""
        return self.key

    def content(self) -> bytes:
        """Return what is signed."""
        return Signed.of(self, None, indent=1).content

    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        return hashlib.sha256(self.content()).hexdigest()

    def file(self, key: SigningKey | None) -> bytes:
        """Return the file: signed, or without a key held back."""
        return Signed.of(self, key, indent=1).file()


class SurveyFile(NamedTuple):
    """A survey as it was read."""

    survey: Survey
    is_signed: bool  # with the key that it names


def read_survey(path: Path) -> SurveyFile:
    """Read a survey; one that was altered after it was signed is refused."""
    signed = Signed.read(path, Survey, MAX_BYTES)
    if not signed.signature:
        return SurveyFile(signed.statement, is_signed=False)
    return SurveyFile(signed.checked(), is_signed=True)


def is_survey(path: Path) -> bool:
    """Return whether a file begins as a survey does, and as no upload does."""
    try:
        with open_regular(path) as file:
            return begins_survey(file.read(2))
    except (OSError, ValueError):
        return False  # for whoever reads it to say


def begins_survey(content: bytes) -> bool:
    """Return the same of what the file begins with."""
    return content.startswith(b"{\n")


def misfit(plan: Plan, survey: Survey, *, of_draft: bool = False) -> str:
    """Say in what a survey does not fit the plan's columns; "" if it does.

    Of the draft that it answers it has every column, and the plan's words in their order: of two
    classes the second is the one whose share counts.
    """
    if of_draft and sorted([*survey.columns, *survey.absent]) != sorted(plan.names):
        return "each column of the plan must be told or absent, and no other"
    for name, told in survey.columns.items():
        if name not in plan.names:
            return f"it tells of {name}, which is no column of the plan"
        column = plan.column(name)
        if told.type != column.type:
            return f"{name} is told as a {told.type}, and is a {column.type}"
        if isinstance(told, NumberTold):
            if told.unit != column.unit:
                return f"{name} is told in another unit than the plan's"
            continue
        in_order = tuple(told.words) == column.words and not {*told.unlisted} & {*told.words}
        if not (in_order if of_draft else {*told.words} <= {*column.words}):
            return f"{name} is told by other words than the plan's"
    return ""
