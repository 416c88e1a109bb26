"""Whose predictions are nearly those of another site.

*Nearly* is by squared Hellinger distance h, against what is usual between these two and other
sites. Models of many rows are near each other by right: distances fall with 1 / rows. With
u the median of distances to others, each less where its two sites have fewer rows,

    copies:  h < 1/100  and  h < u / 10,       or the same but for rounding.

Up to `ALL_PAIRS` sites all pairs are compared. Of more, a site is its *sketch*: the square roots
of its probabilities, (N C) numbers of which h is half the mean squared distance, projected at
random on `_LENGTH` directions. These derive from the uploads, so that nobody knows them before.
Sites are dealt into buckets by sketches, rounded to about the usual distance, in `_TABLES` ways.
Who shares a bucket is compared with its next neighbours there, first by sketches, then exactly; u
is by sketches, from a fixed sample of sites. So time and memory are linear in sites, also if all
are alike or all are copies. Then those that are linked are one group. A copy within a third of the
limit in distance is missed in less than 1 of 1,000 cases, one at the limit in about half.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from predbayes.predictive.families import Predictive
from predbayes.predictive.pooling import Contribution
from predbayes.seeding import generator
from predbayes_study.tasks import task_for

CONSTANT = 1e-5  # squared Hellinger distance of predictions from their mean
COPY_DISTANCE = 0.01  # squared Hellinger distance, at most, of copies
COPY_RATIO = 0.1  # of that to what is usual
SAME = 1e-3  # relative difference of log-probabilities: half precision rounds by as much
ALL_PAIRS = 100  # sites that are compared with each other, all of them

_LENGTH = 64  # of a sketch
_SAMPLE = 64  # sites that tell what is usual
_TABLES = 24
_NEIGHBOURS = 4  # in a bucket that a site is compared with
_SLACK = 2.0  # by which a sketch may make a distance too large: 5 of its standard errors
_BLOCK = 2**22  # numbers of sites that are looked at together

Copies = Mapping[str, Sequence[str]]
"""By site that has some, its copies by name; of many sites the whole group, itself included."""


def copies_among(
    contributions: Sequence[Contribution], spreads: Mapping[str, float] | None = None
) -> dict[str, tuple[str, ...]]:
    """For each site that has some, the sites whose predictions are nearly its own.

    The spreads of the sites are computed if they are not given.
    """
    if spreads is None:
        spreads = {c.site: spread(c.predictive) for c in contributions}
    sites = [c for c in contributions if spreads[c.site] > CONSTANT]
    if len(sites) > ALL_PAIRS:
        return _groups(sites, _linked(sites))
    distances = _distances([c.predictive for c in sites])
    noise = _noise(_rows(sites).unsqueeze(1), _rows(sites))
    found: dict[str, list[str]] = {}
    for one, other in (distances < COPY_DISTANCE).triu(1).nonzero().tolist():
        pair = sites[one].predictive, sites[other].predictive
        same = task_for(pair[0]).is_same(*pair, SAME)
        if same or float(distances[one, other]) < COPY_RATIO * _usual(distances, noise, one, other):
            found.setdefault(sites[one].site, []).append(sites[other].site)
            found.setdefault(sites[other].site, []).append(sites[one].site)
    return {name: tuple(sorted(others)) for name, others in found.items()}


def surplus(copies: Copies, at_most: int) -> set[str]:
    """Of sites that are copies of each other, all but the first by name, the last ones first."""
    gone: set[str] = set()
    for name in sorted(copies):
        if name not in gone:
            gone.update(other for other in copies[name] if other > name)
    return set(sorted(gone, reverse=True)[: max(0, at_most)])


# All pairs


def _distances(predictives: Sequence[Predictive]) -> Tensor:
    """Squared Hellinger distances between sites, mean over rows."""
    if not predictives:
        return torch.zeros(0, 0, dtype=torch.float64)
    return task_for(predictives[0]).distances(predictives)


def _usual(distances: Tensor, noise: Tensor, one: int, other: int) -> float:
    """The median distance of two sites to the others, less where they have more rows; else zero."""
    pair = torch.tensor([one, other])
    others = torch.ones(len(distances), dtype=torch.bool)
    others[pair] = False
    if not others.any():
        return 0.0
    values = distances[pair] * (noise[one, other] / noise[pair]).clamp_max(1.0)
    return float(values[:, others].float().median())


def _rows(sites: Sequence[Contribution]) -> Tensor:
    return torch.tensor([c.num_rows for c in sites], dtype=torch.float64)


def _noise(one: Tensor, other: Tensor) -> Tensor:
    """The variance of a difference between two models of so many rows, but for a factor."""
    return 1 / one + 1 / other


def hellinger(one: Predictive, other: Predictive) -> Tensor:
    """Squared Hellinger distance per row, from 0 to 1."""
    return task_for(one).hellinger(one, other)


def spread(predictive: Predictive) -> float:
    """Mean squared Hellinger distance of a site's predictions from their mean."""
    if not len(predictive):
        return 1.0
    return float(hellinger(predictive, task_for(predictive).mean(predictive)).mean())


# Sketches


