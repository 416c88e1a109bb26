"""A shard's sum: what is pooled, added up over many uploads, and which uploads these are.

Sums are exact (`predbayes.exact`). So however uploads are dealt out to shards, and shards to
further shards, the total has the bits of one study that took all uploads in by itself, and taking
an upload away gives the bits of the shard without it.

A sum lists its *members*: site, key, digest of the upload and its rows, in the order of digests.
By them two sums that have a site in common are told apart from two that have not, and the root over
them (`predbayes.exchange.merkle`) is the same for every tree of shards. A member under the root is

    {"data":{"digest":...,"key":...,"rows":...,"site":...},"step":"add"}

so that it is shown to be in a sum as a step is shown to be in a batch of the ledger.

A file is an upload of kind `sum`: digits as `value/TERM` and `weight/TERM`, members as `member/...`
and in its header the grids, which must be those of the version that reads it.

A site counts for no more than so many times the rows of the median site, by the plan. A shard does
not know the median. It is told the most rows that a site counts for, or counts what sites state;
whoever adds its sum up makes sure that it is the same as with all sites' rows at hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, starmap
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from predbayes.errors import PoolError, StudyError, UploadError
from predbayes.exact import Written
from predbayes.exchange.header import GridInfo, Header, Spec, SumInfo, UploadInfo
from predbayes.exchange.merkle import merkle_root
from predbayes.exchange.strict import folded_name, require_site_name
from predbayes.exchange.upload import Upload, spec_of
from predbayes.pools.pool import Contribution
from predbayes.predictive.families import (
    LOG_PROB_CEILING,
    LOG_PROB_FLOOR,
    Categorical,
    Gaussian,
    Predictive,
    Survival,
)
from predbayes.predictive.pooling import PredictiveSum, WrittenSum
from predbayes.study.plan.schema import Plan
from predbayes.study.result.accepted import AcceptedUpload
from predbayes.study.result.lifting import contributed, lifting
from predbayes.summand import fold
from predbayes.text import printable

MOST_MEMBERS = 10**6
"""Uploads that one sum may list."""

_KEYS, _DIGESTS, _ROWS, _NAMES = (f"member/{what}" for what in ("key", "digest", "rows", "name"))
_MEMBER = "member/"
_NAME_BYTES = 260  # that a name and its line end take at the most
_UNNORMALISED = 0.06  # by which probabilities of a site may sum to more or less than one


class Member(NamedTuple):
    """An upload in a sum."""

    digest: str
    site: str
    key: str
    rows: int

    @classmethod
    def of(cls, accepted: AcceptedUpload) -> Member:
        """Return an accepted upload as a member."""
        return cls(accepted.digest, accepted.site, accepted.key, accepted.num_rows)

    def record(self) -> str:
        """The text that stands under the root."""
        told = {"data": self._asdict(), "step": "add"}
        return json.dumps(told, separators=(",", ":"), sort_keys=True, ensure_ascii=False)

    @property
    def marks(self) -> tuple[str, str, str]:
        """What no two uploads of a study have in common: content, key, and name as it is read."""
        return f"digest {self.digest}", f"key {self.key}", f"site {folded_name(self.site)}"


def in_common(some: Iterable[Member], others: Iterable[Member]) -> Member | None:
    """Return the first of the others whose upload, key or name is among some."""
    seen = {mark for member in some for mark in member.marks}
    return next((member for member in others if not seen.isdisjoint(member.marks)), None)


def root_over(members: Sequence[Member]) -> str:
    """Return the digest of members in their order."""
    return merkle_root([member.record().encode() for member in members])


@dataclass(slots=True, eq=False)
class ShardSum:
    """A sum over uploads of predictions, on the reference rows in the order of the kit."""

    total: PredictiveSum[Any]
    members: tuple[Member, ...]  # in the order of digests
    most_rows: float  # that a site counts for; infinite where it counts for what it states

    @classmethod
    def of(
        cls,
        plan: Plan,
        uploads: Iterable[AcceptedUpload],
        read: Callable[[AcceptedUpload], Upload],
        most_rows: float = math.inf,
    ) -> ShardSum:
        """Read uploads one by one, and add them up."""
        lift, members = lifting(plan), list[Member]()

        def lifted() -> Iterator[PredictiveSum[Any]]:
            for accepted in uploads:
                upload = read(accepted)
                members.append(Member.of(accepted))
                yield lift(contributed(upload, upload.predictive(), most_rows))

        total = fold(lifted())
        return cls(total, tuple(sorted(members)), most_rows)

    @classmethod
    def joined(cls, sums: Iterable[ShardSum]) -> ShardSum | None:
        """Add up sums of different sites as they come; the first is added to in place."""
        first, members, seen = None, list[Member](), set[str]()
        for one in sums:
            if double := next((m for m in one.members if not seen.isdisjoint(m.marks)), None):
                raise StudyError(f"{double.site} is in two sums: a site counts once")
            seen.update(mark for member in one.members for mark in member.marks)
            members += one.members
            if first is None:
                first = one
            else:
                first._require_alike(one)
                first.total.add_(one.total)
        if first is not None:
            first.members = tuple(sorted(members))
        return first

    def take_away_(self, other: ShardSum) -> Self:
        """Take away what was added: the bits are those of the sum without it."""
        if not set(other.members) < set(self.members):
            raise StudyError("only some of the uploads in a sum can be taken away from it")
        self._require_alike(other)
        self.total.take_away_(other.total)
        gone = set(other.members)
        self.members = tuple(member for member in self.members if member not in gone)
        return self

    def counting(self, most_rows: float) -> ShardSum:
        """Return the same under another limit of rows, if no site counts for others then."""
        require_counted(self.members, self.most_rows, most_rows, "the sum")
        return ShardSum(self.total, self.members, most_rows)

    @property
    def num_rows(self) -> int:
        """That its sites state."""
        return sum(member.rows for member in self.members)

    def upload(self, plan: str, shard: str, *, seen: str, entry: int, part: bool = False) -> Upload:
        """Return the sum as what a shard sends, or keeps.

        Args:
            plan: The plan's digest.
            shard: The shard's name.
            seen: The head of the study's ledger that names the study; empty without a key.
            entry: The number of the last entry of the shard's own ledger.
            part: Whether it stays in the shard.
        """
        written = self.total.written()
        info = UploadInfo(
            kind="sum",
            num_rows=self.num_rows,
            site=shard,
            plan=plan,
            sum=SumInfo(
                count=len(self.members),
                root=root_over(self.members),
                most_rows=None if math.isinf(self.most_rows) else self.most_rows,
                grids={name: GridInfo(**grid._asdict()) for name, grid in written.grids.items()},
                lacking=dict(written.lacking),
                entry=entry,
                part=part,
            ),
        )
        return Upload(info, {**written.arrays, **_arrays(self.members)}).having_seen(seen)

    @classmethod
    def from_upload(cls, plan: Plan, upload: Upload) -> ShardSum:
        """Read what a shard sent; refuse what is no sum of such members."""
        told = upload.info.sum
        if told is None:
            raise UploadError(f"it holds {upload.info.kind}, and a shard's sum was asked for")
        members = _members(upload, told)
        arrays = {n: a for n, a in upload.arrays.items() if not n.startswith(_MEMBER)}
        if arrays.keys() != told.grids.keys():
            raise UploadError("it does not have one grid for each array of digits")
        grids = {name: Written(**grid.model_dump()) for name, grid in told.grids.items()}
        try:
            total = _form(plan).read(WrittenSum(arrays, grids, told.lacking, told.count))
        except PoolError as error:
            raise UploadError(str(error)) from error
        most = math.inf if told.most_rows is None else told.most_rows
        return cls(total, members, most)

    def rehearse(self) -> None:
        """Refuse digits that cannot be the sum of such uploads, or cannot be pooled."""
        total, counts = self.total, [min(member.rows, self.most_rows) for member in self.members]
        rows = math.fsum(counts)
        weights = (total.weight("natural"), float(len(counts))), (total.weight("moments"), rows)
        if not all(math.isclose(float(found), asked, rel_tol=1e-9) for found, asked in weights):
            raise UploadError("its weights are not those of its uploads")
        for pooled in (total.mixture(), total.product()):
            if not bool(pooled.moments().isfinite().all()):
                raise UploadError("what it adds up to cannot be pooled: it is not finite")
        if issubclass(total.family, Categorical):
            self._rehearse_classes(rows)

    def _rehearse_classes(self, rows: float) -> None:
        found, num = self.total.floats(), len(self.members)
        natural, moments = found["natural"][0], found["moments"][0]
        least, most = LOG_PROB_FLOOR * num, LOG_PROB_CEILING * num
        in_bounds = least <= natural.min() and natural.max() <= most
        shares = moments.sum(-1) / rows
        normalised = float((shares - 1).abs().max()) <= _UNNORMALISED and moments.min() >= 0
        if not (in_bounds and normalised):
            raise UploadError("what it adds up to is no sum of probabilities")

    def _require_alike(self, other: ShardSum) -> None:
        if self.most_rows != other.most_rows:
            raise StudyError("sums add up if their sites count for at most the same rows")


def require_counted(members: Iterable[Member], had: float, most_rows: float, where: str) -> None:
    """Refuse a limit of rows under which a site counts for others than it did."""
    for member in members:
        was, is_now = min(member.rows, had), min(member.rows, most_rows)
        if was != is_now:
            # Numerics: 17 digits are a number's own.
            raise StudyError(
                f"{member.site} counts for {was:,.17g} rows in {where}, and for {is_now:,.17g} "
                "with all sites at hand; have it made again with predbayes study sum --most-rows "
                f"{most_rows:.17g}"
            )


def check_arrays(plan: Plan, header: Header) -> None:
    """Refuse other arrays than a sum has of this plan, before anything of them is read."""
    told = header.info.sum
    if told is None:
        raise UploadError(f"it holds {header.info.kind}, and a shard's sum was asked for")
    if told.count > MOST_MEMBERS:
        raise UploadError(f"it lists {told.count:,} uploads; a sum has {MOST_MEMBERS:,} at most")
    names = header.arrays.get(_NAMES, Spec("", ()))
    expected = {name: spec_of(array) for name, array in _form(plan).written().arrays.items()}
    expected = {name: spec for name, spec in expected.items() if name in header.arrays}
    expected |= {_KEYS: Spec("uint8", (told.count, 32)), _DIGESTS: Spec("uint8", (told.count, 32))}
    expected |= {_ROWS: Spec("int64", (told.count,)), _NAMES: Spec("uint8", names.shape)}
    if header.arrays != expected or names.num_bytes > _NAME_BYTES * told.count:
        raise UploadError("its arrays are not those of a sum of this plan")


def most_bytes(plan: Plan, header_room: int) -> int:
    """Return the size of the largest sum of a plan."""
    digits = sum(array.nbytes for array in _form(plan).written().arrays.values())
    return digits + MOST_MEMBERS * (64 + 8 + _NAME_BYTES) + header_room


def require_addable(plan: Plan) -> None:
    """Refuse a plan whose uploads a shard cannot add up."""
    if plan.sent != "predictions" or plan.moments is not None:
        asked = plan.sent if plan.moments is None else "moments"
        raise StudyError(
            f"a shard adds up predictions; the plan asks for {asked}, which are added "
            "to the study itself"
        )


def _form(plan: Plan) -> PredictiveSum[Any]:
    """A sum of the plan with all of its terms, of a client that nobody is."""
    rows, size = plan.reference.num_rows, plan.num_outputs
    predictive: Predictive
    if plan.classification:
        predictive = Categorical(torch.full((rows, size), -math.log(size)))
    elif plan.survival:
        predictive = Survival(torch.zeros(rows, size))
    else:
        predictive = Gaussian(torch.zeros(rows), torch.ones(rows), torch.full((rows,), 0.5))
    classes = torch.ones(size) if plan.classification else None
    return lifting(plan)(Contribution("", predictive, 1, classes, torch.zeros(rows)))


def _arrays(members: Sequence[Member]) -> dict[str, Tensor]:
    """Members as arrays, which take a tenth of the bytes that JSON would."""
    names = "".join(f"{member.site}\n" for member in members).encode()
    return {
        _DIGESTS: _bytes(b"".join(bytes.fromhex(member.digest) for member in members), 32),
        _KEYS: _bytes(b"".join(bytes.fromhex(member.key) for member in members), 32),
        _ROWS: torch.tensor([member.rows for member in members]),
        _NAMES: _bytes(names),
    }


def _bytes(content: bytes, width: int | None = None) -> Tensor:
    found = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return found if width is None else found.view(-1, width)


def _members(upload: Upload, told: SumInfo) -> tuple[Member, ...]:
    """The members of a file, if each is there once and they have the root that it tells."""
    try:
        names = upload.arrays[_NAMES].numpy().tobytes().decode().splitlines()
        digests, keys = (upload.arrays[name].numpy() for name in (_DIGESTS, _KEYS))
        rows = upload.arrays[_ROWS].tolist()
        texts = ([line.tobytes().hex() for line in lines] for lines in (digests, keys))
        found = tuple(starmap(Member, zip(next(texts), names, next(texts), rows, strict=True)))
    except (KeyError, UnicodeDecodeError, ValueError) as error:
        raise UploadError("its list of uploads cannot be read") from error
    for member in found:
        require_site_name(member.site)
    marks = list(chain.from_iterable(member.marks for member in found))
    in_order = all(one.digest < two.digest for one, two in pairwise(found))
    if len(found) != told.count or len(set(marks)) < len(marks) or not in_order:
        raise UploadError("its list of uploads has some twice, or is not in order")
    if min(rows) < 1 or sum(rows) != upload.info.num_rows:
        raise UploadError("its uploads do not have the rows that it states")
    if root_over(found) != told.root:
        raise UploadError(f"its root is not that of its {printable(str(told.count))} uploads")
    return found
