"""Everything that is wrong with a plan, or unwise, at once and before anybody has to approve it.

An error makes the study impossible; a warning says what it will not be able to do, or what will go
wrong at a site. Thresholds are rules of thumb, each with its reason beside it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from predbayes_study import rules
from predbayes_study.plan.networks import Installed, require_agreed
from predbayes_study.plan.schema import MOST_MEMORY, Category, FrozenNetwork, Number, Plan
from predbayes_study.plan.sizes import step_problems, training_gigabytes, upload_bytes
from predbayes_study.rules import Finding, error, errors_of, warning
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

_NOT_CHANCE = 100
"""Times as many pairs of equal rows as independent columns would make are no chance."""

_LEAST_ALONE = 12
"""Of so many rows that chance leaves without an equal one, a quarter is always seen."""

_MANY_VALUES = 0.05
"""Two rows agree more rarely than this in a column of many values: about twenty, and more."""


@dataclass(frozen=True)  # without slots, where what is read is kept
class Review:
    """What is reviewed: a plan, and the table of its reference rows, which is read once."""

    plan: Plan
    folder: Path  # of the plan

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The table; sums need none."""
        if not self.plan.reference.num_rows and self.plan.sums_alone:
            return pd.DataFrame(columns=list(self.plan.columns), dtype=object)
        path = self.folder / self.plan.reference_file
        return with_vectors(self.plan, read_reference(path), path)

    @cached_property
    def examined(self) -> Examined:
        """Its codes and vectors, and what is wrong with it."""
        return examine(self.plan, self.frame)


def check(
    plan: Plan,
    folder: Path,
    *,
    network: FrozenNetwork | None = None,
    today: datetime.date | None = None,
    table: Review | None = None,
) -> list[Finding]:
    """Find all that is wrong with a plan or unwise, errors first.

    Args:
        plan: A draft, or a frozen plan, of which no labels are looked for.
        folder: Where it lies: the path of the reference rows is relative to it.
        network: What freezing found of a network of the consortium's own; nothing is imported.
        today: For the deadline; the present day.
        table: The reference rows, where they are read for something else, too.
    """
    table = table or Review(plan, folder)
    findings = [
        *_provenance(plan),
        *(warning(f"reference: {words}") for words in plan.cautions),
        *_purpose(plan),
        *_module(plan),
        *_sizes(plan),
        *map(error, step_problems(plan)),
        *_memory(plan, network),
        *_labels(plan),
        *_scores(plan),
        *_rules(plan, today or datetime.date.today()),
        *_columns(plan),
        *rules.findings(plan.rules_of("review"), table),
        *(_table(plan, table) if plan.reference.num_rows or not plan.sums_alone else ()),
    ]
    return sorted(findings, key=lambda finding: finding.severity)


class UnsoundPlanError(PlanError):
    """A plan cannot be frozen, because of these errors."""

    def __init__(self, errors: Sequence[Finding]) -> None:
        super().__init__(f"the plan cannot be frozen: {'; '.join(e.text for e in errors)}")
        self.errors = errors


def require_sound(table: Review, network: FrozenNetwork | None = None) -> None:
    """Refuse to freeze a plan that has errors, or whose reference rows have."""
    if table.plan.frozen is not None:
        raise PlanError("the plan is frozen already; freeze the draft")
    if errors := errors_of(check(table.plan, table.folder, network=network, table=table)):
        raise UnsoundPlanError(errors)


def _module(plan: Plan) -> Iterator[Finding]:
    """Whether the consortium's own network is installed; it is not imported."""
    if not plan.model.module:
        return
    try:
        found = require_agreed(plan) if plan.frozen else Installed.find(plan.model.module)
    except PlanError as refused:
        yield error(f"model.module: {refused}")
        return
    yield warning(
        f"model.module: {found.entry.name} of {found.distribution} {found.version} is code: every "
        "site must install it, and allow it in its site.toml"
    )


def _provenance(plan: Plan) -> Iterator[Finding]:
    reference = plan.reference
    needed = {
        "source": reference.source,
        "licence": reference.licence,
        "legal_basis": reference.legal_basis,
    }
    empty = [name for name, text in needed.items() if not text.strip()]
    if empty and reference.num_rows:
        yield error(
            f"reference: fill in {', '.join(empty)}: sites will hold these rows and must know why "
            "they may"
        )