def _linked(sites: Sequence[Contribution]) -> list[tuple[int, int]]:
    """Pairs of copies, enough of them to link all that are copies of each other."""
    seed = _seed_of(sites)
    sketches, rows = _sketches([c.predictive for c in sites], seed), _rows(sites)
    rng = generator(seed, "copies")
    sample = torch.randperm(len(sites), generator=rng)[:_SAMPLE].sort().values
    to_sample = torch.cdist(sketches, sketches[sample]).square()
    near = _neighbours(sketches, float(to_sample[to_sample > 0].median().sqrt()), rng)
    one, other = near.T
    apart = (sketches[one] - sketches[other]).square().sum(1)
    usual = _sampled_usual(to_sample, rows, sample, one, other)
    # Numerics: equal predictions are copies, whatever is usual.
    limit = (COPY_RATIO * usual).clamp(1e-6, COPY_DISTANCE)
    found = []
    for place in (apart < _SLACK * limit).nonzero()[:, 0].tolist():
        a, b = int(one[place]), int(other[place])
        pair = sites[a].predictive, sites[b].predictive
        exactly = float(hellinger(*pair).mean())
        copied = exactly < min(COPY_DISTANCE, COPY_RATIO * float(usual[place]))
        if copied or (exactly < COPY_DISTANCE and task_for(pair[0]).is_same(*pair, SAME)):
            found.append((a, b))
    return found


def _seed_of(sites: Sequence[Contribution]) -> int:
    """A number that nobody knows before all uploads are in, so that no copy can be aimed.

    Along directions that a copier knows, small changes would look large.
    """
    each = (hashlib.sha256(c.predictive.natural().numpy().tobytes()).digest() for c in sites)
    return int.from_bytes(hashlib.sha256(b"".join(sorted(each))).digest()[:8], "big")


def _directions(seed: int, num: int) -> Tensor:
    """On what sites of so many numbers are projected, (num, _LENGTH)."""
    rng = generator(seed, "sketch")
    return torch.randn(num, _LENGTH, generator=rng) / math.sqrt(_LENGTH)


def _sketches(predictives: Sequence[Predictive], seed: int) -> Tensor:
    """Sites as points, (K, _LENGTH), whose squared distances are about Hellinger's."""
    points = task_for(predictives[0]).point(predictives[:_SAMPLE])
    num = len(points(predictives[0]))
    directions = _directions(seed, num)
    size = max(1, _BLOCK // num)
    blocks = (predictives[k : k + size] for k in range(0, len(predictives), size))
    return torch.cat([torch.stack([*map(points, block)]) @ directions for block in blocks])


def _sampled_usual(
    to_sample: Tensor, rows: Tensor, sample: Tensor, one: Tensor, other: Tensor
) -> Tensor:
    """As `_usual`, of pairs, with some of the sites as others, (P,)."""
    noise = _noise(rows.unsqueeze(1), rows[sample])  # (K, S)
    both = _noise(rows[one], rows[other]).unsqueeze(1)
    values = [
        torch.where(
            (sample == one.unsqueeze(1)) | (sample == other.unsqueeze(1)),
            math.nan,
            to_sample[index] * (both / noise[index]).clamp_max(1.0),
        )
        for index in (one, other)
    ]
    return torch.cat(values, 1).nanmedian(1).values


def _neighbours(sketches: Tensor, width: float, rng: torch.Generator) -> Tensor:
    """Pairs of sites that lie side by side in a bucket of some table, (P, 2), each once."""
    num, length = sketches.shape
    # Of sites as far apart as usual less than one, on average, shares a bucket with another.
    num_keys = min(length, 2 + math.ceil(math.log(num)))
    pairs = []
    for _ in range(_TABLES):
        turned = torch.randn(length, num_keys + 1, generator=rng)
        places = sketches @ turned / max(width, 1e-12)
        rounded = (places[:, :-1] + torch.rand(num_keys, generator=rng)).floor().long()
        odd = torch.randint(1, 2**61, (num_keys,), generator=rng) | 1
        bucket = (rounded * odd).sum(1)  # overflow is as good as any hash
        # By bucket, within it by one more direction: copies lie side by side.
        order = places[:, -1].argsort(stable=True)
        order = order[bucket[order].argsort(stable=True)]
        for step in range(1, _NEIGHBOURS + 1):
            first, second = order[:-step], order[step:]
            shared = bucket[first] == bucket[second]
            pairs.append(torch.stack([first[shared], second[shared]], 1).sort(1).values)
    found: Tensor = torch.unique(torch.cat(pairs), dim=0)
    return found


def _groups(
    sites: Sequence[Contribution], pairs: Sequence[tuple[int, int]]
) -> dict[str, tuple[str, ...]]:
    """The sites that are linked, each with its whole group."""
    root = {index: index for pair in pairs for index in pair}

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    for one, other in pairs:
        root[find(one)] = find(other)
    groups: dict[int, list[str]] = {}
    for index in root:
        groups.setdefault(find(index), []).append(sites[index].site)
    of_sites: dict[str, tuple[str, ...]] = {}
    for names in groups.values():
        of_sites |= dict.fromkeys(names, tuple(sorted(names)))  # one for all: memory stays linear
    return of_sites
