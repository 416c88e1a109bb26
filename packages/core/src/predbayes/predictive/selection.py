"""The pool that labelled rows select from candidates, no more complex than they support.

Each candidate is a pool (`predbayes.predictive.pooling`) with some free weights. Candidates of one
complexity overfit about as easily:

    untuned        mixture; log pool; the coordinator's own model; gated mixture and gated log pool
                   (categorical only)
    few weights    beta (the paper); a temperature; with entropy, trust, gates and their exponent,
                   the labels' marginal, the coordinator's own model
    many terms     the same with class mixture and label-prior-corrected log pool
    head           where there is a model of all sites' rows: alone, with a temperature, and with
                   mixture, gates, trust, marginal and own model, as few weights or many terms
    sites          one weight per site, where uploads are kept apart
    classes        one per site and class, likewise

Each is cross-validated on the labelled rows. The *one-standard-error rule* sets the complexity: the
least one whose best candidate is within one standard error of the best of all. Differences
are paired, row by row, so that what makes a row hard for every pool does not count. The standard
error is the larger of two: that of the sample, and what it would be if the simpler pool were right,

    sqrt( mean_i Var_{y ~ p_low(x_i)} log( p_high(y) / p_low(y) ) / N )

because where errors are rare a few hundred labels may hold none, and every sharper pool looks
better than it is. A Gaussian pool always has its scale tuned: intervals depend on it, and it
takes few labels. Its products are robust ones where there is a prior, which do not jump (see
`predbayes.predictive.pooling`); beta is the paper's.

Up to that complexity no candidate is taken alone, because a hundred labels cannot tell them apart:
their weights are averaged, each candidate r by the share (pseudo-BMA+; Yao et al., 2018)

    s_r = E_w softmax_r( - sum_i w_i loss_ri ),        w / N ~ Dirichlet(1, ..., 1) over the rows

A log-linear average of log-linear pools is again one. With many labels one candidate, or a few much
alike, have all of it. Candidates whose losses are almost the same at every row are one candidate
under several names, and divide one vote among them. The gated mixture, which is what all rows
together say where gates are right, has `FAVOUR` of the votes beforehand, so that a few dozen labels
outvote it only with a reason. Not so where gates cannot be trusted.

The weights of a pool with very many of them are tuned on a random part of the labelled rows, as
many as memory allows, and the choice says so; it is cross-validated on all.

With fewer than `MIN_LABELS` labels nothing can be selected. The pool is the gated mixture where
every site sent its gate, otherwise the mixture. Gates themselves tell when they cannot be trusted:
the mean ratio of all sites over the R reference rows,

    c = sum_k n_k r_k(x) / sum_k n_k,  averaged over x,

is the share of all sites' rows that lie where reference rows do. If it is small, sites and
reference rows are told apart so easily that ratios of sites to each other are noise; if there are
few reference rows that is so sooner. Then the pool is the mixture, with a warning.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import PoolError
from predbayes.predictive.families import (
    LOG_PROB_FLOOR,
    Categorical,
    Gaussian,
    Predictive,
    Survival,
)
from predbayes.predictive.folds import folds
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import (
    CLASS_MIXTURE,
    CORRECTED,
    ENTROPY,
    LOG_POOL,
    ROBUST,
    PredictiveSum,
    Term,
    Weight,
    gated,
    gated_name,
    trust,
)
from predbayes.predictive.tuning import TunedPool, tune_beta, tune_weights
from predbayes.seeding import generator

_log = logging.getLogger(__name__)

MIN_LABELS = 30
OWN = "own"
"""The component that is the coordinator's own model, cross-fitted on the labelled rows."""

MARGINAL = "marginal"
"""The component that knows nothing of the inputs: the distribution of the labels."""

HEAD = "head"
"""The component that is one model of all sites' rows, made without a label."""

TRUST_EXPONENTS = (0.5, 1.0, 2.0)
GATE_EXPONENTS = (0.5, 1.0, 1.5)
FAVOUR = 0.95
"""Share of the votes that the gated mixture has before any label speaks; chosen on validation rows
of Fashion-MNIST and MNIST, h = 0 and .9, among 0, .5, .8, .9 and .95."""

_NUM_DRAWS = 500
_LEAST_SHARE = 0.005
_MAX_ELEMENTS = 2**27  # of the directions, 1 GiB: a candidate with more is tuned on fewer rows
_MAX_WEIGHTS = 2**12  # a Newton step takes their third power: a candidate with more is not tried
_SAME_LOSS = 1e-3  # nats per row: candidates whose losses differ by less are one