def _purpose(plan: Plan) -> Iterator[Finding]:
    """What a draft leaves for its readers to guess; of a frozen plan it is too late."""
    if plan.frozen is not None:
        return
    if not plan.description.strip():
        yield warning(
            "description: is empty; say what the model is for: the model card prints it as its "
            "intended use"
        )
    named = {**plan.columns, plan.target.name: plan.column(plan.target.name)}
    bare = [name for name, c in named.items() if isinstance(c, Number) and not c.unit.strip()]
    if bare:
        more = f" and {len(bare) - MAX_LISTED} more" if len(bare) > MAX_LISTED else ""
        yield warning(
            f"unit: is empty for {', '.join(bare[:MAX_LISTED])}{more}; sites must know in what "
            'they give each number. Write unit = "1" for one that has none'
        )


def _sizes(plan: Plan) -> Iterator[Finding]:
    num_distil = plan.reference.labelled + plan.reference.unlabelled
    enough = max(MIN_INPUTS, INPUTS_PER_COLUMN * plan.num_inputs)
    if plan.sums_alone:
        pass  # nothing is distilled
    elif not plan.reference.num_rows:
        yield error(
            "reference: there are no reference rows; give their counts, or draw rows from surveys "
            "of the sites: predbayes plan merge DRAFT SURVEY... --reference 1000"
        )
    elif num_distil < enough:
        yield warning(
            f"reference: {num_distil} rows to distil from are few for {plan.num_inputs} network "
            f"inputs; the model that comes back may be worse than the pool. {enough} would do, "
            "and they need no labels"
        )
    size = upload_bytes(plan)
    what = f"upload: {plan.sent} are {bytes_readable(size, places=0)} for each site"
    if size > plan.upload.max_bytes:
        yield error(f"{what}, above max_bytes; lower the rows or the precision")
    elif size > FLOWER_BYTES:
        memory = bytes_readable(FLOWER_MEMORY * size, places=0)
        yield warning(
            f"{what}; over Flower the coordinator needs {memory} of memory for each that comes at "
            "the same time: carry files"
        )
    elif size > LARGE_BYTES:
        yield warning(f"{what}, too much to mail: somebody has to carry it")


def _memory(plan: Plan, network: FrozenNetwork | None) -> Iterator[Finding]:
    needed = training_gigabytes(plan, "network", 1, network)
    if needed > MOST_MEMORY:
        yield error(
            f"model and upload, with max_samples = {plan.learner.max_samples:,}, need "
            f"{needed:,.0f} GB at every site, more than the {MOST_MEMORY:g} GB that a site gives "
            "unless its policy says otherwise (max_memory)"
        )


def _labels(plan: Plan) -> Iterator[Finding]:
    labelled, method = plan.reference.labelled, plan.pool.method
    if plan.sums_alone:
        return  # which are pooled without any
    if method == "beta" and not labelled:
        yield error("pool: beta is tuned on labelled rows, and there are none")
    elif method == "auto" and labelled < MIN_LABELS:
        meant = "mixture" if plan.gate is None else "gated mixture"
        yield warning(
            f"reference: with {labelled} labelled rows the pool cannot be chosen: auto means "
            f"the {meant}, and sites cannot be screened well; at least {MIN_LABELS} are needed"
        )
    if plan.gate is not None and method != "auto":
        yield warning(f"gate: the pool {method} does not use gates; delete the section")
    elif plan.gate is not None and 0 < plan.reference.num_rows < MIN_ROWS:
        yield warning(
            f"gate: no site can learn a gate from {plan.reference.num_rows} reference rows, which "
            f"are fewer than {MIN_ROWS}; every gate is 1, and the gated mixture is the mixture"
        )
    may_ask = plan.gate is None and plan.sealing is None
    if may_ask and method == "auto" and labelled < MIN_LABELS:
        yield warning(
            "gate: without labels the pool is better if sites say how dense their rows lie; add a "
            "line [gate] to ask them"
        )


def _scores(plan: Plan) -> Iterator[Finding]:
    given = plan.target.centre is not None and plan.target.scale is not None
    if task_of(plan).is_scaled and not plan.reference.labelled and not given:
        yield error(
            "target: its centre and scale come from labelled rows, and there are none; add some, "
            "or write centre and scale into the plan"
        )
    num_scored = plan.reference.evaluate or plan.reference.labelled
    if num_scored < plan.rules.min_labels_to_judge:
        yield warning(
            f"reference: scores rest on {num_scored} labels, below min_labels_to_judge = "
            f"{plan.rules.min_labels_to_judge}: the report will not judge calibration"
            f"{task_of(plan).by_chance(num_scored)}"
        )


