"""The site's policy: floors that no plan can lower.

It is `[policy]` in `site.toml`, or a file of its own for all studies of an institution, named by
`policy = "path"` in `site.toml` or by the environment variable PREDBAYES_POLICY. Where there are
two, both hold: the stricter of them decides. Without any, `Policy` has defaults, which bound what a
plan may ask of the site's computer and change nothing else.

`RULES` has a row for each key that can forbid something: the key, a test, and what to say. Every
command and a Flower node ask them by `SitePolicy.require`, with as much as they know: a plan, rows,
an audit, or what would leave. Other keys are answered by properties, because they forbid nothing by
themselves: `release`, `max_hours`, and `min_cell` where counts are shown. Two are tested where
their figures are: `max_near` in `study.site.overlap`, the total of `max_epsilon` in
`study.site.budget`.

Each line of a refusal says what is wrong, the policy's key with its value, and the policy's file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

from predbayes.errors import PlanError
from predbayes.learning.leverage import ENOUGH_ROWS
from predbayes.learning.named import AUTO
from predbayes_study.plan.schema import Plan, decode, read_text
from predbayes_study.plan.software import software_problem
from predbayes_study.tables.problem import least_cell
from predbayes_study.tables.sitefile import SITE_FILE, Leaving, Policy, SiteFile

if TYPE_CHECKING:  # a Flower node reads policies without torch
    from predbayes_study.extras.audit.leakage import AttackResult

VARIABLE = "PREDBAYES_POLICY"
DEFAULTS = "predbayes itself"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a policy is asked about, as far as it is known.

    Args:
        plan: A frozen plan; None where only a file is known.
        learner: What the site fits; by default the plan's.
        num_rows: Rows to train on.
        leaving: What would leave, in the words of `kinds`.
        num_evaluated: Rows of an evaluation that would leave.
        is_audited: Whether an audit must be there by now.
        outcome: What the audit found.
    """

    plan: Plan | None = None
    learner: str = ""
    num_rows: int = 1
    leaving: tuple[str, ...] = ()
    num_evaluated: int | None = None
    is_audited: bool = False
    outcome: AttackResult | None = None

    @classmethod
    def of(cls, plan: Plan, learner: str = "", num_rows: int = 1) -> Asked:
        """Ask about a plan and what it makes leave."""
        named = plan.learner.name
        leaving = (
            "predictions" if plan.sent == "masked" else plan.sent,
            *(() if plan.gate is None else ("gate",)),
        )
        return cls(plan, learner or ("" if named == "any" else named), num_rows, leaving)

    @classmethod
    def of_file(cls, kind: str) -> Asked:
        """Ask about a file of this kind; what is masked reveals less than predictions."""
        return cls(leaving=("predictions" if kind == "masked" else kind,))

    @property
    def fitted(self) -> frozenset[str]:
        """The learners of which one is fitted; empty before any is chosen."""
        if self.plan is not None and self.learner == AUTO:
            return frozenset(self.plan.tried)
        return frozenset({self.learner} - {""})

    @property
    def gigabytes(self) -> float:
        """The least memory that training takes."""
        if self.plan is None:
            return 0.0
        from predbayes_study.plan.sizes import training_gigabytes

        return training_gigabytes(self.plan, self.learner or "network", self.num_rows)

    @property
    def auc(self) -> float:
        """How well the audit could guess who was trained on."""
        return 0.5 if self.outcome is None else self.outcome.reference.auc


class Rule(NamedTuple):
    """One line of the table: a key, what it forbids, and what to say then."""

    key: str
    forbids: Callable[[Policy, Asked], bool]
    message: str  # with the plan as `plan`, and what is asked as `asked`


def _leaves(kind: str) -> Callable[[Policy, Asked], bool]:
    return lambda policy, asked: kind in asked.leaving and kind not in policy.kinds


