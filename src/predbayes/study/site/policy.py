"""The site's policy: floors that no plan can lower.

It is `[policy]` in `site.toml`, or a file of its own for all studies of an institution, named by
`policy = "path"` in `site.toml` or by the environment variable PREDBAYES_POLICY. Where there are
two, both hold: the stricter of them decides. Without any, `Policy` has defaults, which bound what a
plan may ask of the site's computer and change nothing else.

    site check, site train, site approve, a Flower node    refuse a plan below a floor: `require`
    site train, a Flower node                              bound what leaves: `limited`; ask for an
                                                           audit: `require_audit`
    site evaluate, if it is to leave                       the same, and `require_rows`
    site survey                                            `require_survey`, `survey_step`
    approvals                                              are asked for, whatever the plan says

Each line of a refusal names the plan's setting, the policy's, and the policy's file.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from predbayes.errors import DataError, PlanError, StudyError
from predbayes.learning.named import AUTO
from predbayes.study.plan.schema import Plan, decode, read_text
from predbayes.study.plan.software import software_problem
from predbayes.study.tables.problem import least_cell
from predbayes.study.tables.sitefile import SITE_FILE, Policy, SiteFile

if TYPE_CHECKING:  # a Flower node reads policies without torch
    from torch import Tensor

    from predbayes.exchange.upload import Upload
    from predbayes.study.report.leakage import Outcome

VARIABLE = "PREDBAYES_POLICY"
DEFAULTS = "predbayes itself"


class Bounds(NamedTuple):
    """What policies bound of an upload."""

    sureness: float  # greatest probability
    std_share: float  # least deviation of a number, in that of the site's own targets
    rows_unit: int  # of which row counts are multiples


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

    def problems(self, plan: Plan, learner: str = "", num_rows: int = 1) -> list[str]:
        """Say what of a plan is below a floor, one line each.

        Args:
            plan: A frozen plan.
            learner: What the site fits; empty before it is chosen.
            num_rows: Rows to train on, where they are known.
        """
        several = (_problems(p, where, plan, learner, num_rows) for where, p in self.holding)
        found = [problem for problems in several for problem in problems]
        if not found and (learner or plan.learner.name) == AUTO and not self.learners(plan):
            found.append(
                f"learner {AUTO!r} may be none of {list(plan.tried)}, because "
                f"{' and '.join(where for where, _ in self.holding)} allow none of them together"
            )
        return found

    def require(self, plan: Plan, learner: str = "", num_rows: int = 1) -> None:
        """Refuse a plan that is below a floor."""
        if found := self.problems(plan, learner, num_rows):
            raise PlanError(f"the site's policy forbids it: {'; '.join(found)}")

    def against_sums(self, plan: Plan) -> list[str]:
        """Say what forbids sums of moments to leave beside predictions."""
        return [text for where, policy in self.holding for text in _no_sums(policy, where, plan)]

    def require_kinds(self, *kinds: str) -> None:
        """Refuse a file that holds what may not leave."""
        for (where, policy), kind in itertools.product(self.holding, kinds):
            if not policy.allows(kind):
                forbids = f"{kind} are not among kinds = {list(policy.kinds)}"
                if kind == "moments" and not policy.moments:
                    forbids = "moments = false"
                raise PlanError(f"the site's policy forbids it: {forbids} of {where}")
            if kind == "moments" and (found := [*_unbounded_sums(policy, where)]):
                raise PlanError(f"the site's policy forbids it: {found[0]}")

    def require_rows(self, num_rows: int) -> None:
        """Refuse an evaluation of fewer rows than a policy allows."""
        self.require_kinds("evaluation")
        for where, policy in self.holding:
            if num_rows < policy.min_evaluated:
                raise DataError(
                    f"the site's policy forbids it: an evaluation of {num_rows:,} rows is below "
                    f"min_evaluated = {policy.min_evaluated:,} of {where}"
                )

    def require_survey(self) -> None:
        """Refuse a survey where one may not leave."""
        for where, policy in self.holding:
            if not policy.surveys:
                raise PlanError(f"the site's policy forbids it: surveys = false of {where}")

    @property
    def moments(self) -> bool:
        """Whether sums of products of columns may leave."""
        return all(policy.moments for _, policy in self.holding)

    def survey_step(self, plan: Plan) -> int:
        """Return the least count that a survey tells, and the step of greater ones."""
        unit = self.bounds.rows_unit
        return unit * math.ceil(self.least_cell(plan) / unit)

    def least_cell(self, plan: Plan) -> int:
        """Return the least count about rows that may be told to others."""
        return max(least_cell(plan), *(policy.min_cell for _, policy in self.holding))

    def asks_release(self, plan: Plan) -> bool:
        """Return whether somebody must approve an upload before it is signed."""
        floors = (policy.release for _, policy in self.holding)
        return "manual" in (plan.upload.release, *floors)

    def asks_approval(self, plan: Plan) -> bool:
        """Return whether somebody must approve the plan before the site trains."""
        return self.asks_release(plan) or any(policy.approval for _, policy in self.holding)

    def learners(self, plan: Plan) -> tuple[str, ...]:
        """Return the learners of `auto` that all policies allow, simplest first."""
        lists = [policy.learners for _, policy in self.holding if policy.learners]
        return tuple(name for name in plan.tried if all(name in names for names in lists))

    @property
    def max_hours(self) -> float:
        """How long one training may take."""
        return min(policy.max_hours for _, policy in self.holding)

    @property
    def bounds(self) -> Bounds:
        """What leaves is bounded by, of all policies together."""
        policies = [policy for _, policy in self.holding]
        return Bounds(
            min(policy.max_sureness for policy in policies),
            max(policy.min_std for policy in policies),
            math.lcm(*(policy.round_rows for policy in policies)),
        )

    def limited(self, upload: Upload, targets: Tensor) -> Upload:
        """Return what may leave in place of an upload: less sure, its counts rounded down.

        Args:
            upload: What training made.
            targets: The site's own that it was trained on, as the plan encodes them.
        """
        unit = self.bounds.rows_unit
        upload = self.bounded(upload, targets)
        return upload if unit == 1 else _rounded(upload, unit)

    def bounded(self, upload: Upload, targets: Tensor) -> Upload:
        """Return an upload whose predictions are no surer than the policies allow."""
        if upload.info.kind != "predictions":
            return upload
        from predbayes.study.site.bounds import least_std, less_sure

        bounds = self.bounds
        floor = least_std(bounds.std_share, targets) if "noise_var" in upload.arrays else 0.0
        return less_sure(upload, bounds.sureness, floor)

    def require_audit(self, found: Outcome | None) -> None:
        """Refuse what is not audited, or tells more of who was trained on than a policy allows."""
        for where, policy in self.holding:
            most = policy.max_membership_auc
            if most is None:
                continue
            limit = f"max_membership_auc = {most:g} of {where}"
            if found is None or not found.sound:
                raise StudyError(
                    f"the site's policy forbids it: {limit} asks for an audit of these rows with "
                    "this learner: predbayes site audit KIT DATA --out DIR"
                )
            if found.leaves.auc > most:
                raise StudyError(
                    f"the site's policy forbids it: the audit found an AUC of "
                    f"{found.leaves.auc:.3f}, above {limit}; a linear learner, more rows or no "
                    "gate may lower it"
                )


NO_POLICY = SitePolicy()


def _read(path: Path) -> tuple[str, Policy]:
    return path.name, decode(Policy, read_text(path), path.name, whole="top level")


def _problems(policy: Policy, where: str, plan: Plan, learner: str, num_rows: int) -> Iterator[str]:
    from predbayes.study.plan.sizes import limit_problems

    kind, rules, learning = plan.upload.kind, plan.rules, plan.learner
    chosen = learner or ("" if learning.name == "any" else learning.name)
    if plan.sums_alone:
        yield from _no_sums(policy, where, plan)
    elif not policy.allows(kind):
        yield f"upload.kind = {kind!r} of the plan is not among kinds of {where}"
    if plan.gate is not None and not policy.gates:
        yield f"[gate] of the plan asks for how dense rows lie, and gates = false of {where}"
    if rules.min_cell < policy.min_cell:
        yield _below("rules.min_cell", rules.min_cell, "min_cell", policy.min_cell, where)
    if learning.holdout < policy.min_holdout:
        yield _below("learner.holdout", learning.holdout, "min_holdout", policy.min_holdout, where)
    if chosen in ("network", "small-network", AUTO) and learning.preset not in policy.presets:
        yield f"learner.preset = {learning.preset!r} of the plan is not among presets of {where}"
    fitted = plan.tried if chosen == AUTO else (chosen,)
    if chosen and policy.learners and not {*fitted} & {*policy.learners}:
        yield f"learner {chosen!r} is not among learners = {list(policy.learners)} of {where}"
    if policy.max_epsilon is not None and plan.promise is None:
        yield (
            f"the plan promises no differential privacy (privacy.people), against max_epsilon = "
            f"{policy.max_epsilon:g} at max_delta = {policy.max_delta:g} of {where}"
        )
    yield from _unbounded(policy, where, plan)
    yield from limit_problems(plan, policy, where, learner=chosen or "network", num_rows=num_rows)
    if policy.software == "refuse" and (problem := software_problem(plan)):
        yield f"{problem}, and software = 'refuse' of {where}"


def _no_sums(policy: Policy, where: str, plan: Plan) -> Iterator[str]:
    """What the policy has against sums of moments, alone or beside predictions."""
    if not policy.allows("moments"):
        forbidden = "are not among kinds" if policy.moments else "need moments = true"
        yield f"sums of moments, which the plan asks for, {forbidden} of {where}"
    asked = 0 if plan.moments is None else plan.moments.rows_per_feature
    if asked < policy.min_rows_per_feature:
        floor = policy.min_rows_per_feature
        yield _below("moments.rows_per_feature", asked, "min_rows_per_feature", floor, where)
    yield from _unbounded_sums(policy, where)


def _unbounded_sums(policy: Policy, where: str) -> Iterator[str]:
    """What the policy asks of each upload, and cannot have of sums of moments."""
    if policy.round_rows > 1:
        yield (
            "sums of moments, which the plan asks for, tell the exact number of rows, against "
            f"round_rows = {policy.round_rows:,} of {where}"
        )
    if policy.max_sureness < 1 or policy.min_std > 0:
        yield (
            "sums of moments, which the plan asks for, cannot be bounded by max_sureness and "
            f"min_std of {where}; predictions can"
        )
    if policy.max_membership_auc is not None:
        yield (
            "sums of moments, which the plan asks for, cannot be audited, against "
            f"max_membership_auc = {policy.max_membership_auc:g} of {where}"
        )


def _unbounded(policy: Policy, where: str, plan: Plan) -> Iterator[str]:
    """What the policy asks of each upload, and cannot have of those of the plan."""
    if plan.upload.kind == "weights" and (policy.max_sureness < 1 or policy.min_std > 0):
        yield (
            "upload.kind = 'weights' of the plan cannot be bounded by max_sureness and min_std of "
            f"{where}; predictions can"
        )
    if plan.sealing is not None and plan.classification and policy.round_rows > 1:
        yield (
            "privacy.mode = 'sealed' of the plan needs rows of each class in the sum, against "
            f"round_rows = {policy.round_rows:,} of {where}"
        )
    if plan.upload.precision == "uint8" and policy.max_sureness < 1:
        yield (
            "upload.precision = 'uint8' of the plan rounds too coarsely for max_sureness = "
            f"{policy.max_sureness:g} of {where}"
        )
    if plan.survival and policy.max_sureness < 1:
        yield (
            f"target.task = 'survival' of the plan cannot be bounded by max_sureness = "
            f"{policy.max_sureness:g} of {where}"
        )
    if plan.classification and policy.max_sureness <= 1 / plan.num_outputs:
        yield (
            f"target.classes of the plan are {plan.num_outputs}, so max_sureness = "
            f"{policy.max_sureness:g} of {where} leaves nothing to say"
        )


def _below(setting: str, value: float, key: str, floor: float, where: str) -> str:
    return f"{setting} = {value:g} of the plan is below {key} = {floor:g} of {where}"


def _rounded(upload: Upload, unit: int) -> Upload:
    """With row counts that are multiples of a unit; class counts only where none becomes zero."""
    info = upload.info
    if info.num_rows < unit:
        raise DataError(f"the site's policy forbids it: {info.num_rows} rows round down to none")
    counts = None
    if info.class_rows is not None and min(info.class_rows) >= unit:
        counts = tuple(float(count - count % unit) for count in info.class_rows)
    told = {"num_rows": info.num_rows - info.num_rows % unit, "class_rows": counts}
    return replace(upload, info=info.model_copy(update=told))
