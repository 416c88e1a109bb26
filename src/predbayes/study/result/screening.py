"""Which sites mislead the pool, and which of them to leave out.

A site is looked at by itself and by what becomes of the pool without it. Rows are the N labelled
reference rows, p_ic what the site says of class c at row i:

    constant        its predictions do not depend on the input
    copy            they are those of another site, or nearly
    contradicts     they go against the labels
    uninformative   they have next to nothing to do with the labels
    harmful         the pool is better without it, by cross-validation
    inconsistent    they are others where there are no labels (`predbayes.study.result.comparison`)

*Against the labels* is a score test: in which direction would the labels move a model that knows
only their shares pi, along the site's log-probabilities a_ic = log p_ic (bounded below, and less
their mean over rows, which is the site's own base rates)?

    S = sum_i ( a_i,y(i) - E_pi a_i ),    V = sum_i Var_pi a_i,    Z = S / sqrt(V)

Z is a standard normal for a site whose predictions have nothing to do with the labels, whatever
its own base rates: a site that has seen two classes of ten, and scores terribly alone, still has a
large Z. The agreement Z / sqrt(N (C - 1)) is a correlation, from -1 to 1. For a regression it is
that of means and targets, where a row counts the less the less certain the site is there.

*Nearly those of another site* is by Hellinger distance, against what is usual between these two and
other sites. Models of many rows are near each other by right: distances fall with 1 / rows.

*Harmful* is paired, row by row, with a threshold for as many sites as there are. Sites that were
found out by the other tests have to prove their worth:

    constant, contradicts       left out, unless the pool is clearly worse without
    uninformative, copy         left out, if the pool is no worse without
    inconsistent                left out: what it is worth on labelled rows says nothing

Of two copies, screening drops the one that the pool does better without; nobody can tell who
copied whom. Sites are left out one after the other, the worst first. After each, all others are
tested again, because one poisoned site may hide another. Two sites always stay. With too few
labels to judge by, only copies are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from predbayes.errors import StudyError
from predbayes.pools.pool import Contribution
from predbayes.predictive.families import (
    LOG_PROB_FLOOR,
    Categorical,
    Gaussian,
    Predictive,
    Survival,
    at_risk,
)
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.selection import (
    MIN_LABELS,
    TERMS,
    PoolSpec,
    candidates,
    select,
    with_coordinator,
)
from predbayes.seeding import generator
from predbayes.study.plan.models import standard_prior
from predbayes.study.plan.schema import Plan
from predbayes.study.result.schema import Estimate, Finding
from predbayes.study.result.scoring import mean_estimate
from predbayes.summand import fold

Kind = Literal[
    "constant", "copy", "contradicts", "uninformative", "harmful", "inconsistent", "opposed"
]
Losses = Callable[[Sequence["Contribution"]], Tensor]
"""Of a pool of some sites, row by row, each row under weights tuned without it."""

MAX_JUDGED = 50  # sites whose influence is measured, beside those that were found out
CONSTANT = 1e-5  # squared Hellinger distance of predictions from their mean
COPY_DISTANCE = 0.01  # squared Hellinger distance, at most, of copies
COPY_RATIO = 0.1  # of that to what is usual
SAME = 1e-3  # relative difference of log-probabilities: half precision rounds by as much
CONTRADICTS = -3.0  # Z
UNINFORMATIVE = 2.5  # Z
WEAK = 0.25  # of the median Z: beyond chance, and yet next to nothing
HARMFUL = 0.01  # false-alarm rate for all sites together
_BURDEN: Mapping[Kind, float] = {
    "constant": 2.0,
    "contradicts": 2.0,
    "uninformative": 0.0,
    "copy": 0.0,
    "inconsistent": math.inf,
}
"""By how many standard errors a site must help to stay all the same."""

_BETA = PoolSpec("beta", interpolates=True)
_LEAST_SITES = 2  # that always stay
_LOG_PROB_BOUND = math.log(0.01)  # one overconfident row must not own the variance
_MEAN_BOUND = 3.0  # standard deviations of the targets, likewise


@dataclass(frozen=True, slots=True)
class _LeaveOneOut:
    """The pool of some sites, and what becomes of it without each of them."""

    sites: dict[str, Contribution]
    nll: float
    gaps: dict[str, Tensor]  # (N,), losses without the site minus those with it
    clearly: float  # standard errors that are no accident with so many sites

    def score(self, name: str) -> float:
        """Return the site's help in standard errors; below zero it does harm."""
        gaps = self.gaps[name]
        error = float(gaps.std()) / math.sqrt(len(gaps))
        return float(gaps.mean()) / error if error > 0 else 0.0


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
) -> dict[str, Screening]:
    """Judge every site, in the order of their names; a function of the set of contributions.

    Args:
        contributions: What the sites sent, on the labelled rows only.
        targets: The labels.
        losses: The pool's, for some of the sites; see `pool_losses`.
        rule: As in the plan; to ``"report"`` is to look once, and to leave nobody out.
        min_labels: With fewer nothing is judged by labels.
        suspects: What was found by comparing sites on all rows.
    """
    sites = _in_order(contributions)
    by_labels = len(targets) >= min_labels
    agreements = {name: agreement(c.predictive, targets) for name, c in sites.items() if by_labels}
    copies = copies_among(list(sites.values()))
    found = {
        name: _cheap_findings(c, copies.get(name, ()), agreements, len(targets))
        for name, c in sites.items()
    }
    for name, finding in suspects.items():
        found[name][finding.kind] = finding
    if not by_labels or len(sites) < 2:
        gone = _surplus_copies(copies, len(sites) - _LEAST_SITES) if rule == "leave-out" else set()
        return {n: Screening(tuple(found[n].values()), None, n in gone) for n in sites}
    judged = _judged(found, agreements)
    last = _leave_one_out(sites, judged, losses)
    left_out: dict[str, _LeaveOneOut] = {}
    while rule == "leave-out" and (worst := _worst(last, found, copies)) is not None:
        left_out[worst] = last
        last = _leave_one_out({n: c for n, c in last.sites.items() if n != worst}, judged, losses)
    return {
        name: _screening(name, left_out.get(name, last), found[name], name in left_out)
        for name in sites
    }