GATED = gated_name()
GATED_LOG = gated_name(coordinates="natural")
_GATED_TERMS = (*(gated(exponent) for exponent in GATE_EXPONENTS), gated(coordinates="natural"))
CATEGORICAL_TERMS: tuple[Term, ...] = (
    LOG_POOL,
    ENTROPY,
    CLASS_MIXTURE,
    CORRECTED,
    *_GATED_TERMS,
)
_TRUST_TERMS = tuple(trust(exponent) for exponent in TRUST_EXPONENTS)
GAUSSIAN_TERMS: tuple[Term, ...] = (*_TRUST_TERMS, ROBUST, *_GATED_TERMS)
SURVIVAL_TERMS: tuple[Term, ...] = (LOG_POOL, ENTROPY, *_GATED_TERMS)
TERMS: Mapping[type[Predictive], Sequence[Term]] = {
    Categorical: CATEGORICAL_TERMS,
    Gaussian: GAUSSIAN_TERMS,
    Survival: SURVIVAL_TERMS,
}
"""The terms that a site is lifted into, for the candidates of its family."""


class Complexity(IntEnum):
    """How much there is to overfit."""

    UNTUNED = 0
    FEW_WEIGHTS = 1
    MANY_TERMS = 2
    SITES = 3
    CLASSES = 4

    @property
    def readable(self) -> str:
        """The words for what its pools have."""
        return (
            "no weights",
            "a few weights",
            "a weight for every term",
            "a weight per site",
            "a weight per site and class",
        )[self]


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One candidate: a pool and which of its weights are free.

    Args:
        name: What it is called in reports.
        complexity: How much there is to overfit.
        base: The component that it is drawn towards.
        free: Components with a free weight; none is the base alone.
        by_class: Components with a free weight for each class.
        interpolates: Whether it is the paper's pool, one weight between mixture and product.
    """

    name: str
    complexity: Complexity = Complexity.FEW_WEIGHTS
    base: str = "mixture"
    free: tuple[str, ...] = ()
    by_class: tuple[str, ...] = ()
    interpolates: bool = False

    @property
    def components(self) -> frozenset[str]:
        """The components that a sum must have for it."""
        return frozenset({self.base, *self.free, *self.by_class})

    def num_weights(self, num_coordinates: int) -> int:
        """Free weights, where a predictive has so many coordinates."""
        return 1 if self.interpolates else len(self.free) + num_coordinates * len(self.by_class)

    def tune(
        self,
        total: PredictiveSum[Any],
        targets: Tensor,
        *,
        prior_std: float = 1.0,
        profiles: bool | None = None,
    ) -> TunedPool:
        """The weights of least NLL on labelled rows, or on as many of them as memory allows.

        With profiles if they are asked for; by default that of beta alone.
        """
        num = self.num_tuned(len(total), _coordinates(total))
        if num < len(targets):
            # Rows at random, always the same for as many rows.
            order = torch.randperm(len(total), generator=generator(len(total), "tuned rows"))
            rows = order[:num].sort().values
            total, targets = total[rows], targets[rows]
        if self.interpolates:
            wanted = profiles is not False
            return tune_beta(total, targets, prior_std=prior_std, profiles=wanted)
        return tune_weights(
            total,
            targets,
            components=self.free,
            by_class=self.by_class,
            base=self.base,
            prior_std=prior_std,
            nonnegative=total.family is Gaussian,
            profiles=bool(profiles),
        )

    def num_tuned(self, num_rows: int, num_coordinates: int) -> int:
        """How many of the labelled rows its weights are tuned on."""
        per_row = num_coordinates * max(1, self.num_weights(num_coordinates))
        return min(num_rows, max(MIN_LABELS, _MAX_ELEMENTS // per_row))


@dataclass(frozen=True, slots=True)
class CandidateScore:
    """How a candidate did in cross-validation."""

    name: str
    complexity: Complexity
    num_weights: int
    nll: float  # mean over labelled rows, each scored with weights tuned without it
    behind: float  # mean difference to the best candidate
    standard_error: float  # of that difference
    share: float = 0.0  # in the pool that was chosen
    num_tuned: int = 0  # labelled rows that its weights are tuned on: of many weights not all


@dataclass(frozen=True, slots=True)
class Choice:
    """The pool that was chosen, its weights, and why."""

    spec: PoolSpec  # the one with the largest share
    tuned: TunedPool
    scores: tuple[CandidateScore, ...]  # of every candidate, the simplest first
    reason: str
    left_out: tuple[str, ...] = ()  # candidates with too many weights to be tried
    # (N,), -log p of each labelled row under weights tuned without it, averaged by the shares
    losses: Tensor = field(default_factory=lambda: torch.empty(0), compare=False, repr=False)
    distrusted: str = ""  # why gates were not used, where nothing could be tuned

    @property
    def name(self) -> str:
        """The candidates that make up most of the pool, largest share first."""
        ranked = sorted(self.scores, key=lambda score: -score.share)
        leading = [f"{s.name} ({s.share:.0%})" for s in ranked[:3] if s.share >= 0.1]
        return " + ".join(leading) or self.spec.name


def with_coordinator(
    total: PredictiveSum[Any],
    own: Predictive | None,
    targets: Tensor,
    *,
    marginal: Predictive | None,
    floor: float = LOG_PROB_FLOOR,
) -> PredictiveSum[Any]:
    """The sites' sum with what only the coordinator has.

    Args:
        total: Sites, in the `TERMS` of their family; left as it is.
        own: The coordinator's own model on the same rows: one more site, and the component `OWN`.
        targets: The labels that it was fitted to.
        marginal: The distribution of the labels, one row or as many; one that is made of these
            labels is cross-fitted as the model is. It is the component `MARGINAL`.
        floor: Least log-probability of the model.
    """
    if own is not None:
        bounded = own.bounded(floor)
        class_rows = None
        if isinstance(bounded, Categorical):
            class_rows = torch.bincount(targets, minlength=bounded.log_probs.shape[1])
        summand = PredictiveSum.of(
            bounded,
            len(targets),
            class_rows=class_rows,
            gate=torch.zeros(len(bounded)),  # its rows are reference rows
            prior=total.prior,
            terms=TERMS[type(bounded)],
            floor=floor,
        )
        total = (total + summand).with_component(OWN, bounded)
    if marginal is not None:
        everywhere = torch.zeros(len(total), dtype=torch.long)
        rows = marginal[everywhere] if len(marginal) == 1 else marginal
        total = total.with_component(MARGINAL, rows)
    return total


MIXTURE = PoolSpec("mixture", Complexity.UNTUNED)
GATED_MIXTURE = PoolSpec("gated mixture", Complexity.UNTUNED, GATED)


LEAST_COVERED = 0.1
"""Share of all sites' rows that must lie where reference rows do, for gates to be trusted."""

