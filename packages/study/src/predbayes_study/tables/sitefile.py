"""The site's own file, `site.toml`: how its table becomes one in the plan's columns and units.

    name = "Basel"                 as admitted to the study
    key = "Basel.key"              its private key, beside this file
    patient = "Pat.-Nr."           rows of one patient are all trained on or all held out
    table = "cardiology"           by which its book knows the rows; empty: all tables here are one
    audit = "audit.jsonl"          its audit log, beside this file or elsewhere
    officer = "predbayes-ed25519 …"  whose signed approvals alone count
    allow_networks = ["hearts"]    networks of the consortium's own that may run here, by name
    policy = "policy.toml"         floors that no plan can lower; or a section [policy]
    [file]                         delimiter, decimal, encoding, lines above the names
    [missing]                      codes that mean "missing" in every column
    [columns]                      one line for each column of the plan that needs one
    [target]                       the same keys, for what is predicted

    chol = { column = "Cholesterin", factor = 38.67, missing = ["0"] }
    sex = { column = "Geschlecht", recode = { m = "male", w = "female" } }
    crp = { limit = "half" }       <5 becomes 2.5
    age = { column = "Geburtstag", date = "%d.%m.%Y", until = "Aufnahme" }
    confirmed = true               under [target]: it is the right way round, whatever check says
    scan = { file = "scans.npy" }  vectors; see `vectorcells`

A column without an entry has the plan's name and is taken as it is. This is the form of the file
alone, so it loads without torch and pandas; `mapping` applies it to a table.
"""

from __future__ import annotations

import codecs
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    model_validator,
)

from predbayes.errors import PlanError
from predbayes.exchange.strict import Finite, SiteName
from predbayes_study.plan.schema import (
    MOST_MEMORY,
    Names,
    Plan,
    Positive,
    Section,
    decode,
    read_text,
)

SITE_FILE = "site.toml"


def _text(value: Any) -> Any:
    """A code may be written as a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.15g}" if is_number else value


def _codes(values: Any) -> Any:
    return tuple(map(_text, values)) if isinstance(values, list) else values


def _words(values: Any) -> Any:
    """Errors in a recode name the whole of it: its keys are cells."""
    if not isinstance(values, Mapping):
        raise ValueError('must be a table such as { m = "male" }')
    changed = {key: _text(value) for key, value in values.items()}
    if not all(isinstance(value, str) for value in changed.values()):
        raise ValueError("every word must become a word or a number")
    return changed


def _known_encoding(name: str) -> str:
    try:
        codecs.lookup(name)
    except LookupError as error:
        raise ValueError('no such encoding; there are "utf-8", "cp1252", "latin-1"') from error
    return name


def _not_zero(value: float) -> float:
    if not value:
        raise ValueError("must not be 0: every value would be the same")
    return value


Codes = Annotated[tuple[str, ...], BeforeValidator(_codes)]


class FileForm(Section):
    """How the site's program writes tables."""

    besides: ClassVar[Mapping[str, str]] = {"delimiter": "\t"}
    delimiter: Annotated[str, Field(pattern=r'^[^\r\n"]$')] = ","
    decimal: Literal[".", ","] = "."
    encoding: Annotated[str, AfterValidator(_known_encoding)] = "utf-8"
    skip: Annotated[int, Field(ge=0, le=100)] = 0  # lines above the names of the columns


class MissingCodes(Section):
    """What means "missing" in every column."""

    codes: Codes = ()


class SiteColumn(Section):
    """How one column of the site becomes one of the plan."""

    column: str = ""  # the site's name; empty is the plan's
    factor: Annotated[Finite, AfterValidator(_not_zero)] = 1.0  # value in the plan's unit is
    offset: Finite = 0.0  # value * factor + offset
    recode: Annotated[dict[str, str], BeforeValidator(_words)] = Field(default_factory=dict)
    missing: Codes = ()
    # What a cell such as <5 or >100 becomes: an error, the number, half of it if <, an empty cell.
    limit: Literal["refuse", "value", "half", "missing"] = "refuse"
    date: str = ""  # how days are written, such as "%d.%m.%Y"; the number is the time from there
    until: str = ""  # to the day in this column, or to this day, such as 2024-12-31
    file: str = ""  # of vectors: where they are, relative to the table
    confirmed: bool = False  # of the target: somebody looked, and it is the right way round

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.date) != bool(self.until):
            raise ValueError(
                'date and until go together, such as date = "%d.%m.%Y", until = "2024-12-31"'
            )
        return self


