"""Which sites mislead the pool, and which of them to leave out.

A site is looked at by itself and by what becomes of the pool without it. Rows are the N labelled
reference rows, p_ic what the site says of class c at row i:

    constant        its predictions do not depend on the input
    copy            they are those of another site, or nearly
    contradicts     they go against the labels
    uninformative   they have next to nothing to do with the labels
    harmful         the pool is better without it, by cross-validation
    inconsistent    they are others where there are no labels (`predbayes_study.result.comparison`)

*Against the labels* is a score test: in which direction would the labels move a model that knows
only their shares pi, along the site's log-probabilities a_ic = log p_ic (bounded below, and less
their mean over rows, which is the site's own base rates)?

    S = sum_i ( a_i,y(i) - E_pi a_i ),    V = sum_i Var_pi a_i,    Z = S / sqrt(V)

Z is a standard normal for a site whose predictions have nothing to do with the labels, whatever
its own base rates: a site that has seen two classes of ten, and scores terribly alone, still has a
large Z. The agreement Z / sqrt(N (C - 1)) is a correlation, from -1 to 1. For a regression it is
that of means and targets, where a row counts the less the less certain the site is there.

*Nearly those of another site* is told in `predbayes_study.result.copies`.

*Harmful* is paired, row by row, with a threshold for as many sites as there are. Sites that were
found out by the other tests have to prove their worth:

    constant, contradicts       left out, unless the pool is clearly worse without
    uninformative, copy         left out, if the pool is no worse without
    inconsistent                left out: what it is worth on labelled rows says nothing

Of two copies, screening drops the one that the pool does better without; nobody can tell who
copied whom. Sites are left out one after the other, the worst first. After each, all others are
tested again, because one poisoned site may hide another. Two sites always stay. With too few
labels to judge by, only copies are left out.

Of more than `ALL_PAIRS` sites the same is done in time and memory that are linear in sites. What
becomes of the pool without a site is found by subtracting it, at the weights of the pool
(`predbayes_study.result.influence`). Sites that tests found out are set aside together, unless they
are more than half: so they cannot vouch for each other. Of copies one stays, and of those that are
uninformative, and nothing worse, who helps the pool of the rest. Who does harm is left out in at
most `MOST_ROUNDS` rounds, in each the worse half of those that have to go. At the end the doubtful,
at most `MOST_CLOSELY`, are looked at closely: their pool is selected and tuned anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from predbayes.errors import StudyError
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Predictive
from predbayes.predictive.pooling import Contribution, PredictiveSum
from predbayes.predictive.selection import MIN_LABELS, PoolSpec, why_untunable
from predbayes_study.plan.models import standard_prior
from predbayes_study.plan.schema import Plan
from predbayes_study.result.copies import ALL_PAIRS, CONSTANT, Copies, copies_among, spread, surplus
from predbayes_study.result.influence import Effect, PoolLosses, Tuned
from predbayes_study.result.schema import Finding, FindingKind
from predbayes_study.tasks import task_for

Losses = Callable[[Sequence["Contribution"]], Tensor]
"""Of a pool of some sites, row by row, each row under weights tuned without it."""

MAX_JUDGED = 50  # sites whose influence is measured, beside those that were found out
MOST_ROUNDS = 16  # in which sites are left out, where they are many
MOST_CLOSELY = 5  # sites whose pool is then tuned anew
_DOUBT = 1.0  # standard errors from having to go
_SLIGHT = 0.02  # share of sites that may go without the others being looked at again
CONTRADICTS = -3.0  # Z
UNINFORMATIVE = 2.5  # Z
WEAK = 0.25  # of the median Z: beyond chance, and yet next to nothing
HARMFUL = 0.01  # false-alarm rate for all sites together
_BURDEN: Mapping[FindingKind, float] = {
    "constant": 2.0,
    "contradicts": 2.0,
    "uninformative": 0.0,
    "copy": 0.0,
    "inconsistent": math.inf,
}
"""By how many standard errors a site must help to stay all the same."""

_BETA = PoolSpec("beta", interpolates=True)
_LEAST_SITES = 2  # that always stay
_MOST_NAMES = 8  # of copies in a sentence


@dataclass(frozen=True, slots=True)
class Screening:
    """What was found about one site.

    The influence is the pool's NLL without the site minus that with it, positive if it helps; among
    the sites that stay, or of a site left out, among those that were there when it was.
    """

    findings: tuple[Finding, ...]
    influence: Estimate | None  # None where it was not measured
    leave_out: bool


def screen(
    contributions: Sequence[Contribution],
    targets: Tensor,
    *,
    losses: Losses,
    rule: Literal["report", "leave-out"] = "leave-out",
    min_labels: int = MIN_LABELS,
    suspects: Mapping[str, Finding] = MappingProxyType({}),
    total: PredictiveSum[Any] | None = None,
) -> dict[str, Screening]:
    """Judge every site, in the order of their names; a function of the set of contributions.

    Args:
        contributions: What the sites sent, on the labelled rows only.
        targets: The labels.
        losses: The pool's, for some of the sites; for many they are `PoolLosses`.
        rule: As in the plan; to ``"report"`` is to look once, and to leave nobody out.
        min_labels: With fewer, or where all are the same, nothing is judged by labels.
        suspects: What was found by comparing sites on all rows.
        total: The sum of the contributions, if it is known: of many sites it is a good part of the
            time.
    """
    sites = {c.site: c for c in sorted(contributions, key=lambda c: c.site)}
    if len(sites) < len(contributions):
        raise StudyError("two contributions are of one site; pass each site once")
    by_labels = not why_untunable(targets, min_labels)
    agreements = {name: agreement(c.predictive, targets) for name, c in sites.items() if by_labels}
    spreads = {name: spread(c.predictive) for name, c in sites.items()}
    copies = copies_among(list(sites.values()), spreads)
    usual = tuple(_median(column) for column in zip(*agreements.values(), strict=True))
    found = {
        name: _cheap_findings(
            c, spreads[name], copies.get(name, ()), agreements.get(name), usual, len(targets)
        )
        for name, c in sites.items()
    }
    for name, finding in suspects.items():
        found[name][finding.kind] = finding
    if not by_labels or len(sites) < 2:
        gone = surplus(copies, len(sites) - _LEAST_SITES) if rule == "leave-out" else set()
        return {n: Screening(tuple(found[n].values()), None, n in gone) for n in sites}
    if len(sites) > ALL_PAIRS and isinstance(losses, PoolLosses):
        pool = losses.tuned(list(sites.values()), total)
        return _in_rounds(sites, pool, found, copies, leave_out=rule == "leave-out")
    ranked = sorted(agreements, key=lambda name: (agreements[name][0], name))
    judged = {*ranked[:MAX_JUDGED], *(name for name, kinds in found.items() if kinds)}
    return _one_by_one(sites, judged, losses, found, copies, leave_out=rule == "leave-out")


def screen_sites(
    contributions: Sequence[Contribution],
    targets: Tensor,
    *,
    plan: Plan,
    own: Predictive | None = None,
    suspects: Mapping[str, Finding] = MappingProxyType({}),
    total: PredictiveSum[Any] | None = None,
) -> dict[str, Screening]:
    """Judge every site by the plan's rule, in its pool or, if that has nothing to tune, in `beta`.

    An untuned product is too sure of itself, and would be better without anybody.

    Contributions, their sum in the plan's pool, targets and the coordinator's own model,
    cross-fitted, are on the labelled rows.
    """
    auto = plan.pool.method == "auto"
    losses = PoolLosses(
        targets,
        seed=plan.seed,
        own=own if auto else None,
        prior=standard_prior(plan),
        specs=None if auto else (_BETA,),
        floor=plan.pool.floor,
    )
    return screen(
        contributions,
        targets,
        losses=losses,
        rule=plan.rules.screening,
        suspects=suspects,
        total=total,
    )


def agreement(predictive: Predictive, targets: Tensor) -> tuple[float, float]:
    """The score Z of a site's predictions against the labels, and as a correlation.

    Examples:
        >>> from predbayes.predictive.families import Categorical
        >>> right = Categorical.from_moments(torch.tensor([[0.9, 0.1], [0.1, 0.9]] * 8))
        >>> agreement(right, torch.tensor([0, 1] * 8))
        (4.0, 1.0)
    """
    if not len(targets):
        return 0.0, 0.0
    scores, variances, freedom = task_for(predictive).agreement(predictive, targets)
    variance = float(variances.sum())
    # Numerics: of predictions that are constant up to rounding nothing can be said.
    if freedom == 0 or variance < 1e-12 * len(targets):
        return 0.0, 0.0
    score = float(scores.sum()) / math.sqrt(variance)
    return score, score / math.sqrt(len(targets) * freedom)


def _cheap_findings(
    contribution: Contribution,
    varied: float,
    copies: Sequence[str],
    agreed: tuple[float, float] | None,
    usual: Sequence[float],
    num_labels: int,
) -> dict[FindingKind, Finding]:
    """What a site's predictions show by themselves; without agreements nothing about labels."""
    found: dict[FindingKind, str] = {}
    if varied <= CONSTANT:
        most = task_for(contribution.predictive).movement(contribution.predictive)
        found["constant"] = (
            f"Its predictions do not depend on the inputs: from row to row they differ by {most}."
        )
    elif agreed is not None:
        score, correlation = agreed
        figures = (
            f"correlation {correlation:+.2f} on {num_labels} rows, where the median site has "
            f"{usual[1]:+.2f}"
        )
        if score <= CONTRADICTS:
            found["contradicts"] = f"Its predictions go against the labels: {figures}."
        elif score < max(UNINFORMATIVE, WEAK * usual[0]):
            found["uninformative"] = (
                f"Its predictions say next to nothing about the labels: {figures}."
            )
    if copies:
        found["copy"] = (
            f"Its predictions are almost those of {_named(contribution.site, copies)}, much nearer "
            "than two sites of this study usually are; who copied, or whether they hold the same "
            "rows, cannot be told."
        )
    return {kind: Finding(kind=kind, text=text) for kind, text in found.items()}


