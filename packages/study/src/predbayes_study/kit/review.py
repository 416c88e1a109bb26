"""Everything that is wrong with a plan, or unwise, at once and before anybody has to approve it.

An error makes the study impossible; a warning says what it will not be able to do, or what will go
wrong at a site. Thresholds are rules of thumb, each with its reason beside it. Extras add rules for
their sections, and a task says what it doubts of labels.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from predbayes.errors import DataError, MissingPackageError, PlanError, no_such
from predbayes.learning.gate import MIN_ROWS
from predbayes.learning.named import AUTO
from predbayes.predictive.selection import MIN_LABELS
from predbayes.seeding import generator
from predbayes_study.payload import payload_of, upload_bytes
from predbayes_study.plan.networks import Installed, require_agreed
from predbayes_study.plan.schema import MOST_MEMORY, FrozenNetwork, Number, Plan
from predbayes_study.plan.sizes import step_problems, training_gigabytes
from predbayes_study.rules import Finding, Rule, errors_of, findings
from predbayes_study.tables.coding import Examined, code_targets, examine, target_problems
from predbayes_study.tables.reading import read_reference
from predbayes_study.tables.vectors import with_vectors
from predbayes_study.tasks import task_of
from predbayes_study.wording import bytes_readable

MIN_INPUTS = 200
INPUTS_PER_COLUMN = 10
"""The student sees nothing but the reference inputs: with fewer than ten for each of its own inputs
not even a linear function of them is determined well."""

MAX_WORDS = 50
"""Each category is an input of the network, and a small site has hardly a row of each."""

MAX_LISTED = 8
"""Names in one finding."""

LARGE_BYTES = 100_000_000
"""A file that no mailbox takes: somebody has to carry it."""

FLOWER_BYTES = 300_000_000
"""The largest upload that was tried over Flower and passed without trouble."""

FLOWER_MEMORY = 3
"""Of a Flower server, in uploads, for each upload that it is pulling."""


@dataclass(frozen=True)  # without slots, where what is read is kept
class Review:
    """What is reviewed: a plan, and the table of its reference rows, which is read once.

    Args:
        plan: A draft, or a frozen plan, of which no labels are looked for.
        folder: Folder of the plan: the path of the reference rows is relative to it.
        network: What freezing found of a network of the consortium's own; nothing is imported.
        today: Day to compare the deadline with.
    """

    plan: Plan
    folder: Path
    network: FrozenNetwork | None = None
    today: datetime.date = field(default_factory=datetime.date.today)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The table; sums need none."""
        if not self.plan.reference.num_rows and not payload_of(self.plan).predicts:
            return pd.DataFrame(columns=list(self.plan.columns), dtype=object)
        path = self.folder / self.plan.reference_file
        return with_vectors(self.plan, read_reference(path), path)

    @cached_property
    def unreadable(self) -> str:
        """Why there is no table; empty if there is one."""
        try:
            self.frame  # noqa: B018  # read, or refused
        except (DataError, MissingPackageError) as refused:
            return str(refused)
        return ""

    @cached_property
    def examined(self) -> Examined:
        """The table's codes and vectors, and what is wrong with it."""
        return examine(self.plan, self.frame)

    @cached_property
    def label_problems(self) -> tuple[str, ...]:
        """What is wrong with labels, where the plan needs any or the table has some."""
        needed = self.plan.target.name in self.frame.columns or self.num_labels
        if self.plan.frozen is not None or not needed:
            return ()
        return tuple(map(str, target_problems(self.plan, self.frame)))

    @cached_property
    def targets(self) -> Tensor:
        """The labels of a draft's table that are known."""
        if self.plan.target.name not in self.frame.columns or self.plan.frozen is not None:
            return torch.zeros(0)
        targets = code_targets(self.plan, self.frame)
        return targets[~targets.isnan()]

    @property
    def num_labels(self) -> int:
        """Rows that are to have labels."""
        return self.plan.reference.labelled + self.plan.reference.evaluate

    @property
    def size(self) -> int:
        """Bytes that a site sends."""
        return upload_bytes(self.plan)

    @property
    def size_in_words(self) -> str:
        """What a site sends, and how large it is."""
        return f"{self.plan.sent} are {bytes_readable(self.size, places=0)} for each site"

    @property
    def cannot_choose(self) -> bool:
        """True if the pool is to be chosen, and there are too few labels to choose by."""
        few = self.plan.reference.labelled < MIN_LABELS
        return self.plan.pool.method == "auto" and few and payload_of(self.plan).predicts


