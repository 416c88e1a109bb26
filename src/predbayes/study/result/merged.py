"""What a study has of its shards when it makes a result: one sum, and what can be said of it.

The sums of all shards add up to one, which is added to that of single uploads. What is a
function of sums is then as it would be with every upload at hand, to the bit: the pool, its
candidates and weights, the model and its scores. What looks at single uploads is not done for
those in sums, and the result says so: they are neither compared with others, nor screened, nor
scored, and nobody can be left out by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from predbayes.predictive.pooling import PredictiveSum
from predbayes.study.result.accepted import AcceptedSum
from predbayes.study.result.schema import ShardResult
from predbayes.study.result.shardsum import Member, ShardSum, require_counted


@dataclass(frozen=True, slots=True)
class Merged:
    """The sums of a study's shards."""

    shards: tuple[ShardResult, ...] = ()
    members: tuple[tuple[Member, ...], ...] = ()  # of each
    total: PredictiveSum[Any] | None = None  # None without any

    @classmethod
    def of(
        cls,
        accepted: Sequence[AcceptedSum],
        read: Callable[[AcceptedSum], ShardSum],
    ) -> Merged:
        """Read sums one by one and add them up; their rows are in the kit's order."""
        shards, members = list[ShardResult](), list[tuple[Member, ...]]()
        total: PredictiveSum[Any] | None = None
        for one in accepted:
            found = read(one)
            shards.append(_told(one, found))
            members.append(found.members)
            total = found.total if total is None else total.add_(found.total)
        return cls(tuple(shards), tuple(members), total)

    @property
    def rows(self) -> list[int]:
        """That each site states."""
        return [member.rows for members in self.members for member in members]

    @property
    def num_sites(self) -> int:
        """In all sums."""
        return sum(map(len, self.members))

    def require_limit(self, most_rows: float) -> None:
        """Refuse a sum in which a site counts for other rows than with all rows at hand."""
        for shard, members in zip(self.shards, self.members, strict=True):
            require_counted(members, shard.limit, most_rows, f"the sum of {shard.shard}")

    def cautions(self) -> tuple[str, ...]:
        """What a reader should know first; no shard is named."""
        if not self.shards:
            return ()
        return (
            f"Sites that came in sums of shards: {self.num_sites:,}. Each upload was checked where "
            "it was taken in; none of them was screened, compared with others or scored by itself.",
        )


UNMERGED = Merged()


def _told(accepted: AcceptedSum, found: ShardSum) -> ShardResult:
    limit = found.most_rows
    return ShardResult(
        shard=accepted.site,
        digest=accepted.digest,
        root=accepted.root,
        num_sites=accepted.count,
        num_rows=accepted.num_rows,
        most_rows=None if limit == float("inf") else limit,
        num_bytes=accepted.num_bytes,
    )