class Policy(Section):
    """Floors that no plan can lower; see `study.site.policy`."""

    kinds: Names | None = None  # that may leave; None: all
    sealed: bool = False  # whether plans need masked totals, and `kinds` must name what else leaves
    release: Literal["automatic", "manual"] = "automatic"  # manual: plan and upload need approval
    min_cell: Annotated[int, Field(gt=0)] = 1  # least `rules.min_cell`
    min_evaluated: Annotated[int, Field(gt=0)] = 1  # rows of an evaluation
    learners: Names = ()  # that may be fitted; empty: all
    max_near: Annotated[int, Field(ge=0)] | None = None  # reference rows near the site's rows;
    # None: as many as chance explains
    max_membership_auc: Annotated[Finite, Field(gt=0.5, le=1)] | None = None  # in what leaves
    max_epsilon: Annotated[Finite, Field(gt=0)] | None = None  # of all releases of a table together
    max_delta: Annotated[Finite, Field(gt=0, le=1e-3)] = 1e-5  # of that epsilon
    software: Literal["warn", "refuse"] = "warn"  # where predbayes is not the plan's, or unknown
    max_memory: Positive = MOST_MEMORY  # GB
    max_hours: Positive = 168.0  # of one training; a network that was stopped can go on


def _policy_kind(value: object) -> str:
    return "path" if isinstance(value, str) else "section"


class SiteFile(Section):
    """What a site says of its own table."""

    format: Literal[1]
    name: SiteName
    patient: str = ""  # the column that says whose row it is: nobody is trained on and held out
    table: str = ""  # by which the site's book knows it; empty: all tables here are one
    key: str = ""  # path of the private key, relative to this file; empty is NAME.key
    audit: str = ""  # path of the log, relative to this file; other books are beside it
    officer: Annotated[str, Field(pattern=r"^$|^predbayes-ed25519 [0-9a-f]{64}$")] = ""  # the
    # first line of the officer's .pub; then approvals without that key do not count
    allow_networks: Names = ()  # code of others that may run here, if a plan names it
    policy: Annotated[
        Annotated[str, Tag("path")] | Annotated[Policy, Tag("section")],
        Discriminator(_policy_kind),
    ] = ""  # floors that no plan can lower, or the path of a file that has them
    file: FileForm = FileForm()
    missing: MissingCodes = MissingCodes()
    columns: dict[str, SiteColumn] = Field(default_factory=dict)
    target: SiteColumn = SiteColumn()
    _folder: Path = PrivateAttr(default_factory=Path)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(entry.confirmed for entry in self.columns.values()):
            raise ValueError("confirmed is a key of [target] alone")
        return self

    @property
    def folder(self) -> Path:
        """The folder of the file."""
        return self._folder

    @property
    def books(self) -> Path:
        """The folder of what commands and nodes note: where the audit log is."""
        return (self.folder / self.audit).parent if self.audit else self.folder

    @property
    def key_path(self) -> Path:
        """The path of the private key."""
        return self.folder / (self.key or f"{self.name}.key")

    @property
    def officer_key(self) -> str:
        """The officer's public key as hexadecimal digits; empty if no approval need be signed."""
        return self.officer.rpartition(" ")[2]

    @classmethod
    def load(cls, path: Path) -> SiteFile:
        """Read and check a site's file; everything that is wrong is said at once."""
        loaded = cls.loads(read_text(path), path.name)
        loaded._folder = path.parent
        return loaded

    @classmethod
    def loads(cls, text: str, name: str = SITE_FILE) -> SiteFile:
        """Read a site's file from its text."""
        _require_toml(text, name)
        return decode(cls, text, name, whole="top level")

    def entry(self, plan: Plan, name: str) -> SiteColumn:
        """Return the entry of the plan's column, or of its target, with its `column` filled in."""
        entry = self.target if name == plan.target.name else self.columns.get(name, SiteColumn())
        return entry if entry.column else entry.model_copy(update={"column": name})


def _require_toml(text: str, name: str) -> None:
    """Say where TOML is broken, and not what is there: it may be a cell."""
    try:
        tomllib.loads(text.replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        place = re.search(r"at line \d+|at end of document", str(error))
        raise PlanError(
            f"{name} is not TOML {place.group() if place else ''}: look for a quotation mark, a "
            "comma or a bracket too many or too few, or a key that is there twice"
        ) from None