def _named(site: str, copies: Sequence[str]) -> str:
    """Its copies by name, or of many the first, and how many more there are."""
    others = [name for name in copies[: _MOST_NAMES + 2] if name != site]
    if len(others) <= _MOST_NAMES:
        return " and ".join(others)
    return f"{', '.join(others[:3])} and {len(copies) - (site in copies) - 3:,} more"


def _one_by_one(
    there: dict[str, Contribution],
    judged: set[str],
    losses: Losses,
    found: Mapping[str, Mapping[FindingKind, Finding]],
    copies: Copies,
    *,
    leave_out: bool,
) -> dict[str, Screening]:
    """Pool the sites, and pool them again without each that is judged; the worst goes."""
    screened: dict[str, Screening] = {}
    while True:
        together = losses(list(there.values()))
        nll = float(together.mean())
        effects = {
            name: Effect.of(losses([c for n, c in there.items() if n != name]) - together, nll)
            for name in there
            if name in judged
        }
        judge = _Judge(found, copies, NormalDist().inv_cdf(1 - HARMFUL / max(1, len(effects))))
        screened |= {name: judge.screening(name, effects.get(name)) for name in there}
        out = []
        if leave_out and len(there) > _LEAST_SITES:
            for name in sorted(effects, reverse=True):  # of equals, such as copies, the last
                copied = bool(there.keys() & set(copies.get(name, ())))
                if effects[name].score <= judge.burden(name, copied=copied):
                    out.append(name)
        if not out:
            return screened
        worst = min(out, key=lambda name: round(effects[name].value, 9))
        screened[worst] = replace(screened[worst], leave_out=True)
        there = {name: site for name, site in there.items() if name != worst}