RULES = (
    *(Rule("kinds", _leaves(kind), f"{kind} would leave") for kind in get_args(Leaving)),
    Rule(
        "min_cell",
        lambda policy, asked: (
            asked.plan is not None and asked.plan.rules.min_cell < policy.min_cell
        ),
        "rules.min_cell of the plan is {plan.rules.min_cell}",
    ),
    Rule(
        "min_evaluated",
        lambda policy, asked: (
            asked.num_evaluated is not None and asked.num_evaluated < policy.min_evaluated
        ),
        "the evaluation has {asked.num_evaluated:,} rows",
    ),
    Rule(
        "learners",
        lambda policy, asked: (
            bool(policy.learners and asked.fitted) and not asked.fitted & {*policy.learners}
        ),
        "the learner is {asked.learner!r}",
    ),
    Rule(
        "max_epsilon",
        lambda policy, asked: (
            policy.max_epsilon is not None and asked.plan is not None and asked.plan.promise is None
        ),
        "the plan promises no differential privacy, in [privacy]",
    ),
    Rule(
        "max_membership_auc",
        lambda policy, asked: policy.max_membership_auc is not None and "moments" in asked.leaving,
        "sums of moments cannot be audited",
    ),
    Rule(
        "max_membership_auc",
        lambda policy, asked: (
            policy.max_membership_auc is not None
            and asked.is_audited
            and not (asked.outcome is not None and asked.outcome.sound)
        ),
        "there is no audit of these rows with this learner: predbayes site audit KIT DATA "
        "--out DIR",
    ),
    Rule(
        "max_membership_auc",
        lambda policy, asked: (
            policy.max_membership_auc is not None
            and asked.is_audited
            and asked.auc > policy.max_membership_auc
        ),
        "the audit found an AUC of {asked.auc:.3f}; a linear learner, more rows or no gate may "
        "lower it",
    ),
    Rule(
        "software",
        lambda policy, asked: (
            policy.software == "refuse"
            and asked.plan is not None
            and bool(software_problem(asked.plan))
        ),
        "{software}",
    ),
    Rule(
        "max_memory",
        lambda policy, asked: asked.gigabytes > policy.max_memory,
        "model and upload of the plan, with learner.max_samples = {plan.learner.max_samples:,}, "
        "need {asked.gigabytes:,.0f} GB",
    ),
)
"""Every rule of a policy."""


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """All policies that hold at a site, each by the file that it is from."""

    stated: tuple[tuple[str, Policy], ...] = ()

    @classmethod
    def of(cls, own: SiteFile | None = None) -> SitePolicy:
        """Read the policies of a site: of its own file, and of its institution."""
        found = []
        told = "" if own is None else own.policy
        if isinstance(told, Policy):
            found.append((SITE_FILE, told))
        elif own is not None and told:
            found.append(_read(own.folder / told))
        if named := os.environ.get(VARIABLE):
            found.append(_read(Path(named)))
        return cls(tuple(found))

    @property
    def digest(self) -> str:
        """Digest of what the policies say, which a signed approval names; empty without any."""
        texts = [policy.model_dump_json() for _, policy in self.stated]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest() if texts else ""

    @property
    def holding(self) -> tuple[tuple[str, Policy], ...]:
        """The policies that hold: those stated, or the defaults."""
        return self.stated or ((DEFAULTS, Policy()),)

    def problems(self, asked: Asked) -> list[str]:
        """Say what of a plan, or of what would leave, is forbidden, one line each."""
        return [*self._forbidden(asked), *self._forbidden_by_all(asked)]

    def require(self, asked: Asked) -> None:
        """Refuse what is forbidden."""
        if found := self.problems(asked):
            raise PlanError(f"the site's policy forbids it: {'; '.join(found)}")

    def _forbidden(self, asked: Asked) -> Iterator[str]:
        plan = asked.plan
        for where, policy in self.holding:
            for rule in RULES:
                if rule.forbids(policy, asked):
                    problem = "" if plan is None else software_problem(plan)
                    text = rule.message.format(plan=plan, asked=asked, software=problem)
                    value = getattr(policy, rule.key)
                    told = [*value] if isinstance(value, tuple) else value
                    yield f"{text}, against {rule.key} = {told!r} of {where}"

    def _forbidden_by_all(self, asked: Asked) -> Iterator[str]:
        """Say what the policies forbid together, or predbayes itself, which none can allow."""
        plan = asked.plan
        if plan is None:
            return
        from predbayes_study.plan.sizes import step_problems

        lists = [{*policy.learners} for _, policy in self.holding if policy.learners]
        each = all(asked.fitted & names for names in lists)
        if asked.learner == AUTO and each and not self.learners(plan):
            yield (
                f"learner {AUTO!r} may be none of {list(plan.tried)}, because learners of "
                f"{' and '.join(where for where, _ in self.holding)} have none in common"
            )
        if "moments" in asked.leaving and plan.moments is not None:
            rows = plan.moments.rows_per_feature
            if rows < ENOUGH_ROWS:
                yield f"moments.rows_per_feature = {rows} of the plan is below {ENOUGH_ROWS}"
        yield from step_problems(plan, asked.learner or "network", asked.num_rows)

    def allows(self, kind: Leaving) -> bool:
        """Return whether all policies let something of a kind leave."""
        return all(kind in policy.kinds for _, policy in self.holding)

    def least_cell(self, plan: Plan) -> int:
        """Return the least count about rows that may be told to others."""
        return max(least_cell(plan), *(policy.min_cell for _, policy in self.holding))

    def asks_release(self, plan: Plan) -> bool:
        """Return whether somebody must approve the plan, and each upload before it is signed."""
        return "manual" in (plan.upload.release, *(policy.release for _, policy in self.holding))

    def learners(self, plan: Plan) -> tuple[str, ...]:
        """Return the learners of `auto` that all policies allow, simplest first."""
        lists = [policy.learners for _, policy in self.holding if policy.learners]
        return tuple(name for name in plan.tried if all(name in names for names in lists))

    @property
    def max_hours(self) -> float:
        """How long one training may take."""
        return min(policy.max_hours for _, policy in self.holding)


NO_POLICY = SitePolicy()


def _read(path: Path) -> tuple[str, Policy]:
    return path.name, decode(Policy, read_text(path), path.name, whole="top level")
