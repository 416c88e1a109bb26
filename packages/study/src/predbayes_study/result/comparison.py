"""Does a site say other things where no label can check it? Sites against each other, on all rows.

Screening judges a site by the labelled rows. A site that knew which these are could be honest
there and lie elsewhere, where the common model learns, too. So sites are compared with each other
on rows of both kinds. For site k at row i, with p_ki what it predicts and q_ki the plain mean of
what the other sites predict, three values should not depend on whether the row has a label:

    distance       h(p_ki, q_ki), squared Hellinger
    opposition     - (p_ki - mean_i p_ki) (q_ki - mean_i q_ki), summed over classes
    assurance      - H(p_ki), or for a regression - 1/2 log of the epistemic variance

They may depend on the inputs, and rows without labels may come from elsewhere. So what inputs tell
is taken out of both, value and role (1 without a label, 0 with one), by least squares on inputs and
their squares. With s_i and r_i what is left, h_i the leverage of the row, and n rows,

    t = sum_i r_i s_i / sqrt( sum_i r_i^2 s_i^2 / (1 - h_i)^2 )

is about standard normal for an honest site, however spread its values are (MacKinnon and White,
1985; HC3). The largest |t| over sites and values is compared with what it is when the r_i are
permuted, so that `ALPHA` is the rate of false alarms for all sites together.

Who lies moves the mean of the others, so that honest sites seem to differ, too. Named is the
smallest set of sites, a minority, without which the others agree on both kinds of rows. If there is
none, as of two sites, it cannot be told who lies, and nobody is named. Of more than `ALL_PAIRS`
sites this is done in rounds: named are all that differ at least half as much as who differs most,
until the others agree, or nobody if that takes half of the sites or `_MOST_ROUNDS` rounds.

Without labels sites can still be held against each other where both have rows, by their gates r. Of
two sites j and k, with a what a site says (log-probabilities less their mean over classes, or the
mean of a number) and w_i = min(r_ji, r_ki) where that is not small,

    c_jk = sum_i w_i a_ji a_ki / sqrt( sum_i w_i a_ji^2 sum_i w_i a_ki^2 ),   a less its mean over w

Base rates add a constant to log-probabilities, which the mean takes out: honest sites agree where
both have rows, however skewed their classes are. Named is who agrees with nobody: whose largest
c_jk is next to nothing where the median site's is not. Two that lie alike are not found so. A site
that says nearly the same everywhere, or claims rows where no other site does, cannot be compared.
It is named as such and counts for least (`predbayes_study.result.weighing`). Where sites have so
few rows at the reference rows that the pool does without gates, they are compared without gates,
too: by what each says against the mean of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor

from predbayes.exchange.reference import ReferenceRows
from predbayes.predictive.families import Predictive
from predbayes.predictive.selection import MIN_LABELS, least_covered
from predbayes_study.result.copies import ALL_PAIRS, hellinger
from predbayes_study.result.schema import Finding
from predbayes_study.tasks import task_for

ALPHA = 0.01  # false alarms, for all sites together
LEAST_EFFECT = 0.4  # standard deviations: with many rows a smaller one is still no lie
LEAST_OVERLAP = 0.2  # of the variance of roles, that inputs do not tell
MOST_NAMED = 3  # sites at once
_MOST_SUSPECTS = 8
_MOST_ROUNDS = 5
_ROWS_PER_FEATURE = 3  # at least, of either kind
_NUM_DRAWS = 999
_CHUNK = 100  # draws at a time
_REACH = 2.5  # standard deviations of an input: one odd row must not own the fit

MOST_ROWS = 6000  # that are compared, a third of each role
_MOST_ELEMENTS = 2**26  # of all sites together, 256 MB

Sites = Mapping[str, Predictive]
Gates = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class SiteComparison:
    """What came of comparing sites with each other."""

    findings: Mapping[str, Finding]
    cautions: tuple[str, ...]  # what could not be told; they name no site
    unclear: bool = False  # some site lies, and it cannot be told which


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison says of some rows without labels."""

    named: tuple[str, ...] = ()
    unclear: bool = False  # some sites lie, and it cannot be told which
    effect: float = 0.0  # of the largest difference, in standard deviations
    reason: str = ""  # why nothing could be compared