def check(review: Review) -> list[Finding]:
    """Find all that is wrong with a plan or unwise, errors first."""
    plan = review.plan
    found = list(findings((*RULES, *plan.rules_of("review")), review))
    if plan.reference_file and (plan.reference.num_rows or payload_of(plan).predicts):
        if review.unreadable:
            found.append(
                Finding("error", f"reference.file: {review.unreadable}", key="reference.file")
            )
        else:
            found += findings(TABLE_RULES, review)
            if not review.label_problems and len(review.targets):
                doubts = task_of(plan).label_doubts(plan, review.targets)
                found += (replace(doubt, key="target") for doubt in doubts)
    return sorted(found, key=lambda finding: finding.severity)


class UnsoundPlanError(PlanError):
    """A plan cannot be frozen, because of these errors."""

    def __init__(self, errors: Sequence[Finding]) -> None:
        super().__init__(f"the plan cannot be frozen: {'; '.join(e.text for e in errors)}")
        self.errors = errors


def require_sound(review: Review) -> None:
    """Refuse to freeze a plan that has errors, or whose reference rows have."""
    if review.plan.frozen is not None:
        raise PlanError("the plan is frozen already; freeze the draft")
    if errors := errors_of(check(review)):
        raise UnsoundPlanError(errors)


# What a plan says


def _unstated(review: Review) -> Iterator[str]:
    reference = review.plan.reference
    needed = {
        "source": reference.source,
        "licence": reference.licence,
        "legal_basis": reference.legal_basis,
    }
    empty = [name for name, text in needed.items() if not text.strip()]
    if empty and reference.num_rows:
        yield ", ".join(empty)


def _unitless(review: Review) -> Iterator[str]:
    plan = review.plan
    if plan.frozen is not None:
        return
    named = {**plan.columns, plan.target.name: plan.column(plan.target.name)}
    bare = [name for name, c in named.items() if isinstance(c, Number) and not c.unit.strip()]
    if bare:
        more = f" and {len(bare) - MAX_LISTED} more" if len(bare) > MAX_LISTED else ""
        yield ", ".join(bare[:MAX_LISTED]) + more


def _network(review: Review) -> Installed | str:
    """The consortium's own network, or why it is not there; it is not imported."""
    plan = review.plan
    try:
        return require_agreed(plan) if plan.frozen else Installed.find(plan.model.module)
    except PlanError as refused:
        return str(refused)


def _no_network(review: Review) -> Iterator[str]:
    if review.plan.model.module and isinstance(found := _network(review), str):
        yield found


def _code(review: Review) -> Iterator[Installed]:
    if review.plan.model.module and isinstance(found := _network(review), Installed):
        yield found


def _few_inputs(review: Review) -> Iterator[int]:
    """How many rows would do to distil from."""
    plan = review.plan
    enough = max(MIN_INPUTS, INPUTS_PER_COLUMN * plan.num_inputs)
    num_distil = plan.reference.labelled + plan.reference.unlabelled
    if plan.reference.num_rows and num_distil < enough and payload_of(plan).predicts:
        yield enough


def _too_much_memory(review: Review) -> Iterator[float]:
    needed = training_gigabytes(review.plan, "network", 1, review.network)
    if needed > MOST_MEMORY:
        yield needed


def _few_scored(review: Review) -> Iterator[str]:
    plan = review.plan
    num_scored = plan.reference.evaluate or plan.reference.labelled
    if num_scored < plan.rules.min_labels_to_judge:
        yield (
            f"scores rest on {num_scored} labels, below min_labels_to_judge = "
            f"{plan.rules.min_labels_to_judge}: the report will not judge calibration"
            f"{task_of(plan).by_chance(num_scored)}"
        )


def _unscaled_target(review: Review) -> bool:
    plan = review.plan
    given = plan.target.centre is not None and plan.target.scale is not None
    return task_of(plan).is_scaled and not plan.reference.labelled and not given