def screen_sites(
    contributions: Sequence[Contribution],
    targets: Tensor,
    *,
    plan: Plan,
    own: Predictive | None = None,
    suspects: Mapping[str, Finding] = MappingProxyType({}),
) -> dict[str, Screening]:
    """Judge every site by the plan's rule, in its pool or, if that has nothing to tune, in `beta`.

    An untuned product is too sure of itself, and would be better without anybody.

    Contributions, targets and the coordinator's own model, cross-fitted, are on the labelled rows.
    """
    auto = plan.pool.method == "auto"
    losses = pool_losses(
        targets,
        seed=plan.seed,
        own=own if auto else None,
        prior=standard_prior(plan),
        specs=None if auto else (_BETA,),
        floor=plan.pool.floor,
    )
    rule = plan.rules.screening
    return screen(contributions, targets, losses=losses, rule=rule, suspects=suspects)


def pool_losses(
    targets: Tensor,
    *,
    seed: int,
    own: Predictive | None = None,
    prior: Predictive | None = None,
    specs: Sequence[PoolSpec] | None = None,
    floor: float = LOG_PROB_FLOOR,
    num_folds: int = 5,
    min_labels: int = MIN_LABELS,
) -> Losses:
    """The losses of the pool that `predbayes.pools.auto` would choose for some sites.

    Args:
        targets: The labels.
        seed: Of the folds, which are the same for whatever sites.
        own: The coordinator's own model, cross-fitted, on the labelled rows.
        prior: The prior predictive that the product divides out.
        specs: What to choose from; all that the sum can carry by default.
        floor: Least log-probability with which a site enters the pool.
        num_folds: Parts of the labelled rows in cross-validation.
        min_labels: With fewer labels the pool is the mixture.
    """

    def losses(contributions: Sequence[Contribution]) -> Tensor:
        total = sum_of(contributions, targets, own=own, prior=prior, floor=floor)
        carried = [r for r in specs or candidates(total) if r.components <= set(total.components)]
        rng = generator(seed, "screening")
        return select(
            total, targets, carried, num_folds=num_folds, min_labels=min_labels, rng=rng
        ).losses

    return losses


def sum_of(
    contributions: Sequence[Contribution],
    targets: Tensor,
    *,
    own: Predictive | None = None,
    prior: Predictive | None = None,
    floor: float = LOG_PROB_FLOOR,
) -> PredictiveSum[Any]:
    """Sites in every term of the candidates, with the coordinator's own model as one more site."""
    total: PredictiveSum[Any] = fold(
        c.summand(prior=prior, terms=TERMS[type(c.predictive)], floor=floor) for c in contributions
    )
    return with_coordinator(total, own, targets, marginal=prior, floor=floor)