@dataclass(frozen=True, slots=True)
class _Roles:
    """Which rows have no label, and what inputs tell about it."""

    basis: Tensor  # (n, F), orthonormal functions of the inputs
    roles: Tensor  # (n,), 1 without a label, less what the basis tells

    @classmethod
    def of(cls, inputs: Tensor, elsewhere: Tensor) -> _Roles:
        fewest = int(min(elsewhere.sum(), (~elsewhere).sum()))
        basis = _basis(inputs, fewest // _ROWS_PER_FEATURE)
        return cls(basis, _without(basis, elsewhere.double()))

    @property
    def leverage(self) -> Tensor:
        return self.basis.square().sum(1).clamp_max(0.9)


@dataclass(frozen=True, slots=True)
class _Scores:
    """|t| of each value of each site, (K S,), and what it is made of."""

    names: tuple[str, ...]
    roles: Tensor  # (n,)
    values: Tensor  # (n, K S), what inputs leave, in standard deviations
    scores: Tensor

    @classmethod
    def of(cls, sites: Sites, rows: _Roles) -> _Scores:
        values = _without(rows.basis, _values(list(sites.values())))
        values = (values / values.std(0).clamp_min(1e-9)).float()
        spread = values.square() / (1 - rows.leverage).float().square().unsqueeze(1)
        roles = rows.roles.float()
        return cls(tuple(sites), roles, values, _studentised(roles[None], values, spread)[0])

    @property
    def largest(self) -> float:
        return float(self.scores.max())

    @property
    def effect(self) -> float:
        values = self.values[:, int(self.scores.argmax())]
        return abs(float(self.roles @ values / self.roles.square().sum()))

    def suspects(self) -> list[str]:
        """The sites with the largest scores, the largest first."""
        by_site = self.scores.reshape(len(self.names), -1).amax(1)
        return [self.names[k] for k in by_site.argsort(descending=True)[:_MOST_SUSPECTS]]

    def above(self, limit: float) -> set[str]:
        """The sites with a score above a limit."""
        by_site = self.scores.reshape(len(self.names), -1).amax(1)
        return {self.names[k] for k in (by_site > limit).nonzero()[:, 0].tolist()}

    def limit(self, alpha: float, rng: torch.Generator) -> float:
        """What the largest exceeds at this rate if roles mean nothing."""
        spread, largest = self.values.square(), []
        for done in range(0, _NUM_DRAWS, _CHUNK):
            num = min(_CHUNK, _NUM_DRAWS - done)
            order = torch.rand(num, len(self.roles), generator=rng).argsort(1)
            largest.append(_studentised(self.roles[order], self.values, spread).amax(1))
        return float(torch.cat(largest).quantile(1 - alpha, interpolation="higher"))


@dataclass(frozen=True, slots=True)
class ComparedRows:
    """Reference rows on which sites are compared; of many some of each role, at random."""

    reference: ReferenceRows
    index: Tensor  # (n,), ascending

    @classmethod
    def of(cls, reference: ReferenceRows, num_elements: int, *, rng: torch.Generator) -> Self:
        """Choose as many rows as memory allows, if all sites have so many numbers for one."""
        most = min(MOST_ROWS, _MOST_ELEMENTS // max(1, num_elements)) // 3
        ends = [0, len(reference.targets), reference.evaluate.start, len(reference.inputs)]
        parts = [
            start + torch.randperm(end - start, generator=rng)[:most].sort().values
            for start, end in pairwise(ends)
        ]
        return cls(reference, torch.cat(parts))

    def compare(
        self, sites: Sites, *, gates: Gates = MappingProxyType({}), rng: torch.Generator
    ) -> SiteComparison:
        """Compare sites, whose predictives and gates are on these rows, where labels are missing.

        Gates are looked at only where labels are too few, and only if all sites sent theirs.
        """
        if len(self.reference.targets) < MIN_LABELS:
            return _without_labels(sites, gates, len(self.reference.targets))
        ends = len(self.reference.targets), self.reference.evaluate.start
        labelled = self.index < ends[0]
        evaluate = self.index >= ends[1]
        groups = {"rows without labels": ~labelled & ~evaluate, "rows to evaluate": evaluate}
        groups = {what: rows for what, rows in groups.items() if rows.any()}
        verdicts = {}
        for what, rows in groups.items():
            both = (rows | labelled).nonzero()[:, 0]
            verdicts[what] = compare(
                {site: predictive[both] for site, predictive in sites.items()},
                self.reference.inputs[self.index[both]],
                rows[both],
                alpha=ALPHA / len(groups),
                rng=rng,
            )
        return _told(verdicts, {what: int(rows.sum()) for what, rows in groups.items()})


def _told(verdicts: Mapping[str, Verdict], num: Mapping[str, int]) -> SiteComparison:
    """The same in words."""
    findings, cautions = dict[str, Finding](), list[str]()
    for what, verdict in verdicts.items():
        if verdict.reason:
            cautions.append(
                f"Could not check whether sites predict on the {num[what]:,} {what} as they do on "
                f"the labelled ones: {verdict.reason}."
            )
        if verdict.unclear:
            cautions.append(
                f"Some site predicts otherwise on the {num[what]:,} {what} than on the labelled "
                "ones; which cannot be told."
            )
        text = (
            f"On the {num[what]:,} {what} it predicts otherwise, compared with the other sites, "
            f"than on the labelled ones: by {verdict.effect:.1f} standard deviations."
        )
        for site in verdict.named:
            findings.setdefault(site, Finding(kind="inconsistent", text=text))
    return SiteComparison(findings, tuple(cautions), any(v.unclear for v in verdicts.values()))


def _without_labels(sites: Sites, gates: Gates, num_labels: int) -> SiteComparison:
    """What can be said where labels are too few to judge anybody by."""
    caution = (
        f"Could not check any site against labels: labelled rows are {num_labels},"
        f" and {MIN_LABELS} are needed."
    )
    if sites.keys() == gates.keys() and _cover(gates):
        what = "Where it and another site both have rows it agrees with none of them"
        best = agreements(sites, gates)
        figure, found = "correlation at most", isolated(best)
        caution += f" {_who_was_compared(len(best), len(sites))}"
        alone = sites.keys() - best if len(best) > _LEAST_OTHERS else set()
    else:
        what = "Its predictions go against those of the other sites"
        figure, found, alone = "correlation", opposed(sites), set()
    findings = {
        name: Finding(
            kind="opposed",
            text=f"{what}: {figure} {r:+.2f}, where the median site has {usual:+.2f}. Labels are "
            "too few to tell who is right.",
        )
        for name, (r, usual) in found.items()
    }
    told = Finding(kind="uncompared", text=_UNCOMPARED)
    return SiteComparison(findings | dict.fromkeys(sorted(alone), told), (caution,))


_UNCOMPARED = (
    "It could not be compared with the other sites: it says nearly the same wherever it has rows, "
    "or says that it has rows where too few others do. So it counts for as little as any site."
)


def _cover(gates: Gates) -> bool:
    """Whether sites have enough rows at the reference rows for gates to be trusted."""
    ratios = torch.stack([gate.double().exp().mean() for gate in gates.values()])
    return bool(ratios.mean() >= least_covered(len(next(iter(gates.values())))))


def _who_was_compared(num: int, num_sites: int) -> str:
    if num <= _LEAST_OTHERS:
        return (
            "Nor could sites be compared with each other: that takes three of them with rows at "
            f"the same reference rows, {_LEAST_SHARED} or more."
        )
    if num == num_sites:
        return "Sites were compared with each other, where both have rows."
    return (
        f"{num:,} of {num_sites:,} sites were compared with each other, where both have rows. The "
        "others say the same everywhere, or that they have rows where too few other sites do: "
        "nobody checks that."
    )


def compare(
    sites: Sites,
    inputs: Tensor,
    elsewhere: Tensor,
    *,
    alpha: float = ALPHA,
    rng: torch.Generator,
) -> Verdict:
    """Name the sites that are others on rows without labels than on labelled ones.

    Args:
        sites: What each predicts, on rows of both kinds.
        inputs: Of these rows.
        elsewhere: True where a row has no label that screening knows.
        alpha: Rate of false alarms.
        rng: Draws of the permutations.
    """
    if reason := _obstacle(sites, elsewhere):
        return Verdict(reason=reason)
    rows = _Roles.of(inputs, elsewhere)
    overlap = rows.roles.square().mean() / elsewhere.double().var(correction=0)
    if overlap < LEAST_OVERLAP:
        return Verdict(reason="their inputs are unlike those of the labelled rows")
    found = _Scores.of(sites, rows)
    limit, effect = found.limit(alpha, rng), found.effect
    if found.largest <= limit or effect < LEAST_EFFECT:
        return Verdict()
    if len(sites) > ALL_PAIRS:
        named = _all_that_differ(sites, rows, found, limit)
    else:
        named = _minority(sites, rows, found.suspects(), limit)
    return Verdict(named, not named, effect)


def opposed(sites: Sites) -> dict[str, tuple[float, float]]:
    """Sites whose predictions go against the mean of the others', with that and the median r.

    Without labels it cannot be told who is right.
    """
    if len(sites) < 3:
        return {}
    pairs = [_varying(p, mean) for p, mean in _against_others(list(sites.values()))]
    found = torch.stack([(a * b).sum() / (a.norm() * b.norm()).clamp_min(1e-9) for a, b in pairs])
    return against_others(dict(zip(sites, found.tolist(), strict=True)))


def against_others(correlations: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Sites that go against the others where the usual site goes with them, with that median.

    Args:
        correlations: Of each site with the others together.
    """
    usual = float(torch.tensor(list(correlations.values())).median())
    against = {n: r for n, r in correlations.items() if -r > _LEAST_OPPOSED < usual}
    return {name: (r, usual) for name, r in against.items()}


def isolated(best: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Sites that agree with no other, where the usual site does: their best and the median.

    Args:
        best: Correlations with the others, as of `agreements`.
    """
    if len(best) <= _LEAST_OTHERS:
        return {}
    usual = float(torch.tensor(list(best.values())).median())
    if usual < LEAST_USUAL:
        return {}
    return {name: (r, usual) for name, r in best.items() if r < ISOLATED * usual}


def agreements(sites: Sites, gates: Gates) -> dict[str, float]:
    """By site that could be compared with others, its correlation with who agrees best.

    Args:
        sites: What each predicts.
        gates: Log density ratio of each site's rows to reference rows, on the same rows.
    """
    said = {
        name: task_for(predictive).without_level(predictive) for name, predictive in sites.items()
    }
    ratios = {name: gates[name].double().exp() for name in sites}
    spreads = torch.stack([_spread(said[name], ratios[name]) for name in sites])
    least = _LEAST_SPREAD * float(spreads.median())
    varied = [n for n, spread in zip(sites, spreads.tolist(), strict=True) if spread > least]
    # Of many sites some stand for all, evenly spread over the names.
    some = varied[:: max(1, math.ceil(len(varied) / ALL_PAIRS))]
    best: dict[str, float] = {}
    for one in varied:
        found = [_agreed(said, ratios, one, other) for other in some if other != one]
        known = [value for value in found if value is not None]
        if len(known) >= _LEAST_OTHERS:
            best[one] = max(known)
    return best


ISOLATED = 0.3  # of the median site's correlation with the site that it agrees best with
LEAST_USUAL = 0.3  # of that: where sites hardly agree anyway nobody stands out
_LEAST_RATIO = 0.1  # at which a site counts as having rows
_LEAST_SHARED = 30  # rows, effectively, that two sites must share
_LEAST_OTHERS = 2  # sites to be compared with
_LEAST_SPREAD = 0.2  # of the median site's; what varies less is mostly noise, in whatever direction


def _centred(said: Tensor, weights: Tensor) -> Tensor:
    return said - (weights.unsqueeze(1) * said).sum(0) / weights.sum()


def _spread(said: Tensor, weights: Tensor) -> Tensor:
    """Variance of what a site says where it has rows."""
    squares = _centred(said, weights).square().sum(1)
    return (weights * squares).sum() / weights.sum()


def _agreed(
    said: Mapping[str, Tensor], ratios: Mapping[str, Tensor], one: str, other: str
) -> float | None:
    """The correlation of two sites where both have rows; None if these are too few."""
    weights = torch.minimum(ratios[one], ratios[other])
    weights = torch.where(weights < _LEAST_RATIO, 0.0, weights)
    if not float(weights.sum()) ** 2 >= _LEAST_SHARED * float(weights.square().sum()) > 0:
        return None
    a, b = _centred(said[one], weights), _centred(said[other], weights)
    root = weights.sqrt().unsqueeze(1)
    size = ((root * a).norm() * (root * b).norm()).clamp_min(1e-9)
    return float((weights * (a * b).sum(1)).sum() / size)


_LEAST_OPPOSED = 0.2  # correlation, of the usual site with the others, and against them


def _obstacle(sites: Sites, elsewhere: Tensor) -> str:
    if len(sites) < 2:
        return "one site has nobody to be compared with"
    if min(elsewhere.sum(), (~elsewhere).sum()) < MIN_LABELS:
        return f"fewer than {MIN_LABELS} rows of either kind cannot be compared"
    return ""


def _minority(sites: Sites, rows: _Roles, suspects: Sequence[str], limit: float) -> tuple[str, ...]:
    """The smallest set of suspects without which the other sites agree; empty if there is none."""

    def left(without: Sequence[str]) -> float:
        return _Scores.of({n: p for n, p in sites.items() if n not in without}, rows).largest

    for num in range(1, min(MOST_NAMED, (len(sites) - 1) // 2) + 1):
        best = min(combinations(suspects, num), key=left)
        if left(best) <= limit:
            return tuple(sorted(best))
    return ()


def _all_that_differ(sites: Sites, rows: _Roles, found: _Scores, limit: float) -> tuple[str, ...]:
    """Of many sites those without which the others agree; empty if they are no minority."""
    named: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        # Who lies moves the mean of the others, so honest sites differ, too, but less.
        named |= found.above(max(limit, found.largest / 2))
        if 2 * len(named) >= len(sites):
            return ()
        found = _Scores.of({n: p for n, p in sites.items() if n not in named}, rows)
        if found.largest <= limit or found.effect < LEAST_EFFECT:
            return tuple(sorted(named))
    return ()


def _basis(inputs: Tensor, most: int) -> Tensor:
    """Inputs and their squares as orthonormal columns; of too many the leading components."""
    flat = inputs.reshape(len(inputs), -1).double()
    flat = ((flat - flat.mean(0)) / flat.std(0).clamp_min(1e-9)).clamp(-_REACH, _REACH)
    if 2 * flat.shape[1] > most:
        flat = torch.linalg.svd(flat, full_matrices=False)[0][:, : max(1, most // 2)]
    columns = torch.cat([torch.ones(len(flat), 1).double(), flat, flat.square()], dim=1)
    vectors, sizes, _ = torch.linalg.svd(columns, full_matrices=False)
    kept: Tensor = vectors[:, sizes > 1e-9 * sizes[0]]
    return kept


def _without(basis: Tensor, values: Tensor) -> Tensor:
    """What the basis leaves of values."""
    return values - basis @ (basis.T @ values)


def _studentised(roles: Tensor, values: Tensor, spread: Tensor) -> Tensor:
    """|t| for each line of roles, (B, S)."""
    scores: Tensor = (roles @ values).abs() / (roles.square() @ spread).sqrt().clamp_min(1e-9)
    return scores


def _values(predictives: Sequence[Predictive]) -> Tensor:
    """Distance, opposition and assurance of each site at each row, (n, 3 K)."""
    columns = []
    for predictive, mean in _against_others(predictives):
        own, theirs = _varying(predictive, mean)
        assurance = task_for(predictive).assurance(predictive)
        columns += [hellinger(predictive, mean), -(own * theirs).sum(1), assurance]
    return torch.stack(columns, dim=1)


def _against_others(predictives: Sequence[Predictive]) -> list[tuple[Predictive, Predictive]]:
    """Each site, and the plain mean of the others."""
    of_moments = task_for(predictives[0]).of_moments
    moments = [predictive.moments().double() for predictive in predictives]
    total = torch.stack(moments).sum(0)
    means = [(total - own) / (len(moments) - 1) for own in moments]
    return list(zip(predictives, map(of_moments, means), strict=True))


def _varying(*predictives: Predictive) -> tuple[Tensor, ...]:
    """Probabilities, or a regression's means, less their mean over rows."""
    firsts = [task_for(p).expected(p.moments().double()) for p in predictives]
    return tuple(first - first.mean(0) for first in firsts)