FEW_REFERENCE_ROWS = 100
LEAST_COVERED_BY_FEW = 0.7
"""The same where reference rows are fewer than that."""


def without_labels(total: PredictiveSum[Any]) -> PoolSpec:
    """Return the pool when labels are too few: gated where every site's gate can be trusted."""
    trusted = GATED in total.components and not distrusted_gates(total)
    return GATED_MIXTURE if trusted else MIXTURE


def least_covered(num_reference: int) -> float:
    """Return the share of sites' rows that must lie where so many reference rows do."""
    return LEAST_COVERED_BY_FEW if num_reference < FEW_REFERENCE_ROWS else LEAST_COVERED


def distrusted_gates(total: PredictiveSum[Any]) -> str:
    """Say why the gates of a sum, on all reference rows, cannot be trusted; empty if they can."""
    if GATED not in total.components or not len(total):
        return ""
    covered = float(torch.as_tensor(total.weight(GATED)).mean()) / float(total.weight("moments"))
    if covered >= least_covered(len(total)):
        return ""
    rows = f"the {len(total)}" if len(total) < FEW_REFERENCE_ROWS else "the"
    return (
        f"gates cannot be trusted, because only {covered:.0%} of the sites' rows seem to lie where "
        f"{rows} reference rows do"
    )