def agreement(predictive: Predictive, targets: Tensor) -> tuple[float, float]:
    """The score Z of a site's predictions against the labels, and as a correlation.

    Examples:
        >>> right = Categorical.from_moments(torch.tensor([[0.9, 0.1], [0.1, 0.9]] * 8))
        >>> agreement(right, torch.tensor([0, 1] * 8))
        (4.0, 1.0)
    """
    if not len(targets):
        return 0.0, 0.0
    if isinstance(predictive, Categorical):
        scores, variances, freedom = _categorical_scores(predictive, targets)
    elif isinstance(predictive, Survival):
        scores, variances, freedom = _survival_scores(predictive, targets)
    else:
        assert isinstance(predictive, Gaussian)
        scores, variances, freedom = _gaussian_scores(predictive, targets)
    variance = float(variances.sum())
    # Numerics: of predictions that are constant up to rounding nothing can be said.
    if freedom == 0 or variance < 1e-12 * len(targets):
        return 0.0, 0.0
    score = float(scores.sum()) / math.sqrt(variance)
    return score, score / math.sqrt(len(targets) * freedom)


def _categorical_scores(predictive: Categorical, targets: Tensor) -> tuple[Tensor, Tensor, int]:
    log_probs = predictive.log_probs.double().clamp_min(_LOG_PROB_BOUND)
    counts = torch.bincount(targets, minlength=log_probs.shape[1]).double()
    shares = counts / counts.sum()
    # Base rates add nothing to the score, because the shares are those of the labels; what they
    # would add to the variance must go.
    varying = log_probs - log_probs.mean(0)
    centred = varying - (varying @ shares).unsqueeze(1)
    scores = Categorical.inner(centred, targets)
    return scores, centred.square() @ shares, int((counts > 0).sum()) - 1


def _survival_scores(predictive: Survival, targets: Tensor) -> tuple[Tensor, Tensor, int]:
    """Of each interval among the rows that reached it: trials are uncorrelated, as in a log rank.

    As scores of as many rows as there are events, which is what can be known from them.
    """
    num = predictive.log_odds.shape[1]
    seen = at_risk(targets, num).double()
    event = torch.zeros_like(seen)
    happened = (targets > 0).nonzero()[:, 0]
    event[happened, targets[happened].ceil().long() - 1] = 1.0
    reached = seen.sum(0).clamp_min(1)
    shares = event.sum(0) / reached
    said = predictive.log_odds.double().clamp(_LOG_PROB_BOUND, -_LOG_PROB_BOUND)
    centred = (said - (seen * said).sum(0) / reached) * seen
    variances = (centred.square() * (shares * (1 - shares))).sum(1)
    return (centred * (event - shares)).sum(1), variances, int(bool(event.any()))


def _gaussian_scores(predictive: Gaussian, targets: Tensor) -> tuple[Tensor, Tensor, int]:
    residuals = targets.double() - targets.double().mean()
    target_var = float(residuals.square().mean())
    if not target_var > 0:
        return residuals, residuals, 0
    reach = _MEAN_BOUND * math.sqrt(target_var)
    means = (predictive.mean.double() - targets.double().mean()).clamp(-reach, reach)
    certainty = target_var / (target_var + predictive.var.double())
    centred = certainty * (means - (certainty * means).sum() / certainty.sum())
    return centred * residuals, centred.square() * target_var, 1


def copies_among(contributions: Sequence[Contribution]) -> dict[str, tuple[str, ...]]:
    """For each site that has some, the sites whose predictions are nearly its own."""
    sites = [c for c in contributions if spread(c.predictive) > CONSTANT]
    distances = _distances([c.predictive for c in sites])
    found: dict[str, list[str]] = {}
    near = (distances < COPY_DISTANCE).triu(1).nonzero().tolist()
    for one, other in near:
        same = _same(sites[one].predictive, sites[other].predictive)
        if same or float(distances[one, other]) < COPY_RATIO * _usual(distances, sites, one, other):
            found.setdefault(sites[one].site, []).append(sites[other].site)
            found.setdefault(sites[other].site, []).append(sites[one].site)
    return {name: tuple(sorted(others)) for name, others in found.items()}


