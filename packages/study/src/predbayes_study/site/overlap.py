"""Are a site's own patients among the reference rows? A coordinator could put them there.

What a site sends about a row says more about a person who is in that row (membership inference). So
each reference row is compared with the site's own rows, in the site's own units of each input:

    d     from a reference row to the nearest own row
    e_i   from own row i to the nearest other own row

If reference rows are of the same population, d is distributed as e. Its lower tail is a power,
P(e <= x) = q (x / e_q)^D, with e_q the quantile q = .1 of e and D by Hill's estimator of the e_i
below it, less two standard errors. *Near* is d <= t, where R reference rows would together expect
.01 such rows:

    t = e_q (.01 / (q R))^(1 / D)

Only inputs count that differ among the site's own rows: by another a copy could be hidden.

A copy has d = 0 and is always near. Rows may also coincide by chance: tables of few words, people
who are in the table twice. With k own rows that have e_i <= t, R k / N near rows are expected. More
than 99 of 100 such studies have is a warning, and one copy is enough for it where k = 0. The rate k
is known roughly: with its upper limit, k + 2 sqrt(k) + 3 (the rule of three), the same quantile is
the number above which a study is refused. A policy may refuse fewer, such as any: `max_near = 0`.

Near is not all: who changes a copy enough is not found. Distances need N R D operations; above
`MOST_OPERATIONS` they are to a random part of the own rows, and copies are looked for among all of
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import scipy
import torch
from torch import Tensor

from predbayes.seeding import generator
from predbayes_study.kit.kit import Kit
from predbayes_study.rules import Finding, error, warning
from predbayes_study.site.policy import SitePolicy
from predbayes_study.tables.problem import stepped

LEAST_ROWS = 20
"""With fewer own rows it is not known how near they are to each other: copies are counted."""

MOST_OPERATIONS = 20_000_000_000
_MOST_ASKED = 2_000  # own rows whose neighbours are looked for
_TAIL = 0.1
_EXPECTED = 0.01
_QUANTILE = 0.99
_CHUNK, _COLUMNS = 512, 64


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many reference rows are equal to an own row, or nearer than own rows are."""

    equal: int
    near: int  # the equal ones among them
    expected: int  # more near ones are not expected
    likely: int  # more near ones cannot be chance

    def told(self, least: int) -> str:
        """Return it in one line for whoever checks, with counts in steps of the least told."""
        equal, near, expected = (
            stepped(count, "reference row", least)
            for count in (self.equal, self.near, self.expected)
        )
        return (
            f"equal to one of your rows: {equal}; nearer than yours are to each other: {near}; "
            f"chance explains {expected}"
        )


def overlap(reference: Tensor, own: Tensor) -> Overlap | None:
    """Compare reference inputs (R, D) with a site's own (N, D); None where there are none."""
    if len(own) < 2 or not len(reference):
        return None
    # Some columns at a time: all rows in float64 would be the largest thing in memory.
    spread = torch.cat([some.double().std(0) for some in torch.split(own, _COLUMNS, dim=1)])
    # A column that is the same in all own rows, as one that the site lacks, would hide a copy.
    varies = spread > 0
    if not varies.all():
        own, reference, spread = own[:, varies], reference[:, varies], spread[varies]
    equal = _equal(reference, own)
    asked = _part(len(own), _MOST_ASKED)
    most = MOST_OPERATIONS // (max(len(reference), len(asked)) * max(len(spread), 1))
    part = _part(len(own), max(most, 1))
    mine = own[part].double() / spread
    apart = _nearest(reference.double() / spread, mine)
    apart[equal] = 0.0
    among = _nearest(own[asked].double() / spread, mine, leave_out=(asked, part))
    limit = _limit(among, len(reference)) if len(own) >= LEAST_ROWS else 0.0
    close = int((among <= limit).sum())
    rates = torch.tensor([close, close + 2 * math.sqrt(close) + 3]) * len(reference) / len(asked)
    expected, likely = scipy.stats.poisson.ppf(_QUANTILE, rates.numpy()).clip(0).astype(int)
    near = int((apart <= limit).sum())
    return Overlap(int(equal.sum()), near, int(expected), int(likely))


def _limit(among: Tensor, num_reference: int) -> float:
    """The distance below which a reference row is near."""
    known = among[among > 0].sort().values
    tail = known[: max(3, int(_TAIL * len(known)))]
    if len(tail) < 3:
        return 0.0  # every row is there twice
    logs = (tail[-1] / tail[:-1]).log()
    power = (1 - 2 / math.sqrt(len(tail))) / max(float(logs.mean()), 0.05)
    share = len(tail) / len(known)
    if power <= 0.5:
        return 0.0
    factor: float = min(1.0, _EXPECTED / (share * num_reference)) ** (1 / power)
    return float(tail[-1]) * factor


def _equal(reference: Tensor, own: Tensor) -> Tensor:
    """Which reference rows are equal to an own row."""
    theirs = [row.tobytes() for row in (reference + 0.0).contiguous().numpy()]
    wanted, found = set(theirs), set()
    for some in torch.split(own, _CHUNK):
        found |= wanted & {row.tobytes() for row in (some + 0.0).contiguous().numpy()}
    return torch.tensor([row in found for row in theirs])


def _part(num_rows: int, most: int) -> Tensor:
    if num_rows <= most:
        return torch.arange(num_rows)
    return torch.randperm(num_rows, generator=generator(0, "overlap"))[:most].sort().values


def _nearest(asked: Tensor, rows: Tensor, leave_out: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Distances of rows asked for, (A,), to the nearest of others; not to themselves."""
    found = []
    for start in range(0, len(asked), _CHUNK):
        some = asked[start : start + _CHUNK]
        apart = torch.cdist(some, rows)
        if leave_out is not None:
            ours, others = leave_out
            apart[ours[start : start + _CHUNK, None] == others[None]] = math.inf
        nearest = apart.argmin(1)
        # Numerics: products of rows lose the digits of small differences.
        exact = (some - rows[nearest]).norm(dim=1)
        found.append(torch.where(apart.amin(1).isinf(), math.inf, exact))
    return torch.cat(found)


def near_findings(
    policy: SitePolicy, kit: Kit, own: Tensor, least: int
) -> tuple[str, list[Finding]]:
    """Compare a kit's reference rows with a site's own: what to tell, and what is wrong with it.

    How many are equal is told in steps, or with `least` 0 as it is: one that was put there on
    purpose would be answered by its count.
    """
    found = overlap(kit.inputs, own)
    if found is None:
        return "there is nothing to compare reference rows with", []
    rows = stepped(found.near, "reference row", least)
    are = "is" if found.near == 1 and not least else "are"
    alike = f"{rows} {are} nearer to one of your rows than those are to each other"
    if not least:
        alike += f", {found.equal:,} of them equal"
    for where, stated in policy.holding:
        most = found.likely if stated.max_near is None else stated.max_near
        if found.near > most:
            allowed = f"max_near allows {most:,}"
            if stated.max_near is None:
                allowed = f"chance explains {stepped(most, 'row', least)}"
            wrong = error(
                f"{alike}; {allowed} ({where}). Are they your patients? Ask the coordinator where "
                "they are from"
            )
            return found.told(least), [replace(wrong, hides=bool(least))]
    if found.near > found.expected:
        odd = warning(
            f"{alike}: ask the coordinator where they are from; what you send would tell whether "
            "these people are in your table"
        )
        return found.told(least), [replace(odd, hides=bool(least))]
    return found.told(least), []