CANDIDATES = """\
for | complexity  | name                           | base      | free weights | free by class
C   | untuned     | mixture                        | mixture   |
C   | untuned     | log pool                       | log_pool  |
C   | untuned     | gated mixture                  | gated     |
C   | untuned     | gated log pool                 | gated_log |
C   | untuned     | own model alone                | own       |
C   | untuned     | head alone                     | head      |
CN  | few_weights | beta                           | mixture   | beta
CN  | few_weights | mixture, tempered              | mixture   | mixture
CN  | few_weights | mixture, product               | mixture   | mixture product
CN  | few_weights | own model, tempered            | own       | own
CN  | few_weights | mixture, own                   | mixture   | mixture own
CN  | few_weights | mixture, product, own          | mixture   | mixture product own
CN  | few_weights | gated log, tempered            | gated_log | gated_log
CN  | few_weights | gated 0.5, tempered            | gated_0.5 | gated_0.5
CN  | few_weights | gated 0.5, own                 | gated_0.5 | gated_0.5 own
CN  | few_weights | gated, tempered                | gated     | gated
CN  | few_weights | gated, own                     | gated     | gated own
CN  | few_weights | gated 1.5, tempered            | gated_1.5 | gated_1.5
CN  | few_weights | gated 1.5, own                 | gated_1.5 | gated_1.5 own
CN  | few_weights | gated, gated log, own          | gated     | gated gated_log own
CN  | few_weights | head, tempered                 | head      | head
CN  | few_weights | head, own                      | head      | head own
CN  | few_weights | mixture, head                  | mixture   | mixture head
CN  | few_weights | mixture, head, own             | mixture   | mixture head own
CN  | few_weights | gated, head                    | gated     | gated head
CN  | few_weights | gated, head, own               | gated     | gated head own
C   | few_weights | log pool, tempered             | log_pool  | log_pool
C   | few_weights | log pool, own                  | log_pool  | log_pool own
C   | few_weights | mixture, product, entropy      | mixture   | mixture product entropy
C   | few_weights | mixture, product, entropy, own | mixture   | mixture product entropy own
C   | many_terms  | every term                     | mixture   | @every
C   | many_terms  | every term, own                | mixture   | @every own
C   | many_terms  | gated, every term, own         | gated     | gated @every own
C   | many_terms  | every term, own, head          | mixture   | @every own head
C   | many_terms  | gated, every term, own, head   | gated     | gated @every own head
C   | sites       | a weight per site              | mixture   | @every @sites
C   | sites       | a weight per site, own         | mixture   | @every own @sites
C   | classes     | a weight per site and class    | mixture   | @every | @sites
C   | classes     | the same, own                  | mixture   | @every | @sites own
N   | few_weights | mixture, marginal              | mixture   | mixture marginal
N   | few_weights | mixture, own, marginal         | mixture   | mixture own marginal
N   | few_weights | gated, marginal                | gated     | gated marginal
N   | few_weights | gated, own, marginal           | gated     | gated own marginal
N   | few_weights | head, marginal                 | head      | head marginal
N   | few_weights | head, own, marginal            | head      | head own marginal
N   | few_weights | trust 0.5, tempered            | trust_0.5 | trust_0.5
N   | few_weights | trust 0.5, own                 | trust_0.5 | trust_0.5 own
N   | few_weights | trust 0.5, marginal            | trust_0.5 | trust_0.5 marginal
N   | few_weights | trust 0.5, own, marginal       | trust_0.5 | trust_0.5 own marginal
N   | few_weights | mixture, trust 0.5, own        | mixture   | mixture trust_0.5 own
N   | few_weights | trust 0.5, head, own           | trust_0.5 | trust_0.5 head own
N   | few_weights | trust 1, tempered              | trust_1   | trust_1
N   | few_weights | trust 1, own                   | trust_1   | trust_1 own
N   | few_weights | trust 1, marginal              | trust_1   | trust_1 marginal
N   | few_weights | trust 1, own, marginal         | trust_1   | trust_1 own marginal
N   | few_weights | mixture, trust 1, own          | mixture   | mixture trust_1 own
N   | few_weights | trust 1, head, own             | trust_1   | trust_1 head own
N   | few_weights | trust 2, tempered              | trust_2   | trust_2
N   | few_weights | trust 2, own                   | trust_2   | trust_2 own
N   | few_weights | trust 2, marginal              | trust_2   | trust_2 marginal
N   | few_weights | trust 2, own, marginal         | trust_2   | trust_2 own marginal
N   | few_weights | mixture, trust 2, own          | mixture   | mixture trust_2 own
N   | few_weights | trust 2, head, own             | trust_2   | trust_2 head own
N   | sites       | a weight per site              | mixture   | mixture @sites
N   | sites       | a weight per site, own         | mixture   | mixture own @sites
"""
"""Every candidate, a line each, in the order in which they are tried.

`for` names the families: C for classes and for times, N for numbers. `free weights` lists the
components with a weight of their own, drawn towards `base` alone. There `beta` is the paper's one
weight between mixture and product, `@every` each term of classes, and `@sites` each single site. A
sum that lacks one of the components doesn't have the candidate.
"""


