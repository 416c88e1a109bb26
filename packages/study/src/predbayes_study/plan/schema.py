"""The plan: all that a study agrees on before anybody trains, in one readable TOML file.

    [target]      what is predicted: classes in order, a unit and a transform, or the ends of
                  intervals in which an event may happen
    [columns]     what it is predicted from, one line each: type, unit, range, what if missing
    [reference]   rows that every party may see: where they come from, and how many in which role
    [model]       the network that everybody gets back
    [learner]     what sites fit
    [upload]      what they send
    [gate]        whether they also say how dense their rows lie at each reference row
    [pool]        how the coordinator combines it
    [rules]       quorum, deadline, and below which counts nothing is sent or said
    [measures]    which class is the event, and from which risks on something would be done
    [frozen]      written by `predbayes plan freeze`: digests of reference rows and labels,
                  the coordinator's keys

Extras add sections (`predbayes_study.extra`); `Plan.section` returns them by their class.

A plan is a draft until it is frozen. Freezing fills in centres and scales as numbers, so that no
second round is needed to normalise, and adds the digests. A plan's own digest is that of its parsed
content: line endings, comments, spaces and the order of sections change nothing. The order of
columns and classes does: it is the order of the network's inputs and outputs.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    get_args,
    get_origin,
)

from pydantic import (
    AfterValidator,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

from predbayes.errors import KeyFileError, PlanError, no_such
from predbayes.exchange.strict import Finite, Strict
from predbayes.files import open_regular
from predbayes.learning.guarantee import Guarantee
from predbayes.learning.named import (
    BY_TASK,
    tried_by_auto,
)
from predbayes_study import extra
from predbayes_study.plan.grouping import Grouping
from predbayes_study.plan.rules import RULES
from predbayes_study.rules import Rule, findings
from predbayes_study.trust.coordinator import CoordinatorPublicKey
from predbayes_study.trust.signing import PublicKey, fingerprint

if TYPE_CHECKING:
    from predbayes.learning import local


def _network_name(name: str) -> str:
    if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ValueError(
            "must be the name of an entry point of the group predbayes.networks: at most 64 "
            "letters, digits, dots, hyphens and underscores"
        )
    return name


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values) or not all(value.strip() for value in values):
        raise ValueError("must be distinct and not empty")
    return values


MAX_WEIGHT = 3.0
"""The `rules.max_weight` of a plan that does not say."""

PLAN_FILE = "plan.toml"
REFERENCE_FILE = "reference.csv"
"""The reference inputs of a frozen plan, beside it."""

VECTORS_FILE = "reference.safetensors"
"""Their vectors, if the plan has any."""

_TYPES = ("number", "category", "vector")

Positive = Annotated[Finite, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Shape = Annotated[tuple[Count, ...], Field(strict=False)]
ArrayType = Annotated[str, Field(pattern="^(float16|float32|float64|int64)$")]
Arrays = Mapping[str, Annotated[tuple[ArrayType, Shape], Field(strict=False)]]
"""Types and shapes of a network's parameters and buffers, by name."""

Names = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_distinct)]
Range = Annotated[tuple[Finite, Finite], Field(strict=False)]
Missing = Literal["refuse", "impute", "flag"]
"""What a row without a value becomes: an error, the centre, or the centre with a flag beside it."""


class Section(Strict):
    """Part of a plan, or of what is said about a study."""


class Added(Section):
    """A section that an extra adds; of it the rest of the study knows what this class says."""

    sends: ClassVar[str] = ""  # the kind of upload, where it is not predictions
    payload: ClassVar[str] = ""  # the name of what makes it, where that is not the kind's
    tasks: ClassVar[tuple[str, ...]] = ()  # that it is for; empty: all
    learners: ClassVar[tuple[str, ...]] = ()  # that sites may fit; empty: all
    excludes: ClassVar[tuple[str, ...]] = ()  # sections and keys that it does not go together with
    # How the files end by which key holders open the sum of all uploads; empty: there are none, and
    # the coordinator sees each upload.
    opening: ClassVar[str] = ""

    @property
    def promise(self) -> Guarantee | None:
        """The differential privacy of each upload."""
        return None

    def learner(self, plan: Plan, name: str) -> local.Learner | None:  # noqa: ARG002
        """Return the learner that sites fit by a name; None if the section adds none."""
        return None

    def caution(self, plan: Plan) -> str:  # noqa: ARG002
        """Return what a reader of the plan must know; empty if nothing."""
        return ""