def _distances(predictives: Sequence[Predictive]) -> Tensor:
    """Squared Hellinger distances between sites, mean over rows."""
    if not predictives:
        return torch.zeros(0, 0, dtype=torch.float64)
    if not isinstance(predictives[0], Gaussian):
        roots = torch.stack([_log_shares(p).mul(0.5).exp().flatten() for p in predictives])
        # Numerics: differences, not products of which equal ones would leave their rounding.
        exact = "donot_use_mm_for_euclid_dist"
        apart = torch.cdist(roots, roots, compute_mode=exact)
        return apart.square() / (2 * len(predictives[0]))
    mean, var = (
        torch.stack([getattr(p, name).double() for p in predictives]) for name in ("mean", "var")
    )
    everybody = Gaussian(mean, var)
    return torch.stack([hellinger(one, everybody).mean(-1) for one in predictives])


def _usual(distances: Tensor, sites: Sequence[Contribution], one: int, other: int) -> float:
    """The median distance of two sites to the others, less where they have more rows; else zero."""
    noise = _noise(sites[one], sites[other])
    values = [
        float(distances[a, b]) * min(1.0, noise / _noise(sites[a], sites[b]))
        for a in (one, other)
        for b in range(len(sites))
        if b not in (one, other)
    ]
    return float(torch.tensor(values).median()) if values else 0.0


def _noise(one: Contribution, other: Contribution) -> float:
    """The variance of a difference between two models, but for a factor."""
    return 1 / one.num_rows + 1 / other.num_rows


def hellinger(one: Predictive, other: Predictive) -> Tensor:
    """Squared Hellinger distance per row, from 0 to 1."""
    if not isinstance(one, Gaussian):
        # Numerics: 1 - sum_c sqrt(p_c q_c) would be rounding where both are certain.
        roots = (0.5 * _log_shares(one)).exp(), (0.5 * _log_shares(other)).exp()
        return 0.5 * (roots[0] - roots[1]).square().sum(-1)
    assert isinstance(other, Gaussian)
    var, other_var = one.var.double(), other.var.double()
    both = var + other_var
    shift = (one.mean.double() - other.mean.double()).square()
    overlap = (2 * (var * other_var).sqrt() / both).sqrt() * (-0.25 * shift / both).exp()
    return (1 - overlap).clamp_min(0)


def spread(predictive: Predictive) -> float:
    """Mean squared Hellinger distance of a site's predictions from their mean."""
    if not len(predictive):
        return 1.0
    if isinstance(predictive, Gaussian):
        mean: Predictive = Gaussian(
            predictive.mean.double().mean()[None], predictive.var.double().mean()[None]
        )
    else:
        mean = type(predictive).from_moments(predictive.moments().double().mean(0)[None])
    return float(hellinger(predictive, mean).mean())


def _same(one: Predictive, other: Predictive) -> bool:
    """Whether predictions were copied without change, or after rounding."""
    if not isinstance(one, Gaussian):
        logs = [_log_shares(p).clamp_min(LOG_PROB_FLOOR) for p in (one, other)]
        return bool(((logs[0] - logs[1]).abs() < SAME * (1 - logs[0])).all())
    assert isinstance(other, Gaussian)
    shift = (one.mean - other.mean).abs() < SAME * one.var.sqrt()
    return bool(shift.all()) and bool(((one.var / other.var).log().abs() < SAME).all())


def _log_shares(predictive: Predictive) -> Tensor:
    """Logarithms of the probabilities of classes, or of intervals."""
    if isinstance(predictive, Categorical):
        return predictive.log_probs.double()
    assert isinstance(predictive, Survival)
    return Survival(predictive.log_odds.double()).log_moments()


def _surplus_copies(copies: Mapping[str, Sequence[str]], at_most: int) -> set[str]:
    """Of sites that are copies of each other, all but the first by name, the last ones first."""
    gone: set[str] = set()
    for name in sorted(copies):
        if name not in gone:
            gone.update(other for other in copies[name] if other > name)
    return set(sorted(gone, reverse=True)[: max(0, at_most)])


