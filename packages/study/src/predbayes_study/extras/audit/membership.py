r"""How well can it be told who was trained on? Shadow halves, a likelihood ratio, AUC and epsilon.

A fit is repeated on *shadow halves*. For each of J pairs every person is put by a fair coin into
one half or into its complement, so each person is in exactly one half of every pair. What a fit
says about person i is one number x, or a few. Its attack is a likelihood ratio (LiRA; Carlini et
al., 2022) of two normal laws of one variance,

    score = (x - m_i) d_i / v_i,    m_i = (in_i + out_i) / 2,    d_i = in_i - out_i

with means and variance of the *other* pairs: both halves of the scored pair are left out. Leaving
out the scored half alone would leave one run more on the side where the person was not, and a
score that has seen its own run finds members where there are none. d_i and v_i of few runs are
drawn towards those of all people, by as much as chance explains.

    AUC        the chance that a member scores higher than somebody who is none; .5 is guessing.
               Its interval is a bootstrap over people: several scores of one person are no news
    null       the same with membership that is shuffled inside each pair. It must be near .5
    epsilon    a lower bound (Steinke, Nasr and Jagielski, 2023). Of one run, k memberships are
               guessed. If training were epsilon-private, right guesses would be no more than a
               Binomial(k, e^eps / (1 + e^eps)). Here one half of each pair is guessed by means of
               the pairs before it, so that, given the past, each run is an audit of its own, and
               the guesses of all of them together have the same bound

Coins are fair and independent, as the bound asks for; so halves are not of equal size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import scipy  # whose parts load when they are used
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

Array = npt.NDArray[np.float64]
Share = Annotated[float, Field(ge=0, le=1)]
Members = npt.NDArray[np.bool_]

LOW, HIGH = 0.55, 0.65
"""Below the first an AUC is called near guessing, above the second plain."""

LEVEL = 0.95
"""Of the interval of an AUC, and of the bound on epsilon."""

_NUM_RESAMPLED = 200
_NUM_SHUFFLED = 16  # at least; of few people more, until there are so many:
_SHUFFLED_PEOPLE = 20_000
_LEAST_PAIRS = 2  # before the first that is guessed: below, a variance is of one difference
_SHARES = (1.0, 0.3, 0.1, 0.03)  # of the people who are guessed; the bound is corrected for four
_PRIOR_RUNS = 4.0  # that the variance of all people is worth
_TINY = 1e-12


@pydantic_dataclass(frozen=True, slots=True)
class Leak:
    """What one attack found."""

    auc: Share
    low: Share  # ends of its interval
    high: Share
    null: Share  # the AUC where membership was shuffled
    epsilon: Annotated[float, Field(ge=0)]  # a lower bound
    guesses: Annotated[int, Field(gt=0)]  # of the bound
    right: Annotated[int, Field(ge=0)]

    def in_words(self) -> str:
        """Return the AUC, its interval and the null.

        Examples:
            >>> Leak(0.58, 0.561, 0.6, 0.501, 0.2, 90, 60).in_words()
            '0.58 [0.56, 0.60], shuffled 0.50'
        """
        return f"{self.auc:.2f} [{self.low:.2f}, {self.high:.2f}], shuffled {self.null:.2f}"

    @property
    def word(self) -> str:
        """What the AUC means, in a word."""
        return "near guessing" if self.auc < LOW else "some" if self.auc <= HIGH else "plain"


def shadow_halves(num_people: int, num_pairs: int, rng: torch.Generator) -> Members:
    """Return who is in which half, (2 J, P); halves 2 j and 2 j + 1 are complements."""
    return _with_complements(_coins((num_pairs, num_people), rng))


def attack(values: Array, members: Members, rng: torch.Generator) -> tuple[Leak, Array]:
    """Attack what fits to shadow halves say; return what it found, and each person's exposure.

    Args:
        values: What each fit says of each person, (2 J, P, F): F numbers, whose ratios add.
        members: From `shadow_halves`.
        rng: Of the bootstrap and of the shuffles.

    Returns:
        The figures; and by how much each person scores higher where trained on, (P,).
    """
    # What moves all people of a run alike tells of nobody.
    values = values - np.median(values, axis=1, keepdims=True)
    found = scores(values, members)
    low, high = interval(found, members, rng)
    num_shuffled = max(_NUM_SHUFFLED, min(100, _SHUFFLED_PEOPLE // values.shape[1]))
    shuffled = [_shuffled(members, rng) for _ in range(num_shuffled)]
    null = float(np.mean([auc(scores(values, fake), fake) for fake in shuffled]))
    epsilon, num, right = epsilon_bound(*guesses(values, members))
    exposure = np.where(members, found, -found).mean(0) * 2
    return Leak(auc(found, members), low, high, null, epsilon, num, right), exposure


def scores(values: Array, members: Members) -> Array:
    """Return the log likelihood ratio of every person in every run, (2 J, P), by other pairs."""
    pairs = np.arange(len(values)) // 2
    ratios = [
        _ratio(values[pairs == pair], values[pairs != pair], members[pairs != pair])
        for pair in range(len(values) // 2)
    ]
    return np.concatenate(ratios)


def auc(found: Array, members: Members, weights: Array | None = None) -> float:
    """Return the chance that a member scores higher; ties count half.

    Args:
        found: (runs, people).
        members: Likewise.
        weights: Of each person, (people,).

    Examples:
        >>> auc(np.array([[3.0, 1.0, 1.0]]), np.array([[True, False, True]]))
        0.75
    """
    return _Ranked.of(found, members).auc(weights)


def interval(found: Array, members: Members, rng: torch.Generator) -> tuple[float, float]:
    """Return the ends of the AUC's interval, by a bootstrap over people."""
    num_people, ranked = found.shape[1], _Ranked.of(found, members)
    drawn = torch.randint(num_people, (_NUM_RESAMPLED, num_people), generator=rng)
    weights = [torch.bincount(who, minlength=num_people).double().numpy() for who in drawn]
    again = [ranked.auc(one) for one in weights]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(again, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Scores in order, once, for many weightings of people."""

    people: npt.NDArray[np.int64]
    inside: Array  # 1 of a member
    starts: npt.NDArray[np.int64]  # where a score begins that others may share

    @classmethod
    def of(cls, found: Array, members: Members) -> _Ranked:
        order = np.argsort(found, axis=None, kind="stable")
        ordered = found.ravel()[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] > ordered[:-1]])
        inside = members.ravel()[order].astype(float)
        return cls(order % found.shape[1], inside, starts)

    def auc(self, weights: Array | None) -> float:
        heavy = np.ones(len(self.people)) if weights is None else weights[self.people]
        ins = np.add.reduceat(heavy * self.inside, self.starts)
        outs = np.add.reduceat(heavy * (1 - self.inside), self.starts)
        below = outs.cumsum() - outs / 2
        return float((ins * below).sum() / max(ins.sum() * outs.sum(), _TINY))


def epsilon_bound(right: Sequence[int], asked: Sequence[int]) -> tuple[float, int, int]:
    """Return the largest lower bound on epsilon, and the guesses and right ones that it is of.

    Args:
        right: Right guesses, for each of several numbers of guesses that were fixed beforehand.
        asked: These numbers. The bound holds at `LEVEL` for all of them together.

    Examples:
        >>> round(epsilon_bound([98], [100])[0], 2), epsilon_bound([51], [100])[0]
        (2.72, 0.0)
    """
    tail = (1 - LEVEL) / len(asked)
    best = (0.0, asked[0], right[0])
    for good, num in zip(right, asked, strict=True):
        # The least chance of a right guess that has so many right ones in more than the tail.
        chance = float(scipy.stats.beta.ppf(tail, good, num - good + 1)) if good else 0.0
        bound = math.log(chance / (1 - chance)) if chance > 0.5 else 0.0
        best = max(best, (bound, num, good))
    return best


def guesses(values: Array, members: Members) -> tuple[list[int], list[int]]:
    """Return right guesses and all guesses, by share of the people: the surest of each run."""
    found, truth = [], []
    for pair in range(_LEAST_PAIRS, len(values) // 2):
        run, past = 2 * pair, slice(0, 2 * pair)
        found.append(_ratio(values[run : run + 1], values[past], members[past])[0])
        truth.append(members[run])
    right, asked = [], []
    for share in _SHARES:
        num = max(1, round(share * values.shape[1]))
        good = 0
        for ratio, who in zip(found, truth, strict=True):
            surest = np.argsort(-np.abs(ratio), kind="stable")[:num]
            good += int(((ratio > 0) == who)[surest].sum())
        right.append(good)
        asked.append(num * len(found))
    return right, asked


def _ratio(scored: Array, values: Array, members: Members) -> Array:
    """The log likelihood ratio of runs (A, P, F), by other runs (S, P, F): (A, P)."""
    inside = members[..., None]
    num = np.maximum(inside.sum(0), 1), np.maximum((~inside).sum(0), 1)
    mean_in = np.where(inside, values, 0.0).sum(0) / num[0]
    mean_out = np.where(inside, 0.0, values).sum(0) / num[1]
    rest = values - np.where(inside, mean_in, mean_out)
    spare = max(len(values) - 2, 1)
    var = (rest**2).sum(0) / spare  # (P, F)
    var = (spare * var + _PRIOR_RUNS * var.mean(0)) / (spare + _PRIOR_RUNS) + _TINY
    apart = mean_in - mean_out
    by_chance = var * (1 / num[0] + 1 / num[1])
    usual = apart.mean(0)
    real = np.maximum(apart.var(0) - by_chance.mean(0), 0.0)
    likely = (real * apart + by_chance * usual) / (real + by_chance)
    ratio: Array = ((scored - (mean_in + mean_out) / 2) * likely / var).sum(-1)
    return ratio


def _shuffled(members: Members, rng: torch.Generator) -> Members:
    """Membership that has nothing to do with the runs, but is of complements."""
    return _with_complements(members[::2] ^ _coins(members[::2].shape, rng))


def _coins(shape: tuple[int, ...], rng: torch.Generator) -> Members:
    heads: Members = (torch.rand(shape, generator=rng) < 0.5).numpy()
    return heads


def _with_complements(first: Members) -> Members:
    return np.stack([first, ~first], axis=1).reshape(2 * len(first), -1)
