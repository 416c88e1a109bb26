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

MAX_DRAWS = 100  # of a Dirichlet split in which some client is left with nothing


def homogeneous(num_rows: int, num_clients: int, *, rng: torch.Generator) -> list[Tensor]:
    """Deal rows at random into shards of nearly equal size.

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
    """Deal rows by the paper's h, as a true partition; each seed draws an order of the classes."""
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
    """Deal blocks of rows with neighbouring values of a feature: the paper's regression split."""
    _require_enough(len(feature), num_clients)
    return list(feature.argsort(stable=True).tensor_split(num_clients))


def dirichlet(
    targets: Tensor, num_clients: int, concentration: float, *, rng: torch.Generator
) -> list[Tensor]:
    """Deal each class in proportions drawn from a symmetric Dirichlet (Hsu et al., 2019).

    A small concentration gives a class to few clients, a large one deals it evenly. Draws that
    leave a client without rows are repeated, `MAX_DRAWS` times at most.
    """
    _require_enough(len(targets), num_clients)
    if not concentration > 0:
        raise DataError(f"concentration must be positive, not {concentration}")
    order = torch.randperm(len(targets), generator=rng)
    by_class = [order[targets[order] == label] for label in range(int(targets.max()) + 1)]
    for _ in range(MAX_DRAWS):
        shares = _dirichlet_shares((len(by_class), num_clients), concentration, rng)
        blocks = []
        for rows, share in zip(by_class, shares, strict=True):
            ends = (share.cumsum(0)[:-1] * len(rows)).round().long()  # so that no row is lost
            blocks.append(rows.tensor_split(ends))
        parts = [torch.cat(own) for own in zip(*blocks, strict=True)]
        if all(len(part) for part in parts):
            return parts
    raise DataError(
        f"{MAX_DRAWS} Dirichlet draws left some of {num_clients} clients without rows; "
        "raise the concentration or take fewer clients"
    )


def by_group(groups: Tensor) -> list[Tensor]:
    """Make a client of each natural group, such as a hospital; client k has the rows of group k."""
    if not len(groups):
        raise DataError("no rows to deal by group")
    sizes = torch.bincount(groups)
    empty = (sizes == 0).nonzero().flatten().tolist()
    if empty:
        raise DataError(f"no rows in groups {empty}; number the groups from 0 on")
    return [(groups == group).nonzero().squeeze(-1) for group in range(len(sizes))]


def _dirichlet_shares(shape: tuple[int, int], concentration: float, rng: torch.Generator) -> Tensor:
    """Rows of Dirichlet shares, float64.

    Numerics: a Gamma(a) draw is a Gamma(a + 1) draw times U^(1/a). Its logarithm stays finite for
    concentrations at which the draw itself would be zero.
    """
    alpha = torch.full(shape, concentration, dtype=torch.float64)
    uniform = torch.rand(shape, generator=rng, dtype=torch.float64).clamp_min(1e-300)
    log_gamma = torch._standard_gamma(alpha + 1, generator=rng).log() + uniform.log() / alpha
    return log_gamma.softmax(-1)


def _require_enough(num_rows: int, num_clients: int) -> None:
    if not 1 <= num_clients <= num_rows:
        raise DataError(f"{num_rows} rows cannot be dealt to {num_clients} clients")