def _rules(plan: Plan, today: datetime.date) -> Iterator[Finding]:
    deadline = plan.rules.deadline
    if deadline is not None and deadline < today:
        yield error(f"rules: the deadline {deadline} has passed")
    if plan.rules.quorum < 2:
        yield warning("rules: with a quorum of 1 the result may be one site's model, open to all")
    if plan.pool.own not in ("none", AUTO, *plan.learner_names):
        known = [AUTO, *plan.learner_names, "none"]
        yield error(f"pool: {no_such('own learner', plan.pool.own, known)}")
    if plan.learner.holdout == 0:
        yield (warning if plan.learner.holdout_reason else error)(
            "learner: with holdout = 0 no site can compare the result with its own model, and two "
            "uploads, with and without a person, differ by that person alone; hold some rows out, "
            "or say in holdout_reason why not"
        )


def _columns(plan: Plan) -> Iterator[Finding]:
    for name, column in plan.columns.items():
        if isinstance(column, Category) and len(column.categories) > MAX_WORDS:
            yield warning(
                f"{name}: {len(column.categories)} categories are as many network inputs; name "
                "the frequent ones and leave the rest to other"
            )
        if column.optional and column.missing == "impute":
            yield warning(
                f"{name}: optional and imputed, so the network cannot see which rows lack it; "
                'missing = "flag" tells it'
            )


def _table(plan: Plan, table: Review) -> Iterator[Finding]:
    """What the file of the reference rows shows."""
    file = plan.reference_file
    if not file:
        if plan.reference.num_rows:
            yield error("reference: file is empty; say where the reference rows are")
        return
    try:
        frame = table.frame
    except (DataError, MissingPackageError) as refused:
        yield error(f"reference: {refused}")
        return
    for name, column in plan.vectors.items():
        if column.optional and name not in frame.columns:
            yield error(f"{name}: no reference row has it, so nothing is learnt from it: delete it")
    examined = table.examined
    yield from (error(f"{file}: {problem}") for problem in examined.problems)
    yield from (warning(f"{file}: {oddity}") for oddity in examined.oddities)
    if not examined.problems:
        yield from _constants(plan, examined.codes)
        yield from _repeated(plan, frame)
    if plan.reference.num_rows > len(frame):
        yield error(
            f"reference: the counts add up to {plan.reference.num_rows:,} rows, but {file} has "
            f"{len(frame):,}"
        )
    elif plan.reference.num_rows < len(frame):
        unused = len(frame) - plan.reference.num_rows
        yield warning(
            f"reference: {unused:,} of the {len(frame):,} rows of {file} have no role and will not "
            "be used"
        )
    if plan.frozen is None:
        yield from _table_labels(plan, frame, file)


def _constants(plan: Plan, codes: Tensor) -> Iterator[Finding]:
    for name, values in zip(plan.columns, codes.T, strict=True):
        known = values[~values.isnan()]
        if len(known) == 0:
            yield warning(f"{name}: no reference row has a value")
        elif name in plan.vectors:
            continue  # whose codes say no more than that there is a vector
        elif len(known) > 1 and bool((known == known[0]).all()):
            yield warning(
                f"{name}: the same in every reference row, so the model that comes back cannot "
                "learn from it"
            )


def _repeated(plan: Plan, frame: pd.DataFrame) -> Iterator[Finding]:
    """Rows that are there twice: half of a gate learns the one, and judges the other."""
    if plan.vectors or not set(plan.columns) <= set(frame.columns):
        return
    columns = [pd.factorize(frame[name], use_na_sentinel=False)[0] for name in plan.columns]
    rows = _Rows(columns)
    if rows.num_repeated and rows.more_than_chance:
        yield warning(
            f"reference: {rows.num_repeated:,} of {len(frame):,} rows have the same columns as an "
            "earlier one, more than chance explains; if they are copies, or visits of one patient, "
            "leave them out: gates learn them by heart, and scores seem surer than they are"
        )


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


def _table_labels(plan: Plan, frame: pd.DataFrame, file: str) -> Iterator[Finding]:
    num_needed = plan.reference.labelled + plan.reference.evaluate
    if plan.target.name not in frame.columns and not num_needed:
        return
    problems = target_problems(plan, frame)
    yield from (error(f"{file}: {problem}") for problem in problems)
    if problems:
        return
    targets = code_targets(plan, frame)
    targets = targets[~targets.isnan()]
    if num_needed > len(targets):
        yield error(
            f"reference: {num_needed:,} rows are to have labels, but {len(targets):,} of {file} "
            f"have one in {plan.target.name!r}"
        )
    if len(targets):
        yield from task_of(plan).label_doubts(plan, targets)