def _cheap_findings(
    contribution: Contribution,
    copies: Sequence[str],
    agreements: Mapping[str, tuple[float, float]],
    num_labels: int,
) -> dict[Kind, Finding]:
    """What a site's predictions show by themselves; without agreements nothing about labels."""
    found: dict[Kind, str] = {}
    if spread(contribution.predictive) <= CONSTANT:
        found["constant"] = _constant_text(contribution.predictive)
    elif agreements:
        score, correlation = agreements[contribution.site]
        usual = _median([z for z, _ in agreements.values()])
        figures = (
            f"correlation {correlation:+.2f} on {num_labels} rows, where the median site has "
            f"{_median([r for _, r in agreements.values()]):+.2f}"
        )
        if score <= CONTRADICTS:
            found["contradicts"] = f"Its predictions go against the labels: {figures}."
        elif score < max(UNINFORMATIVE, WEAK * usual):
            found["uninformative"] = (
                f"Its predictions say next to nothing about the labels: {figures}."
            )
    if copies:
        found["copy"] = (
            f"Its predictions are almost those of {' and '.join(copies)}, much nearer than two "
            "sites of this study usually are; who copied, or whether they hold the same rows, "
            "cannot be told."
        )
    return {kind: Finding(kind=kind, text=text) for kind, text in found.items()}


def _constant_text(predictive: Predictive) -> str:
    if not isinstance(predictive, Gaussian):
        probs = predictive.moments()
        most = f"{100 * float((probs.amax(0) - probs.amin(0)).max()):.2g} percentage points"
    else:
        means = predictive.mean
        most = f"{float(means.max() - means.min()):.2g} standard units"
    return f"Its predictions do not depend on the inputs: from row to row they differ by {most}."


def _judged(
    found: Mapping[str, Mapping[Kind, Finding]], agreements: Mapping[str, tuple[float, float]]
) -> set[str]:
    """Whose influence is measured: of many sites the suspect and the least informative."""
    ranked = sorted(agreements, key=lambda name: (agreements[name][0], name))
    return {*ranked[:MAX_JUDGED], *(name for name, kinds in found.items() if kinds)}


def _leave_one_out(
    sites: dict[str, Contribution], judged: set[str], losses: Losses
) -> _LeaveOneOut:
    """Pool the sites, and pool them again without each that is judged."""
    together = losses(list(sites.values()))
    gaps = {
        name: losses([c for n, c in sites.items() if n != name]) - together
        for name in sites
        if name in judged
    }
    clearly = NormalDist().inv_cdf(1 - HARMFUL / max(1, len(gaps)))
    return _LeaveOneOut(sites, float(together.mean()), gaps, clearly)


def _worst(
    pool: _LeaveOneOut,
    found: Mapping[str, Mapping[Kind, Finding]],
    copies: Mapping[str, Sequence[str]],
) -> str | None:
    """The next site to leave out: the one without which the pool is best."""
    if len(pool.sites) <= _LEAST_SITES:
        return None
    out = []
    for name in pool.gaps:
        kinds = set(found[name])
        if not pool.sites.keys() & set(copies.get(name, ())):
            kinds -= {"copy"}  # the others are gone: it counts once
        burden = max((_BURDEN[kind] for kind in kinds), default=-pool.clearly)
        if pool.score(name) <= burden:
            out.append(name)
    # Of equals, such as copies, the last by name.
    out.sort(reverse=True)
    return min(out, key=lambda name: round(float(pool.gaps[name].mean()), 9), default=None)


def _screening(
    name: str, pool: _LeaveOneOut, cheap: Mapping[Kind, Finding], leave_out: bool
) -> Screening:
    findings = list(cheap.values())
    if name not in pool.gaps:
        return Screening(tuple(findings), None, leave_out)
    influence = mean_estimate(pool.gaps[name])
    if pool.score(name) <= -pool.clearly:
        text = (
            f"Without it the pool is better: NLL {pool.nll + influence.value:.3f} instead of "
            f"{pool.nll:.3f} on {len(pool.gaps[name])} labelled rows, cross-validated, by "
            f"{-pool.score(name):.1f} standard errors."
        )
        findings.append(Finding(kind="harmful", text=text))
    return Screening(tuple(findings), influence, leave_out)


def _in_order(contributions: Sequence[Contribution]) -> dict[str, Contribution]:
    sites = {c.site: c for c in sorted(contributions, key=lambda c: c.site)}
    if len(sites) < len(contributions):
        raise StudyError("two contributions are of one site; pass each site once")
    return sites


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values).median())