def _unknown_own(review: Review) -> Iterator[str]:
    known = [AUTO, *review.plan.learner_names, "none"]
    if review.plan.pool.own not in known:
        yield no_such("own learner", review.plan.pool.own, known)


def _no_holdout(review: Review) -> bool:
    return review.plan.learner.holdout == 0


def _many_words(review: Review) -> Iterator[str]:
    for name, column in review.plan.columns.items():
        if len(column.words) > MAX_WORDS:
            yield (
                f"{name}: {len(column.words)} categories are as many network inputs; name "
                "the frequent ones and leave the rest to other"
            )


_NO_HOLDOUT = (
    "with holdout = 0 no site can compare the result with its own model, and two uploads, with and "
    "without a person, differ by that person alone; hold some rows out, or say in holdout_reason "
    "why not"
)

RULES = (
    Rule[Review](
        "reference",
        "error",
        _unstated,
        "fill in {found}: sites will hold these rows and must know why they may",
    ),
    Rule[Review]("reference", "warning", lambda review: review.plan.cautions),
    Rule[Review](
        "description",
        "warning",
        lambda review: review.plan.frozen is None and not review.plan.description.strip(),
        "is empty; say what the model is for: the model card prints it as its intended use",
    ),
    Rule[Review](
        "unit",
        "warning",
        _unitless,
        'is empty for {found}; sites must know in what they give each number. Write unit = "1" for '
        "one that has none",
    ),
    Rule[Review]("model.module", "error", _no_network),
    Rule[Review](
        "model.module",
        "warning",
        _code,
        "{found.entry.name} of {found.distribution} {found.version} is code: every site must "
        "install it, and allow it in its site.toml",
    ),
    Rule[Review](
        "reference",
        "error",
        lambda review: not review.plan.reference.num_rows and payload_of(review.plan).predicts,
        "there are no reference rows; give their counts",
    ),
    Rule[Review](
        "reference.unlabelled",
        "warning",
        _few_inputs,
        "the rows to distil from are few for {asked.plan.num_inputs} network inputs; the model "
        "that comes back may be worse than the pool. {found} would do, and they need no labels",
    ),
    Rule[Review](
        "upload.max_bytes",
        "error",
        lambda review: review.size > review.plan.upload.max_bytes,
        "{asked.size_in_words}, above max_bytes; lower the rows or the precision",
    ),
    Rule[Review](
        "upload",
        "warning",
        lambda review: (
            [bytes_readable(FLOWER_MEMORY * review.size, places=0)]
            if FLOWER_BYTES < review.size <= review.plan.upload.max_bytes
            else []
        ),
        "{asked.size_in_words}; over Flower the coordinator needs {found} of memory for each that "
        "comes at the same time: carry files",
    ),
    Rule[Review](
        "upload",
        "warning",
        lambda review: LARGE_BYTES < review.size <= min(FLOWER_BYTES, review.plan.upload.max_bytes),
        "{asked.size_in_words}, too much to mail: somebody has to carry it",
    ),
    Rule[Review]("learner", "error", lambda review: step_problems(review.plan)),
    Rule[Review](
        "learner.max_samples",
        "error",
        _too_much_memory,
        "model and upload, with max_samples = {asked.plan.learner.max_samples:,}, need "
        f"{{found:,.0f}} GB at every site, more than the {MOST_MEMORY:g} GB that a site gives "
        "unless its policy says otherwise (max_memory)",
    ),
    Rule[Review](
        "pool.method",
        "error",
        lambda review: (
            review.plan.pool.method == "beta"
            and not review.plan.reference.labelled
            and payload_of(review.plan).predicts
        ),
        "beta is tuned on labelled rows, and there are none",
    ),
    Rule[Review](
        "pool.method",
        "warning",
        lambda review: (
            ["mixture" if review.plan.gate is None else "gated mixture"]
            if review.cannot_choose
            else []
        ),
        "with {asked.plan.reference.labelled} labelled rows the pool cannot be chosen: auto means "
        f"the {{found}}, and sites cannot be screened well; at least {MIN_LABELS} are needed",
    ),
    Rule[Review](
        "gate",
        "warning",
        lambda review: review.plan.gate is not None and review.plan.pool.method != "auto",
        "the pool {asked.plan.pool.method} does not use gates; delete the section",
    ),
    Rule[Review](
        "gate",
        "warning",
        lambda review: (
            review.plan.gate is not None
            and review.plan.pool.method == "auto"
            and 0 < review.plan.reference.num_rows < MIN_ROWS
        ),
        "no site can learn a gate from {asked.plan.reference.num_rows} reference rows, which are "
        f"fewer than {MIN_ROWS}; every gate is 1, and the gated mixture is the mixture",
    ),
    Rule[Review](
        "gate",
        "warning",
        lambda review: (
            review.cannot_choose and review.plan.gate is None and review.plan.may_have("gate")
        ),
        "without labels the pool is better if sites say how dense their rows lie; add a line "
        "[gate] to ask them",
    ),
    Rule[Review](
        "target",
        "error",
        _unscaled_target,
        "its centre and scale come from labelled rows, and there are none; add some, or write "
        "centre and scale into the plan",
    ),
    Rule[Review]("rules.min_labels_to_judge", "warning", _few_scored),
    Rule[Review](
        "rules.deadline",
        "error",
        lambda review: (review.plan.rules.deadline or review.today) < review.today,
        "{asked.plan.rules.deadline} has passed",
    ),
    Rule[Review](
        "rules.quorum",
        "warning",
        lambda review: review.plan.rules.quorum < 2,
        "with a quorum of 1 the result may be one site's model, open to all",
    ),
    Rule[Review]("pool.own", "error", _unknown_own),
    Rule[Review](
        "learner.holdout",
        "error",
        lambda review: _no_holdout(review) and not review.plan.learner.holdout_reason,
        _NO_HOLDOUT,
    ),
    Rule[Review](
        "learner.holdout",
        "warning",
        lambda review: _no_holdout(review) and bool(review.plan.learner.holdout_reason),
        _NO_HOLDOUT,
    ),
    Rule[Review]("columns", "warning", _many_words),
    Rule[Review](
        "columns",
        "warning",
        lambda review: (
            name
            for name, column in review.plan.columns.items()
            if column.optional and column.missing == "impute"
        ),
        "{found}: optional and imputed, so the network cannot see which rows lack it; missing = "
        '"flag" tells it',
    ),
    Rule[Review](
        "reference.file",
        "error",
        lambda review: bool(review.plan.reference.num_rows and not review.plan.reference_file),
        "is empty; say where the reference rows are",
    ),
)
"""What is looked for in a plan itself."""