def _read(line: str) -> tuple[str, PoolSpec]:
    """Return the families of a line of the table, and its pool."""
    families, complexity, name, base, free, by_class = (
        *(cell.strip() for cell in line.split("|")),
        "",
    )[:6]
    words = free.replace("@every", "mixture product entropy class_mixture corrected").split()
    is_beta = words == ["beta"]
    return families, PoolSpec(
        name,
        Complexity[complexity.upper()],
        base,
        () if is_beta else tuple(words),
        tuple(by_class.split()),
        interpolates=is_beta,
    )


_TABLE = tuple(map(_read, CANDIDATES.splitlines()[1:]))


def candidates(total: PredictiveSum[Any], sites: Sequence[str] = ()) -> list[PoolSpec]:
    """List the pools that can be made from a sum, the simplest first.

    Args:
        total: A sum with the terms of its family (`TERMS`), with components `OWN` and `MARGINAL`
            where the coordinator has a model and a prior.
        sites: Components that are single sites, where uploads are kept apart.
    """
    there, is_gaussian = set(total.components), total.family is Gaussian

    def named(components: tuple[str, ...]) -> tuple[str, ...]:
        """Put the sites in, and of numbers the robust product in place of the other."""
        names = [one for name in components for one in (sites if name == "@sites" else (name,))]
        swap = is_gaussian and "robust" in there
        return tuple("robust" if swap and name == "product" else name for name in names)

    specs = []
    for families, row in _TABLE:
        if ("N" if is_gaussian else "C") not in families:
            continue
        if "@sites" in row.components and not sites:
            continue
        spec = replace(row, free=named(row.free), by_class=named(row.by_class))
        if "robust" in spec.free:
            spec = replace(spec, name=spec.name.replace("product", "robust product"))
        if spec.components <= there:
            specs.append(spec)
    return specs


def why_untunable(targets: Tensor, min_labels: int = MIN_LABELS) -> str:
    """Say why labels are nothing to choose by; an empty word where they are.

    Labels that are all the same say of no pool that it is wrong elsewhere: what always says that
    one class is the best of all.

    Examples:
        >>> why_untunable(torch.tensor([0, 1, 1]), min_labels=3)
        ''
        >>> why_untunable(torch.tensor([0, 1]), min_labels=3)
        '2 labelled rows are too few to choose by; 3 are needed'
        >>> why_untunable(torch.tensor([1, 1, 1]), min_labels=3)
        'the labels of all 3 labelled rows are the same, which is nothing to choose by'
    """
    if len(targets) < min_labels:
        return f"{len(targets)} labelled rows are too few to choose by; {min_labels} are needed"
    if bool((targets == targets[0]).all()):
        return (
            f"the labels of all {len(targets)} labelled rows are the same, which is nothing to "
            "choose by"
        )
    return ""