# Many sites


def _in_rounds(
    sites: Mapping[str, Contribution],
    pool: Tuned,
    found: Mapping[str, Mapping[FindingKind, Finding]],
    copies: Copies,
    *,
    leave_out: bool,
) -> dict[str, Screening]:
    """As one after the other, in rounds: see the module."""
    there, gone = dict(sites), dict[str, Effect]()
    judge = _Judge(found, copies, NormalDist().inv_cdf(1 - HARMFUL / len(sites)))
    if leave_out:
        pool, gone = _set_aside(sites, pool, judge)
        there = {name: site for name, site in sites.items() if name not in gone}
    effects, num_there = pool.effects(there.values()), len(there)
    for _ in range(MOST_ROUNDS if leave_out else 0):
        out = judge.to_leave_out(effects, there)
        if not out:
            break
        out = out[: (len(out) + 1) // 2]
        gone |= {name: effects[name] for name in out}
        pool = pool.without([there.pop(name) for name in out])
        least = sorted(there, key=lambda name: (effects[name].score, name))[: 2 * MAX_JUDGED]
        effects |= pool.effects(there[name] for name in least)
    if len(there) < (1 - _SLIGHT) * num_there:
        effects = pool.effects(there.values())
    close = {name: pool.closely(there[name]) for name in judge.doubtful(effects, there)}
    effects |= close
    if leave_out:
        gone |= {name: effects[name] for name in judge.to_leave_out(close, there)}
    effects |= gone
    return {
        name: replace(judge.screening(name, effects[name]), leave_out=name in gone)
        for name in sites
    }


def _set_aside(
    sites: Mapping[str, Contribution], pool: Tuned, judge: _Judge
) -> tuple[Tuned, dict[str, Effect]]:
    """The pool without those that were found out, but for who helps it, and what the others do."""
    aside = [name for name in sites if judge.is_suspect(name)]
    if not aside or 2 * len(aside) > len(sites):
        return pool, {}
    pool = pool.without([sites[name] for name in aside])
    effects = pool.effects([sites[name] for name in aside], inside=False)
    back = [name for name in aside if judge.may_return(name) and effects[name].score > 0]
    if back:
        pool = pool.with_sites([sites[name] for name in back])
    return pool, {name: effects[name] for name in aside if name not in back}


@dataclass(frozen=True, slots=True)
class _Judge:
    """What speaks against a site, and who has to go."""

    found: Mapping[str, Mapping[FindingKind, Finding]]
    copies: Copies
    clearly: float  # standard errors that are no accident with so many sites

    def screening(self, name: str, effect: Effect | None) -> Screening:
        """Return what was found, with harm that is no accident."""
        findings = list(self.found[name].values())
        if effect is not None and effect.score <= -self.clearly:
            text = (
                f"Without it the pool is better: NLL {effect.nll + effect.value:.3f} instead of "
                f"{effect.nll:.3f} on {effect.num_rows} labelled rows, cross-validated, by "
                f"{-effect.score:.1f} standard errors."
            )
            findings.append(Finding(kind="harmful", text=text))
        influence = None if effect is None else effect.estimate()
        return Screening(tuple(findings), influence, leave_out=False)

    def is_suspect(self, name: str) -> bool:
        """Whether a test found it out; of copies not the first, if that is all."""
        return bool(set(self.found[name]) - ({"copy"} if self._group(name) == name else set()))

    def may_return(self, name: str) -> bool:
        """Whether there is nothing against it but that it says little."""
        return self.found[name].keys() <= {"uninformative"}

    def burden(self, name: str, *, copied: bool) -> float:
        """Standard errors by which it must help to stay; copied is who has a copy in the pool."""
        kinds = set(self.found[name]) - (set() if copied else {"copy"})
        return max((_BURDEN[kind] for kind in kinds), default=-self.clearly)

    def to_leave_out(self, effects: Mapping[str, Effect], there: Mapping[str, Any]) -> list[str]:
        """All that do not carry their burden, the worst first; of copies one stays."""
        left = Counter(map(self._group, there))
        out: list[str] = []
        # Of equals, such as copies, the last by name first.
        ranked = sorted(effects.keys() & there.keys(), reverse=True)
        for name in sorted(ranked, key=lambda name: round(effects[name].value, 9)):
            if len(there) - len(out) <= _LEAST_SITES:
                break
            copied = left[self._group(name)] > 1
            if effects[name].score <= self.burden(name, copied=copied):
                out.append(name)
                left[self._group(name)] -= 1
        return out

    def doubtful(self, effects: Mapping[str, Effect], there: Mapping[str, Any]) -> list[str]:
        """Those that were nearest to having to go."""
        above = {n: effects[n].score - self.burden(n, copied=False) for n in there}
        near = sorted((name for name in there if above[name] < _DOUBT), key=above.__getitem__)
        return near[:MOST_CLOSELY]

    def _group(self, name: str) -> str:
        return self.copies[name][0] if name in self.copies else name


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values).median())