# What the file of the reference rows shows


def _unlearnt(review: Review) -> Iterator[str]:
    for name, column in review.plan.vectors.items():
        if column.optional and name not in review.frame.columns:
            yield name


def _constants(review: Review) -> Iterator[str]:
    plan, examined = review.plan, review.examined
    if examined.problems:
        return
    for name, values in zip(plan.columns, examined.codes.T, strict=True):
        known = values[~values.isnan()]
        if len(known) == 0:
            yield f"{name}: no reference row has a value"
        elif name in plan.vectors:
            continue  # whose codes say no more than that there is a vector
        elif len(known) > 1 and bool((known == known[0]).all()):
            yield (
                f"{name}: the same in every reference row, so the model that comes back cannot "
                "learn from it"
            )


def _repeated(review: Review) -> Iterator[int]:
    """Rows that are there twice: half of a gate learns the one, and judges the other."""
    plan, frame = review.plan, review.frame
    if review.examined.problems or plan.vectors or not set(plan.columns) <= set(frame.columns):
        return
    columns = [pd.factorize(frame[name], use_na_sentinel=False)[0] for name in plan.columns]
    rows = _Rows(columns)
    if rows.num_repeated and rows.more_than_chance:
        yield rows.num_repeated


_IN_FILE = "{asked.plan.reference_file}: {found}"