def select(
    total: PredictiveSum[Any],
    targets: Tensor,
    specs: Sequence[PoolSpec],
    *,
    num_folds: int = 5,
    min_labels: int = MIN_LABELS,
    everywhere: PredictiveSum[Any] | None = None,
    rng: torch.Generator,
) -> Choice:
    """Select by cross-validation and the one-standard-error rule, and average what is left.

    Args:
        total: The sites' sum on the labelled rows.
        targets: Their labels.
        specs: What to choose from.
        num_folds: Parts of the rows, each scored once.
        min_labels: Below as many, or where all are the same, nothing is tuned (`without_labels`),
            with a warning.
        everywhere: The sites' sum on all reference rows, by which it is judged whether gates can
            be trusted where nothing is tuned; the labelled rows by default.
        rng: Which row is in which part, and the draws of the shares.
    """
    if why := why_untunable(targets, min_labels):
        return _untuned(total, targets, why, total if everywhere is None else everywhere)
    coordinates = _coordinates(total)
    left_out = tuple(s.name for s in specs if s.num_weights(coordinates) > _MAX_WEIGHTS)
    specs = [spec for spec in specs if spec.num_weights(coordinates) <= _MAX_WEIGHTS]
    parts = folds(len(targets), num_folds, rng=rng)
    held_out = [_held_out(spec, total, targets, parts) for spec in specs]
    losses = [_losses(total, natural, targets) for natural in held_out]
    best = min(range(len(specs)), key=lambda index: float(losses[index].mean()))
    if not bool(losses[best].isfinite().all()):
        raise PoolError("no pool is a distribution at every labelled row; give the clients a prior")
    scores = [
        _score(
            spec, total, targets, (held_out[index], losses[index]), (held_out[best], losses[best])
        )
        for index, spec in enumerate(specs)
    ]
    top = _least_complexity(scores)
    admitted = [score.complexity <= top for score in scores]
    favoured = None
    judged = total if everywhere is None else everywhere
    # Its share was chosen for classes.
    if total.family is Categorical and GATED_MIXTURE in specs and not distrusted_gates(judged):
        favoured = specs.index(GATED_MIXTURE)
    shares = _shares(losses, admitted, rng, favoured)
    scores = [replace(score, share=share) for score, share in zip(scores, shares, strict=True)]
    leading = max(range(len(specs)), key=lambda index: shares[index])
    tuned = _averaged(total, targets, specs, shares)
    # An improper candidate has no share.
    parts_of = [s * n for n, s in zip(held_out, shares, strict=True) if s > 0 and n is not None]
    averaged = _losses(total, torch.stack(parts_of).sum(0), targets)
    reason = "; ".join([_reason(top, scores, best), *_limits(scores, left_out, len(targets))])
    return Choice(specs[leading], tuned, tuple(scores), reason, left_out, averaged)


def _untuned(
    total: PredictiveSum[Any], targets: Tensor, reason: str, everywhere: PredictiveSum[Any]
) -> Choice:
    """The pool for which nothing is tuned, and why it is taken."""
    spec, distrusted = without_labels(everywhere), distrusted_gates(everywhere)
    if distrusted:
        reason = f"{reason}; {distrusted}"
    _log.warning("the pool is the %s: %s", spec.name, reason)
    weights: dict[str, Weight] = {spec.base: 1.0}
    own = -total.pool(weights).log_prob(targets).double() if len(targets) else torch.empty(0)
    tuned = TunedPool(weights, float(own.mean()), len(targets), {})
    return Choice(spec, tuned, (), reason, losses=own, distrusted=distrusted)


def _shares(
    losses: Sequence[Tensor],
    admitted: Sequence[bool],
    rng: torch.Generator,
    favoured: int | None = None,
) -> list[float]:
    """Each candidate's share of the pool; small shares, and those not admitted, are left out."""
    used = [i for i, ok in enumerate(admitted) if ok and bool(losses[i].isfinite().all())]
    stacked = torch.stack([losses[i] for i in used])
    votes = _votes(stacked)
    least = _LEAST_SHARE * votes
    if favoured in used:
        votes *= (1 - FAVOUR) / votes.sum()
        votes[used.index(favoured)] += FAVOUR
    draws = torch.empty(_NUM_DRAWS, stacked.shape[1], dtype=torch.float64)
    draws.exponential_(generator=rng)
    draws *= stacked.shape[1] / draws.sum(1, keepdim=True)
    found = (votes.log() - draws @ stacked.T).softmax(1).mean(0)
    found = torch.where(found < least, 0.0, found)
    shares = [0.0] * len(losses)
    for index, share in zip(used, (found / found.sum()).tolist(), strict=True):
        shares[index] = share
    return shares


def _votes(losses: Tensor) -> Tensor:
    """Prior shares, (R,): candidates of almost the same losses, (R, N), divide one among them."""
    groups: list[list[int]] = []
    for index, own in enumerate(losses):
        for group in groups:
            if float((own - losses[group[0]]).abs().mean()) < _SAME_LOSS:
                group.append(index)
                break
        else:
            groups.append([index])
    votes = torch.empty(len(losses), dtype=torch.float64)
    for group in groups:
        votes[group] = 1 / len(group)
    return votes


