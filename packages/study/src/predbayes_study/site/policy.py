"""The site's policy: floors that no plan can lower.

It is `[policy]` in `site.toml`, or a file of its own for all studies of an institution, named by
`policy = "path"` in `site.toml` or by the environment variable PREDBAYES_POLICY. Where there are
two, both hold: the stricter of them decides. Without any, `Policy` has defaults, which bound what a
plan may ask of the site's computer and change nothing else.

`RULES` has a rule for each key that can forbid something; extras add rules for their sections.
Every command and a Flower node ask them by `SitePolicy.require`, with as much as they know: a plan,
rows, an audit, or what would leave. Properties answer other keys, which forbid nothing alone:
`release`, `max_hours`, and `min_cell` where counts are shown. Two are tested where their figures
are: `max_near` in `study.site.overlap`, the total of `max_epsilon` in the extra of privacy.

Each line of a refusal says what is wrong, the policy's key with its value, and the policy's file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from predbayes.errors import PlanError
from predbayes.learning.named import AUTO
from predbayes_study.payload import EVALUATION, ModelPayload, payload_named, payload_of
from predbayes_study.plan.schema import Plan, decode, read_text
from predbayes_study.plan.software import software_problem
from predbayes_study.rules import Rule
from predbayes_study.tables.problem import least_cell
from predbayes_study.tables.sitefile import SITE_FILE, Policy, SiteFile

if TYPE_CHECKING:  # a Flower node reads policies without torch
    from predbayes_study.report.measurement import Measurement

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
        masked: Whether nobody reads it but in a sum of many sites; None if no model is made of it.
        num_evaluated: Rows of an evaluation that would leave.
        is_audited: Whether an audit must be there by now.
        outcome: What the audit found.
    """

    plan: Plan | None = None
    learner: str = ""
    num_rows: int = 1
    leaving: tuple[str, ...] = ()
    masked: bool | None = None
    num_evaluated: int | None = None
    is_audited: bool = False
    outcome: Measurement | None = None

    @classmethod
    def of(cls, plan: Plan, learner: str = "", num_rows: int = 1) -> Asked:
        """Ask about a plan and what it makes leave."""
        named, payload = plan.learner.name, payload_of(plan)
        leaving = (payload.permission, *(() if plan.gate is None else ("gate",)))
        fitted = learner or ("" if named == "any" else named)
        return cls(plan, fitted, num_rows, leaving, payload.masks)

    @classmethod
    def of_file(cls, kind: str) -> Asked:
        """Ask about a file of this kind; what is masked reveals less than predictions."""
        payload = payload_named(kind)
        masked = payload.masks if isinstance(payload, ModelPayload) else None
        return cls(leaving=(payload.permission,), masked=masked)

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
        """How well anybody could guess who was trained on: by the promise, or as an audit found."""
        if self.plan is not None and self.plan.promise is not None:
            return self.plan.promise.auc
        return 0.5 if self.outcome is None else self.outcome.auc


@dataclass(frozen=True, slots=True)
class Case:
    """What the rules of a policy are asked."""

    policy: Policy
    asked: Asked

    @property
    def plan(self) -> Plan | None:
        """The plan, where one is known."""
        return self.asked.plan


def _forbidden_kinds(case: Case) -> Iterator[str]:
    yield from (kind for kind in case.asked.leaving if not _may_leave(case.policy, kind))


def _may_leave(policy: Policy, kind: str) -> bool:
    return policy.kinds is None or kind in policy.kinds


def _in_the_open(case: Case) -> Iterator[str]:
    """What leaves a site that wants masks, and has not named it among what may do without."""
    asked, kinds = case.asked, case.policy.kinds
    if case.policy.sealed and not asked.masked:
        # No masks exist for what no model is made of, so `kinds` decides, if it is there.
        yield from asked.leaving if asked.masked is False or kinds is None else ()


def _small_cells(case: Case) -> Iterator[int]:
    if case.plan is not None and case.plan.rules.min_cell < case.policy.min_cell:
        yield case.plan.rules.min_cell


def _other_software(case: Case) -> Iterator[str]:
    if case.policy.software == "refuse" and case.plan is not None:
        yield from filter(None, [software_problem(case.plan)])


def _too_long(case: Case) -> Iterator[str]:
    if case.plan is not None:
        from predbayes_study.plan.sizes import step_problems

        yield from step_problems(case.plan, case.asked.learner or "network", case.asked.num_rows)


def _unaudited(case: Case) -> bool:
    asked = case.asked
    # An audit is of exact rows, and would decide whether a promise is kept to.
    promised = case.plan is not None and case.plan.promise is not None
    needs = case.policy.max_membership_auc is not None and asked.is_audited and not promised
    return needs and not (asked.outcome is not None and asked.outcome.sound)


def _guessed(case: Case) -> Iterator[str]:
    asked, most = case.asked, case.policy.max_membership_auc
    if most is None or not asked.is_audited or asked.auc <= most:
        return
    if case.plan is not None and case.plan.promise is not None:
        yield f"the plan's promise allows an AUC of {asked.auc:.3f}; a smaller epsilon lowers it"
    else:
        yield (
            f"the audit found an AUC of {asked.auc:.3f}; a linear learner, more rows or no gate "
            "may lower it"
        )