TABLE_RULES = (
    Rule[Review](
        "columns",
        "error",
        _unlearnt,
        "{found}: no reference row has it, so nothing is learnt from it: delete it",
    ),
    Rule[Review]("table", "error", lambda review: review.examined.problems, _IN_FILE),
    Rule[Review]("table", "warning", lambda review: review.examined.oddities, _IN_FILE),
    Rule[Review]("columns", "warning", _constants),
    Rule[Review](
        "reference",
        "warning",
        _repeated,
        "{found:,} rows have the same columns as an earlier one, more than chance explains; if "
        "they are copies, or visits of one patient, leave them out: gates learn them by heart, and "
        "scores seem surer than they are",
    ),
    Rule[Review](
        "reference",
        "error",
        lambda review: (
            [len(review.frame)] if review.plan.reference.num_rows > len(review.frame) else []
        ),
        "the counts add up to {asked.plan.reference.num_rows:,} rows, but "
        "{asked.plan.reference_file} has {found:,}",
    ),
    Rule[Review](
        "reference",
        "warning",
        lambda review: (
            [len(review.frame) - review.plan.reference.num_rows]
            if review.plan.reference.num_rows < len(review.frame)
            else []
        ),
        "{found:,} rows of {asked.plan.reference_file} have no role and will not be used",
    ),
    Rule[Review]("table", "error", lambda review: review.label_problems, _IN_FILE),
    Rule[Review](
        "reference.labelled",
        "error",
        lambda review: (
            [len(review.targets)]
            if review.plan.frozen is None
            and not review.label_problems
            and review.num_labels > len(review.targets)
            else []
        ),
        "{asked.num_labels:,} rows are to have labels, but {found:,} of "
        "{asked.plan.reference_file} have one in {asked.plan.target.name!r}",
    ),
)
"""What is looked for in the table of the reference rows."""


_NOT_CHANCE = 100
"""Times as many pairs of equal rows as independent columns would make are no chance."""

_LEAST_ALONE = 12
"""Of so many rows that chance leaves without an equal one, a quarter is always seen."""

_MANY_VALUES = 0.05
"""Two rows agree more rarely than this in a column of many values: about twenty, and more."""


class _Rows:
    """How many pairs of rows are equal, and whether they are by chance.

    Two rows have the same value in column j with probability c_j = sum_v p_j(v)^2. Copies are far
    more frequent than prod_j c_j, but so are equal rows where columns say nearly the same. Those
    that are equal in all columns but one then mostly differ in that one if it has many values,
    and copies never do. Without a column of many values nothing can be told.

    A cell has a random number for its value, and a row their sum, so that all columns but one are
    a difference.
    """

    def __init__(self, columns: list[np.ndarray]) -> None:
        rng = generator(0, "rows that are equal")
        cells = [torch.randint(2**62, (c.max() + 1,), generator=rng).numpy()[c] for c in columns]
        alike = [float(((np.bincount(c) / len(c)) ** 2).sum()) for c in columns]
        self._whole = np.stack(cells).sum(axis=0)
        self._sizes = np.unique(self._whole, return_counts=True)[1]
        self._by_chance = math.prod(alike) * len(self._whole) ** 2
        self._varied = [c for c, same in zip(cells, alike, strict=True) if same < _MANY_VALUES]

    @property
    def num_repeated(self) -> int:
        return len(self._whole) - len(self._sizes)

    @property
    def more_than_chance(self) -> bool:
        if self._are_copied:
            return True
        equal = _equal_pairs(self._whole)
        if equal <= _NOT_CHANCE * self._by_chance or not self._varied:
            return False
        return equal > max(_equal_pairs(self._whole - cell) for cell in self._varied) / 2

    @property
    def _are_copied(self) -> bool:
        """Whether nearly every row is there twice or more, which no dependence of columns explains.

        Of N rows that take D values, each with a chance of its own, at least N exp(-N / D) are
        alone: fewest where all values are as frequent, as x / (e^x - 1) is convex in
        x / (1 - e^-x).
        """
        expected = len(self._whole) * math.exp(-len(self._whole) / len(self._sizes))
        return expected >= _LEAST_ALONE and int((self._sizes == 1).sum()) < expected / 4


def _equal_pairs(keys: np.ndarray) -> int:
    sizes = np.unique(keys, return_counts=True)[1]
    return int((sizes * (sizes - 1)).sum())