S = TypeVar("S", bound=Section)
A = TypeVar("A", bound=Added)


# Types of columns. Each has unit, missing, optional and width, and says of its cells: the words
# that they may be (none: they are numbers), the range of these numbers, and whether it has a centre
# and a scale, which freezing writes. How cells become codes and inputs is in `tables.column`.


class Number(Section):
    """A numeric column; it enters the network as (value - centre) / scale."""

    words: ClassVar[tuple[str, ...]] = ()
    is_scaled: ClassVar[bool] = True
    type: Literal["number"]
    unit: str = ""
    range: Range | None = None  # of plausible values
    missing: Missing = "refuse"
    optional: bool = False  # whether a site may lack the column; all its rows are then missing
    centre: Finite | None = None  # None until frozen
    scale: Positive | None = None
    # Correlation with the target, or with its second class; None: the plan does not tell.
    trend: Annotated[Finite, Field(ge=-1, le=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError("range must be [least, greatest]")
        return self

    @property
    def width(self) -> int:
        """Network inputs that it takes."""
        return 1 + (self.missing == "flag")


class Category(Section):
    """A column of words; each category, and `other` if there is one, is a 0/1 input."""

    range: ClassVar[None] = None
    centre: ClassVar[None] = None
    scale: ClassVar[None] = None
    is_scaled: ClassVar[bool] = False
    type: Literal["category"]
    categories: Annotated[Names, Field(min_length=1)]
    other: bool = True  # whether words that are not in the list are one more category
    missing: Missing = "refuse"
    optional: bool = False
    unit: Literal[""] = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The words that a cell may be, in the order of their codes."""
        return self.categories

    @property
    def width(self) -> int:
        """Network inputs that it takes."""
        return len(self.categories) + self.other + (self.missing == "flag")


class Vector(Section):
    """A column whose cells are vectors of one size, such as embeddings.

    Centre and scale are of all numbers of all reference rows, so a column is one line of the plan,
    whatever its size. A number x enters the network as (x - centre) / scale.
    """

    words: ClassVar[tuple[str, ...]] = ()
    is_scaled: ClassVar[bool] = True
    type: Literal["vector"]
    size: Annotated[int, Field(gt=0, le=1_000_000)]
    unit: str = ""
    range: Range | None = None  # of plausible values
    missing: Missing = "refuse"  # of a missing vector the inputs are zeros
    optional: bool = False
    centre: Finite | None = None  # None until frozen
    scale: Positive | None = None

    @property
    def width(self) -> int:
        """Network inputs that it takes."""
        return self.size + (self.missing == "flag")


Scalar = Number | Category
Column = Annotated[Number | Category | Vector, Field(discriminator="type")]


def _rising(values: tuple[float, ...]) -> tuple[float, ...]:
    if list(values) != sorted(set(values)):
        raise ValueError("must be different times, the least first")
    return values


CENSORED_AND_EVENT = ("0", "1")

_KEYS = {
    "classification": ("classes", "share"),
    "regression": ("unit", "transform", "centre", "scale"),
    "survival": ("unit", "event", "codes", "times"),
}
_NEEDED = {"classification": ("classes",), "regression": (), "survival": ("event", "times")}


class Target(Section):
    """What is predicted."""

    name: str  # of a survival the column of the time until the event, or until last seen
    task: Literal["classification", "regression", "survival"]
    classes: Annotated[Names, Field(min_length=2)] | None = None  # in the order of the outputs
    unit: str = ""
    transform: Literal["none", "log"] = "none"  # of a regression's target, before it is scaled
    centre: Finite | None = None
    scale: Positive | None = None
    # Of the second of two classes; None: the plan does not tell.
    share: Annotated[Finite, Field(gt=0, lt=1)] | None = None
    # Of a survival: the column that says whether the event came, its words for no and yes, and the
    # ends of the intervals; the last is the horizon. Left out of other plans.
    event: str = ""
    codes: Annotated[Names, Field(min_length=2, max_length=2)] = CENSORED_AND_EVENT
    times: Annotated[
        tuple[Positive, ...],
        Field(strict=False, max_length=50),
        AfterValidator(_rising),
    ] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key, field in type(self).model_fields.items():
            is_stated = getattr(self, key) != field.default
            if is_stated and key not in self.allowed:
                raise ValueError(f"{key} is not for a {self.task}")
            if not is_stated and key in _NEEDED[self.task]:
                raise ValueError(f"a {self.task} needs {' and '.join(_NEEDED[self.task])}")
        if self.share is not None and len(self.classes or ()) != 2:
            raise ValueError("share is that of the second of two classes")
        if self.event and self.event == self.name:
            raise ValueError("time and event are two columns")
        if len(self.times) == 1:
            raise ValueError("times are two or more ends of intervals")
        return self

    @property
    def allowed(self) -> tuple[str, ...]:
        """The keys that are for this task."""
        return ("name", "task", *_KEYS[self.task])

    def as_column(self) -> Number | Category:
        """Return the form of its cells; a label may be missing."""
        if self.classes is not None:
            words = self.classes
            return Category(type="category", categories=words, other=False, missing="impute")
        column = Number(type="number", unit=self.unit, missing="impute")
        if self.transform == "log":  # its centre and scale are of logarithms
            return column
        return column.model_copy(update={"centre": self.centre, "scale": self.scale})

    def event_column(self) -> Category:
        """Return the form of the cells that say whether the event of a survival came."""
        return Category(type="category", categories=self.codes, other=False, missing="impute")


class Reference(Section):
    """Rows that every party may see, and what each is for."""

    file: str = ""  # CSV or Parquet, relative to the plan; not part of what is agreed
    source: str = ""
    licence: str = ""
    legal_basis: str = ""
    labelled: Count = 0  # the pool is tuned on them
    evaluate: Count = 0  # their labels are opened only to score
    unlabelled: Count = 0  # further inputs to distil on

    @property
    def num_rows(self) -> int:
        """Reference inputs in all."""
        return self.labelled + self.evaluate + self.unlabelled


class Model(Section):
    """The network that everybody gets back; sites that train a network train this one."""

    hidden: Annotated[tuple[Annotated[int, Field(gt=0)], ...], Field(strict=False)] = (100, 100)
    module: Annotated[str, AfterValidator(_network_name)] = ""  # one of the consortium's own, by
    # its name among the networks that installed distributions offer; see `plan.networks`.


class Learner(Section):
    """What a site fits: the plan's network, another model by its name, or one of its choice."""

    name: str = "network"  # or a name of `learner_names`, "auto", or "any"
    preset: Literal["paper", "tuned"] = "tuned"  # of the network's sampler
    num_epochs: Annotated[int, Field(gt=0)] | None = None  # as the preset has it
    min_steps: Count = 1000  # small sites pass over their rows more often
    max_samples: Annotated[int, Field(gt=0)] = 6
    threads: Annotated[int, Field(gt=0)] = 1  # with one, a run repeats to the bit
    # Of a site's rows, never trained on. With nearly all of them a plan would be of a chosen few.
    holdout: Annotated[Finite, Field(ge=0, le=0.5)] = 0.2
    holdout_reason: str = ""  # why none is held out; needed with holdout = 0
    # How they are drawn: any rows, or of each class its share, and equal rows together.
    split: Literal["any", "stratified"] = "any"


class UploadRules(Section):
    """What leaves a site."""

    precision: Literal["float16", "float32"] = "float32"
    release: Literal["automatic", "manual"] = "automatic"
    max_bytes: Annotated[int, Field(gt=0)] = 2_000_000_000
    encrypt: bool | None = None  # to the coordinator's key; None: if the plan names one


class Gate(Section):
    """Bounds of what sites say of how dense their rows lie at each reference row.

    In logarithms of the ratio of two densities: of the site's rows, and of the reference rows.
    """

    floor: Annotated[Finite, Field(ge=-20, lt=0)] = -6.0
    ceiling: Annotated[Finite, Field(gt=0, le=20)] = 3.0


class Pool(Section):
    """How uploads are combined."""

    method: Literal["auto", "beta", "mixture", "product"] = "auto"
    own: Annotated[str, Field(pattern="^[^:]*$")] = "network"  # the coordinator's own model of
    # the labelled rows, or "none"; never one by its place, which would be code
    floor: Annotated[Finite, Field(lt=0)] = -12.0  # least log p with which a site enters


class Rules(Section):
    """What holds for everybody."""

    quorum: Annotated[int, Field(gt=0)] = 2
    deadline: datetime.date | None = None
    min_cell: Annotated[int, Field(gt=0)] = 5  # smaller counts are not sent
    # With fewer to train on a site does not take part.
    min_rows: Annotated[int, Field(ge=2)] = 10
    min_labels_to_judge: Annotated[int, Field(gt=0)] = 100  # fewer cannot judge calibration
    screening: Literal["report", "leave-out"] = "report"
    retention_days: Annotated[int, Field(gt=0)] | None = None  # then uploads are to be deleted
    max_weight: Annotated[Finite, Field(ge=1)] | None = None  # most rows that a site counts for,
    # in those of the median site; None: `plan freeze` writes `MAX_WEIGHT`, where sites are weighed
    # What happens before a result that differs from an earlier one by a single site.
    differences: Literal["say", "forbid"] = "say"


def _thresholds(values: tuple[float, ...]) -> tuple[float, ...]:
    if not all(0 < value < 1 for value in values) or list(values) != sorted(set(values)):
        raise ValueError("must be risks between 0 and 1, the least first")
    return values


class Measures(Section):
    """What is asked of a classification's risks beside the measures that every study has."""

    event: str = ""  # of two classes the one whose risk is told; empty: the second
    # Risks from which on somebody would do something.
    thresholds: Annotated[
        tuple[Finite, ...], Field(strict=False, max_length=10), AfterValidator(_thresholds)
    ] = ()
    # Groups of rows by a column, for which measures are told apart; see `plan.grouping`.
    groups: Annotated[Names, Field(max_length=10)] = ()


MOST_MEMORY = 32.0
"""Gigabytes that a plan may ask of a site's computer, unless the site's policy states others."""


class FrozenNetwork(Section):
    """A network of the consortium's own, as `plan freeze` found it installed."""

    distribution: str
    version: str
    digest: Digest  # of all Python files of the distribution
    parameters: Count  # of the network that sites train
    arrays: Arrays  # of that network, by name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.parameters != count_parameters(self.arrays):
            raise ValueError("parameters are not as many as the arrays have")
        return self


class Frozen(Section):
    """What `plan freeze` adds."""

    inputs_digest: str  # of the reference inputs
    labels_digest: str  # of the labels, salted: it says nothing about them
    version: str  # of predbayes
    # Digest of the files of predbayes; empty where it was not installed from a wheel.
    software: str = ""
    # Of `model.module`.
    network: FrozenNetwork | None = None
    signing_key: str = ""  # the coordinator's Ed25519 key; empty: nothing of his is signed
    encryption_key: str = ""  # and his encryption key, in base64

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.coordinator  # noqa: B018  # sound, or refused
        except KeyFileError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def coordinator(self) -> CoordinatorPublicKey | None:
        """The coordinator's keys, if he has any."""
        if not self.signing_key and not self.encryption_key:
            return None
        return CoordinatorPublicKey(PublicKey(self.signing_key), self.encryption_key)


class Plan(Section):
    """A study agreed on beforehand."""

    besides: ClassVar[Mapping[str, str]] = {"description": "\n"}
    format: Literal[1]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
    description: str = ""
    seed: Count = 0
    target: Target
    columns: Annotated[dict[str, Column], Field(min_length=1)]
    reference: Reference
    model: Model = Model()
    learner: Learner = Learner()
    upload: UploadRules = UploadRules()
    gate: Gate | None = None  # None: sites send no gate
    pool: Pool = Pool()
    rules: Rules = Rules()
    measures: Measures | None = None
    sections: Mapping[str, SerializeAsAny[Added]] = {}  # of extras, by name
    frozen: Frozen | None = None

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        """Put the sections that extras may have under one key; misspelt ones stay, and fail."""
        if not isinstance(given, Mapping):
            return given
        own, added = cls.model_fields.keys(), {}
        for name in given.keys() - own:
            is_table = isinstance(given[name], Mapping | Section)
            known = set(extra.names("sections"))
            if is_table and (name in known or not get_close_matches(name, own | known)):
                added[name] = given[name]
        rest = {name: value for name, value in given.items() if name not in added}
        return rest | {"sections": added} if added else rest

    @field_validator("sections", mode="before")
    @classmethod
    def _read_sections(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            raise ValueError("must be a table")
        return {name: _read_section(name, section) for name, section in sorted(given.items())}

    @model_serializer(mode="wrap")
    def _spread(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the sections of extras as the others."""
        written: dict[str, Any] = dump(self)
        return {**written, **written.pop("sections", {})}

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = [found.text for found in findings((*RULES, *self.rules_of("plan")), self)]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def section(self, kind: type[A]) -> A | None:
        """Return the section of an extra; None if the plan has none of this kind."""
        return next((s for s in self.sections.values() if isinstance(s, kind)), None)

    def may_have(self, key: str) -> bool:
        """Return whether no section of an extra excludes a section or a key."""
        return not any(key in section.excludes for section in self.sections.values())

    def rules_of(self, table: str) -> Iterator[Rule[Any]]:
        """Yield the rules that the extras of the plan's sections add to a table of rules."""
        for name in self.sections:
            yield from extra.rules(table, of=name)

    @property
    def coordinator(self) -> CoordinatorPublicKey | None:
        """The keys of the coordinator, if the plan was frozen with any."""
        return None if self.frozen is None else self.frozen.coordinator

    @property
    def recipient(self) -> str:
        """The coordinator's encryption key, if what sites send is encrypted to it; else empty."""
        wanted = self.coordinator is not None and self.upload.encrypt is not False
        return self.coordinator.encryption if wanted and self.coordinator else ""

    @property
    def sent(self) -> str:
        """The kind of upload that leaves a site."""
        kinds = (section.sends for section in self.sections.values())
        return next(filter(None, kinds), "predictions")

    @property
    def payload(self) -> str:
        """The name of the payload that makes it."""
        names = (section.payload for section in self.sections.values())
        return next(filter(None, names), self.sent)

    @property
    def opening(self) -> str:
        """How files end by which key holders open the sum of all uploads; empty: none are."""
        endings = (section.opening for section in self.sections.values())
        return next(filter(None, endings), "")

    @property
    def promise(self) -> Guarantee | None:
        """What differential privacy each upload has, if any: then nothing else may leave a site."""
        promises = (section.promise for section in self.sections.values())
        return next((promise for promise in promises if promise is not None), None)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What a reader of the plan must know of its sections."""
        return tuple(filter(None, (section.caution(self) for section in self.sections.values())))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The columns that the target is read from: of a survival two, its time and its event."""
        target = self.target
        return (target.name, target.event) if target.event else (target.name,)

    @property
    def learner_names(self) -> tuple[str, ...]:
        """The models of the plan's task that can be named: in it, or by a site that may choose."""
        for section in self.sections.values():
            if section.learners:
                return section.learners
        return ("network", "small-network", *BY_TASK[self.target.task])

    @property
    def tried(self) -> tuple[str, ...]:
        """The models that `auto` chooses from, simplest first."""
        return tried_by_auto(self.target.task, self.num_outputs)

    def learner_or(self, choice: str | None) -> str:
        """Return what a site fits, of its choice or, without one, of the plan's."""
        return choice or ("network" if self.learner.name == "any" else self.learner.name)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Risks from which on somebody would do something."""
        return () if self.measures is None else self.measures.thresholds

    @property
    def groupings(self) -> tuple[Grouping, ...]:
        """Groups of rows for which measures are told apart."""
        texts = () if self.measures is None else self.measures.groups
        return tuple(Grouping.of(text, self.columns) for text in texts)

    @property
    def event_indices(self) -> tuple[int, ...]:
        """The classes whose risk is told: of two the event, of more each against the others."""
        classes = self.target.classes or ()
        if len(classes) != 2:
            return tuple(range(len(classes)))
        event = "" if self.measures is None else self.measures.event
        return (classes.index(event) if event else 1,)

    @property
    def scalars(self) -> dict[str, Scalar]:
        """The columns with one value in a cell."""
        return {name: c for name, c in self.columns.items() if not isinstance(c, Vector)}

    def require_scalars(self, doing: str) -> None:
        """Refuse a plan with vectors for what is of numbers and words alone."""
        if self.vectors:
            raise PlanError(
                f"{doing} is of numbers and categories; leave {', '.join(self.vectors)} out of the "
                "draft, and put them in before the plan is frozen"
            )

    @property
    def vectors(self) -> dict[str, Vector]:
        """The columns with a vector in a cell."""
        return {name: c for name, c in self.columns.items() if isinstance(c, Vector)}

    @property
    def blocks(self) -> dict[str, slice]:
        """The network's inputs of each column."""
        ends = list(itertools.accumulate((c.width for c in self.columns.values()), initial=0))
        return dict(
            zip(self.columns, itertools.starmap(slice, itertools.pairwise(ends)), strict=True)
        )

    @property
    def reference_file(self) -> str:
        """The path of the reference rows, relative to the plan; empty if it does not say."""
        return self.reference.file if self.frozen is None else REFERENCE_FILE

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that a site's table has: those of the inputs, and the target."""
        return *self.columns, *self.outcomes

    def column(self, name: str) -> Number | Category | Vector:
        """Return the form of a column, or of the target."""
        if self.target.event and name == self.target.event:
            return self.target.event_column()
        return self.target.as_column() if name == self.target.name else self.columns[name]

    @property
    def num_outputs(self) -> int:
        """Classes, intervals, or 1."""
        return len(self.target.classes or self.target.times or ("",))

    @property
    def num_inputs(self) -> int:
        """Width of the network's input."""
        return sum(column.width for column in self.columns.values())

    def digest(self) -> str:
        """Return the SHA-256 of what is agreed; where the reference rows lay is not part of it.

        Keys at their defaults are left out, so a later version with more keys finds the same
        digest. All keys are sorted but those of columns, whose order is the network's: neither the
        order of a file's sections nor what is installed changes the digest.
        """
        agreed = self.model_copy(
            update={"reference": self.reference.model_copy(update={"file": ""})}
        )
        content = agreed.model_dump(mode="json", exclude_defaults=True)
        content["columns"] = list(content["columns"].items())
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The digest as words that people read to each other."""
        return fingerprint(self.digest())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read and check a plan; everything that is wrong is said at once."""
        return cls.loads(read_text(Path(path)), Path(path).name)

    @classmethod
    def loads(cls, text: str, name: str = "the plan") -> Plan:
        """Read a plan from the text of a file."""
        return decode(cls, text, name, whole="plan")


def count_parameters(arrays: Arrays) -> int:
    """Count the numbers in the parameters of a network; buffers are none."""
    shapes = (shape for name, (_, shape) in arrays.items() if name.startswith("parameter/"))
    return sum(math.prod(shape) for shape in shapes)


def read_text(path: Path) -> str:
    """Read a file of settings as text."""
    try:
        with open_regular(path) as file:
            return file.read().decode("utf-8-sig")  # some editors begin with a mark
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path.name} is not UTF-8 text: save it as such") from error


def decode(kind: type[S], text: str, name: str, whole: str) -> S:
    """Read settings from TOML; everything that is wrong is said at once, in one line.

    Args:
        kind: What the text describes.
        text: TOML.
        name: Of the file, for errors.
        whole: What a key belongs to that is in no section, for errors.
    """
    try:
        # Line endings are the editor's business.
        tables = tomllib.loads(text.replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{name} is not TOML: {error}") from error
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        raise refusal(error, kind, name, whole) from error


def refusal(error: ValidationError, kind: type[Section], name: str, whole: str) -> PlanError:
    """Return the error that says in one line all that is wrong with settings."""
    problems = "; ".join(_readable(problem, kind, whole) for problem in error.errors())
    # Names of columns may have line breaks.
    return PlanError(" ".join(f"{name}: {problems}".split()))


def _read_section(name: str, given: object) -> Added:
    """Return a section of an extra; without the extra the plan is refused."""
    kind = extra.load("sections", name)
    if kind is None:
        raise ValueError(extra.missing(name))
    if isinstance(given, kind):
        found: Added = given
        return found
    try:
        found = kind.model_validate(given)
    except ValidationError as error:
        lines = (_readable(problem, kind, name) for problem in error.errors())
        raise ValueError("; ".join(f"{name}.{line}" for line in lines)) from error
    return found


def _readable(problem: ErrorDetails, kind: type[Section], whole: str) -> str:
    """One problem in a line: where it is, what is wrong, and the nearest key that exists."""
    where = [str(part) for part in problem["loc"]]
    if where[:1] == ["columns"] and where[2:3] and where[2] in _TYPES:
        del where[2]  # which of the types it was read as
    if where[:1] == ["policy"] and where[1:2] in (["path"], ["section"]):
        del where[1]
    if where == ["sections"]:
        return problem["msg"].removeprefix("Value error, ")  # which names its section
    place = ".".join(where) or whole
    if problem["type"] == "extra_forbidden":
        known = _keys(kind, where[:-1])
        return f"{'.'.join(where[:-1]) or whole}: {no_such('key', where[-1], known)}"
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"].startswith("union_tag"):
        return f"{place}.type: must be 'number', 'category' or 'vector'"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower()}{message[1:]}"


def _keys(kind: type[Section], path: Sequence[str]) -> list[str]:
    """The keys of the section at a path."""
    kinds = [kind]
    for part in path:
        annotations = [k.model_fields[part].annotation for k in kinds if part in k.model_fields]
        kinds = [section for annotation in annotations for section in _sections(annotation)]
        if any(get_origin(annotation) is dict for annotation in annotations):
            break  # what follows is the name of an entry
    known = {name for section in kinds for name in section.model_fields}
    return sorted(known | set(extra.names("sections")) if kinds == [Plan] else known)


def _sections(annotation: Any) -> list[type[Section]]:
    """Every kind of section that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]