def _exact(case: Case) -> Iterator[str]:
    """What would leave without noise, under whatever plan."""
    if case.policy.max_epsilon is not None:
        yield from (kind for kind in case.asked.leaving if kind in (EVALUATION, "survey"))


RULES = (
    Rule[Case]("kinds", "error", _forbidden_kinds, "{found} would leave"),
    Rule[Case](
        "sealed",
        "error",
        _in_the_open,
        "{found} would leave where the coordinator reads what this site alone sent",
    ),
    Rule[Case]("min_cell", "error", _small_cells, "rules.min_cell of the plan is {found}"),
    Rule[Case](
        "min_evaluated",
        "error",
        lambda case: (
            case.asked.num_evaluated is not None
            and case.asked.num_evaluated < case.policy.min_evaluated
        ),
        "the evaluation has {asked.asked.num_evaluated:,} rows",
    ),
    Rule[Case](
        "learners",
        "error",
        lambda case: (
            bool(case.policy.learners and case.asked.fitted)
            and not case.asked.fitted & {*case.policy.learners}
        ),
        "the learner is {asked.asked.learner!r}",
    ),
    Rule[Case](
        "max_epsilon",
        "error",
        lambda case: (
            case.policy.max_epsilon is not None
            and case.plan is not None
            and case.plan.promise is None
        ),
        "the plan promises no differential privacy",
    ),
    Rule[Case]("max_epsilon", "error", _exact, "{found} would leave, which has no noise"),
    Rule[Case](
        "max_membership_auc",
        "error",
        lambda case: case.policy.max_membership_auc is not None and "moments" in case.asked.leaving,
        "sums of moments cannot be audited",
    ),
    Rule[Case](
        "max_membership_auc",
        "error",
        _unaudited,
        "there is no audit of these rows with this learner: predbayes site audit KIT DATA "
        "--out DIR",
    ),
    Rule[Case]("max_membership_auc", "error", _guessed),
    Rule[Case]("software", "error", _other_software),
    Rule[Case](
        "max_memory",
        "error",
        lambda case: case.asked.gigabytes > case.policy.max_memory,
        "model and upload of the plan, with learner.max_samples = "
        "{asked.plan.learner.max_samples:,}, need {asked.asked.gigabytes:,.0f} GB",
    ),
    Rule[Case]("learner", "error", _too_long),  # which no policy can allow
)
"""What is forbidden; a rule whose key is none of a policy holds whatever policies say."""


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
        added = () if asked.plan is None else asked.plan.rules_of("policy")
        found: dict[str, None] = {}  # what no policy can allow is said once
        for rule in (*RULES, *added):
            for where, policy in self.holding:
                for one in rule.findings(Case(policy, asked)):
                    found[one.text + _against(rule.key, where, policy)] = None
        if asked.plan is not None and asked.learner == AUTO and not self.learners(asked.plan):
            lists = [{*policy.learners} for _, policy in self.holding if policy.learners]
            if all(asked.fitted & names for names in lists):  # or each of them has said so
                found[
                    f"learner {AUTO!r} may be none of {list(asked.plan.tried)}, because learners "
                    f"of {' and '.join(where for where, _ in self.holding)} have none in common"
                ] = None
        return list(found)

    def require(self, asked: Asked) -> None:
        """Refuse what is forbidden."""
        if found := self.problems(asked):
            raise PlanError(f"the site's policy forbids it: {'; '.join(found)}")

    def least_cell(self, plan: Plan) -> int:
        """Return the least count about rows that may be told to others."""
        return max(least_cell(plan), *(policy.min_cell for _, policy in self.holding))

    def asks_release(self, plan: Plan) -> bool:
        """Return whether somebody must approve the plan, and each upload before it is signed."""
        return plan.upload.release == "manual" or self.is_manual

    @property
    def is_manual(self) -> bool:
        """Whether somebody must approve whatever the plan says."""
        return any(policy.release == "manual" for _, policy in self.holding)

    def learners(self, plan: Plan) -> tuple[str, ...]:
        """Return the learners of `auto` that all policies allow, simplest first."""
        lists = [policy.learners for _, policy in self.holding if policy.learners]
        return tuple(name for name in plan.tried if all(name in names for names in lists))

    @property
    def max_hours(self) -> float:
        """How long one training may take."""
        return min(policy.max_hours for _, policy in self.holding)


NO_POLICY = SitePolicy()


def _against(key: str, where: str, policy: Policy) -> str:
    """The policy's key with its value, and the policy's file; empty for none of its keys."""
    if key not in Policy.model_fields:
        return ""
    value = getattr(policy, key)
    return f", against {key} = {[*value] if isinstance(value, tuple) else value!r} of {where}"


def _read(path: Path) -> tuple[str, Policy]:
    return path.name, decode(Policy, read_text(path), path.name, whole="top level")
