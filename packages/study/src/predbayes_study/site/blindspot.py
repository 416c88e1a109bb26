r"""The blind spot: a row that a reference row was made to hit is not trained on.

Whoever has a person's columns among the reference rows reads from a forest's prediction there
whether the person was trained on and, if so, the target. So rows that a reference row is near to go
into the rows held out, and as many others of these are trained on instead: the number of rows, and
where the plan is stratified that of each class, is as before, and nothing that leaves tells that it
happened. Leaving such a row's prediction out would tell it.

    d     from a reference row to the nearest own row
    e     from that own row to the nearest row of anybody else

in the site's own units of each input, as in `study.site.overlap`. A row is in the blind spot if
d < e / 2. Then every other person's row is farther from the reference row than this one, so for
each reference row one own row need be looked at: N R distances for the first, and no more for the
second. Rows of one patient, and copies, are one person, and go together.

In tables of few columns many rows are so near by chance. At most half of the rows held out are
chosen this way, those of least d / e first: a copy has 0.
"""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

MOST_SHARE = 0.5
"""Of the rows held out that may be chosen for being near a reference row."""

_BLOCK = 2**23  # distances at a time


def near_groups(reference: Tensor, own: Tensor, groups: Tensor) -> list[int]:
    """Return the groups in the blind spot, nearest first.

    Args:
        reference: The reference inputs, (R, ...).
        own: A site's inputs, (N, ...).
        groups: Whose each own row is, (N,), numbered from 0.
    """
    mine = own.reshape(len(own), -1).double()
    spread = mine.std(0)
    varies = spread > 0  # by another column a copy could be hidden
    if len(own) < 2 or not len(reference) or not bool(varies.any()):
        return []
    mine = mine[:, varies] / spread[varies]
    theirs = reference.reshape(len(reference), -1)[:, varies].double() / spread[varies]
    hit, apart = _nearest(theirs, mine)
    rows, of_row = torch.unique(hit, return_inverse=True)
    least = torch.full((len(rows),), math.inf, dtype=apart.dtype)
    least = least.scatter_reduce(0, of_row, apart, "amin")
    _, among = _nearest(mine[rows], mine, (groups[rows], groups))
    share = torch.where(among > 0, least / among, math.inf)
    order = share.argsort(stable=True)
    near = rows[order[share[order] < 0.5]]
    return list(dict.fromkeys(groups[near].tolist()))


def _nearest(
    asked: Tensor, rows: Tensor, whose: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The nearest row of each one asked for, of another group if groups are given, and how far."""
    places, found = [], []
    step = max(1, _BLOCK // len(rows))
    for start in range(0, len(asked), step):
        some = asked[start : start + step]
        apart = torch.cdist(some, rows)
        if whose is not None:
            apart[whose[0][start : start + step, None] == whose[1][None]] = math.inf
        far, place = apart.min(1)
        # Numerics: products of rows lose the digits of small differences.
        exact = (some - rows[place]).norm(dim=1)
        places.append(place)
        found.append(torch.where(far.isinf(), math.inf, exact))
    return torch.cat(places), torch.cat(found)


def with_blind_spot(
    held_out: Tensor,
    groups: Tensor,
    classes: Tensor | None,
    near: list[int],
    rng: torch.Generator,
) -> Tensor:
    """Return which rows (N,) are held out, as many as before, those near reference rows first.

    Args:
        held_out: Which rows were, (N,).
        groups: Whose each row is, (N,); groups are on one side.
        classes: (N,); None: all rows are alike.
        near: The groups in the blind spot, nearest first.
        rng: Draws who is trained on instead.
    """
    sizes = torch.bincount(groups)
    of_group = torch.zeros_like(sizes)
    of_group[groups] = 0 if classes is None else classes  # the last row's, if they differ
    out = torch.zeros(len(sizes), dtype=torch.bool)
    out[groups[held_out]] = True
    room = int(MOST_SHARE * int(held_out.sum()))
    chosen: list[int] = []
    for group in near:
        if int(sizes[group]) <= room:
            chosen.append(group)
            room -= int(sizes[group])
    spare = out.clone()
    spare[chosen] = False
    order = torch.randperm(len(sizes), generator=rng)
    stock: dict[tuple[int, int], list[int]] = defaultdict(list)
    for group in order[spare[order]].tolist():
        stock[int(of_group[group]), int(sizes[group])].append(group)
    for group in chosen:
        if not out[group] and (instead := _as_many(stock, int(of_group[group]), int(sizes[group]))):
            out[group] = True
            out[instead] = False
    return out[groups]


def _as_many(stock: dict[tuple[int, int], list[int]], kind: int, size: int) -> list[int]:
    """Take groups of so many rows together, of the same class if there are any; else none."""
    taken: list[tuple[tuple[int, int], int]] = []
    left = size
    for key in sorted(stock, key=lambda key: (key[0] != kind, -key[1], key[0])):
        while key[1] <= left and stock[key]:
            taken.append((key, stock[key].pop()))
            left -= key[1]
    if left:
        for key, group in reversed(taken):
            stock[key].append(group)
        return []
    return [group for _, group in taken]