def _averaged(
    total: PredictiveSum[Any], targets: Tensor, specs: Sequence[PoolSpec], shares: Sequence[float]
) -> TunedPool:
    """The pool whose weights are the candidates', averaged by their shares."""
    used = [(spec, share) for spec, share in zip(specs, shares, strict=True) if share > 0]
    if len(used) == 1:
        # Intervals of one weight come at once; of several each takes many solves.
        alone = used[0][0]
        return alone.tune(total, targets, profiles=alone.interpolates or len(alone.free) == 1)
    sums: dict[str, Tensor] = {}
    for spec, share in used:
        for name, weight in spec.tune(total, targets, profiles=False).weights.items():
            part = share * torch.tensor(weight, dtype=torch.float64)
            sums[name] = sums[name] + part if name in sums else part
    weights: dict[str, Weight] = {
        name: tuple(weight.tolist()) if weight.ndim else float(weight)
        for name, weight in sums.items()
    }
    return TunedPool(weights, nll(total.pool(weights), targets), len(targets), {})


def _held_out(
    spec: PoolSpec,
    total: PredictiveSum[Any],
    targets: Tensor,
    parts: Sequence[tuple[Tensor, Tensor]],
) -> Tensor | None:
    """Natural coordinates at each row under weights tuned on the other parts; None if improper."""
    natural = torch.empty_like(total.component("mixture"))
    for out, rest in parts:
        try:
            tuned = spec.tune(total[rest], targets[rest], profiles=False)
            natural[out] = total[out].pool(tuned.weights).natural().double()
        except PoolError:  # improper with these weights at some row that they were not tuned on
            return None
    return natural


def _losses(total: PredictiveSum[Any], natural: Tensor | None, targets: Tensor) -> Tensor:
    """-log p of each row."""
    if natural is None:
        return torch.full((len(targets),), math.inf, dtype=torch.float64)
    losses: Tensor = -total.family.from_natural(natural).log_prob(targets).double()
    return losses


def _score(
    spec: PoolSpec,
    total: PredictiveSum[Any],
    targets: Tensor,
    own: tuple[Tensor | None, Tensor],
    best: tuple[Tensor | None, Tensor],
) -> CandidateScore:
    (natural, losses), (best_natural, best_losses) = own, best
    behind, error = losses - best_losses, math.nan
    if natural is not None and best_natural is not None:
        gap = (best_natural - natural).unsqueeze(0)
        _, variance = total.family.derivatives(*total.family.observed(natural, gap, targets))
        error = math.sqrt(max(float(behind.var()), float(variance)) / len(behind))
    coordinates = _coordinates(total)
    return CandidateScore(
        spec.name,
        spec.complexity,
        spec.num_weights(coordinates),
        float(losses.mean()),
        float(behind.mean()),
        error,
        num_tuned=spec.num_tuned(len(losses), coordinates),
    )


def _least_complexity(scores: Sequence[CandidateScore]) -> Complexity:
    """The least complexity whose best candidate is within one standard error of the best of all."""
    for complexity in sorted({score.complexity for score in scores}):
        # Of equals the first, as in `select`: the best of all is behind by nothing.
        winner = min((s for s in scores if s.complexity == complexity), key=lambda score: score.nll)
        if winner.behind <= winner.standard_error:
            return complexity
    raise AssertionError("the best candidate is within any error of itself")


def _reason(top: Complexity, scores: Sequence[CandidateScore], best: int) -> str:
    """Which complexity, and why not a higher one."""
    lead = min((score for score in scores if score.complexity == top), key=lambda score: score.nll)
    text = f"cross-validated NLL {lead.nll:.4f} with {top.readable}"
    if scores[best].complexity <= top:
        return text
    return (
        f"{text}, within one standard error ({lead.standard_error:.4f}) of {scores[best].name!r} "
        f"({scores[best].nll:.4f}), which overfits sooner"
    )


def _limits(
    scores: Sequence[CandidateScore], left_out: Sequence[str], num_labels: int
) -> list[str]:
    """What was not tried, or not on all labelled rows, in words; also a warning."""
    told = []
    if left_out:
        names = ", ".join(map(repr, left_out))
        told.append(f"not tried, because of more than {_MAX_WEIGHTS:,} weights: {names}")
    parts = [f"{s.name!r} on {s.num_tuned:,}" for s in scores if s.num_tuned < num_labels]
    if parts:
        told.append(f"tuned on some of {num_labels:,} labelled rows, to fit: {', '.join(parts)}")
    for words in told:
        _log.warning("candidates of the pool: %s", words)
    return told


def _coordinates(total: PredictiveSum[Any]) -> int:
    return int(total.component("mixture").shape[1])
