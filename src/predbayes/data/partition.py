"""How rows are dealt to clients: pure functions from labels or features to lists of indices.

Every function returns a true partition: the parts are disjoint, cover all rows, and none is empty.

The paper's heterogeneity h replaces a fraction h of each homogeneous shard by rows sorted by class.
Done on copies of the data, as the paper words it, clients would share rows. Here the fraction h is
*taken out* of every shard, the rows taken are sorted by class and dealt back in blocks: h = 0 is
homogeneous, h = 1 sorted by class, and no row is used twice or lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from predbayes.errors import DataError


def homogeneous(num_rows: int, num_clients: int, *, rng: torch.Generator) -> list[Tensor]:
    """Shards of nearly equal size, at random.

    Examples:
        >>> parts = homogeneous(7, 2, rng=torch.Generator().manual_seed(0))
        >>> sorted(torch.cat(parts).tolist()), [len(part) for part in parts]
        ([0, 1, 2, 3, 4, 5, 6], [4, 3])
    """
    _require_enough(num_rows, num_clients)
    return list(torch.randperm(num_rows, generator=rng).tensor_split(num_clients))


def label_skew(
    targets: Tensor, num_clients: int, heterogeneity: float, *, rng: torch.Generator
) -> list[Tensor]:
    """The paper's h as a true partition; the order of the classes is drawn anew for each seed."""
    if not 0 <= heterogeneity <= 1:
        raise DataError(f"heterogeneity must be in [0, 1], not {heterogeneity}")
    shards = homogeneous(len(targets), num_clients, rng=rng)
    num_taken = [round(heterogeneity * len(shard)) for shard in shards]
    kept = [shard[count:] for shard, count in zip(shards, num_taken, strict=True)]
    taken = torch.cat([shard[:count] for shard, count in zip(shards, num_taken, strict=True)])
    rank = torch.randperm(int(targets.max()) + 1, generator=rng)
    by_class = taken[rank[targets[taken]].argsort(stable=True)]
    blocks = torch.split(by_class, num_taken)
    return [torch.cat(pair) for pair in zip(kept, blocks, strict=True)]


def sorted_by(feature: Tensor, num_clients: int) -> list[Tensor]:
    """Blocks of rows with neighbouring values of a feature: the paper's regression split."""
    _require_enough(len(feature), num_clients)
    return list(feature.argsort(stable=True).tensor_split(num_clients))


def _require_enough(num_rows: int, num_clients: int) -> None:
    if not 1 <= num_clients <= num_rows:
        raise DataError(f"{num_rows} rows cannot be dealt to {num_clients} clients")
