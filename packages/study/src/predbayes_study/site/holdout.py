"""Which rows a site holds out: by class, and never part of what belongs together.

Two rows of one patient, or two equal rows, tell of each other. If one is trained on and the other
held out, a model that learnt rows by heart looks good. So rows are dealt in groups. And a class
with few rows is on both sides in its share, instead of by chance on one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # whose parts load when they are used
import torch
from torch import Tensor


def connected(keys: Sequence[Tensor]) -> Tensor:
    """Return numbers of groups: rows that share a value of any key are in one.

    Examples:
        >>> connected([torch.tensor([7, 7, 8, 9]), torch.tensor([0, 1, 1, 2])]).tolist()
        [0, 0, 0, 1]
    """
    num_rows = len(keys[0])
    rows, values, offset = [], [], num_rows  # rows and values are the nodes of a graph
    for key in keys:
        _, numbers = torch.unique(key, return_inverse=True)
        rows.append(np.arange(num_rows))
        values.append(offset + numbers.numpy())
        offset += int(numbers.max()) + 1
    ends = (np.concatenate(rows), np.concatenate(values))
    graph = scipy.sparse.coo_array((np.ones(len(ends[0])), ends), shape=(offset, offset))
    labels = scipy.sparse.csgraph.connected_components(graph, directed=False)[1][:num_rows]
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1])


def hold_out(groups: Tensor, strata: Tensor | None, share: float, rng: torch.Generator) -> Tensor:
    """Return which rows (N,) are held out.

    Args:
        groups: (N,) numbers from 0; rows of a group stay together.
        strata: (N,) classes; None: all rows are alike.
        share: Of the rows of each class that is held out, as nearly as groups allow, and never all.
        rng: Draws the groups.
    """
    sizes = torch.bincount(groups)
    kind = _rarest(groups, strata, len(sizes))
    order = torch.randperm(len(sizes), generator=rng)
    taken: list[int] = []
    rest = 0.0
    for one in range(int(kind.max()) + 1):
        own = order[kind[order] == one]
        # Less than a row of a class is of the next. What a large group leaves open is of none: a
        # rare class would make up for it with all its rows.
        room = min(rest, 1.0) + share * int(sizes[own].sum())
        some = own[:-1]  # one group at least is left to train on
        for group, size in zip(some.tolist(), sizes[some].tolist(), strict=True):
            if size <= room:
                taken.append(group)
                room -= size
        rest = room
    return torch.isin(groups, torch.tensor(taken, dtype=torch.int64))


def _rarest(groups: Tensor, strata: Tensor | None, num_groups: int) -> Tensor:
    """The stratum of each group: of its rows' classes, the one that fewest rows have."""
    if strata is None:
        return torch.zeros(num_groups, dtype=torch.int64)
    frequent_first = torch.bincount(strata).argsort(descending=True).argsort()
    rank = torch.zeros(num_groups, dtype=torch.int64)
    return rank.scatter_reduce(0, groups, frequent_first[strata], "amax")
