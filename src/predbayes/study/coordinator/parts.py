"""Partial sums that a shard keeps, so that no upload is added up twice.

`.parts/DIGEST.safetensors` are sums of some of the shard's own uploads, disjoint, signed with the
shard's key and marked as parts, which no study takes in. They are derived and may be deleted at any
time. A part counts if the shard's key has signed it and every upload in it is in the shard now;
otherwise it is removed, and its uploads are added up again.

A site that withdraws is taken away from its part before its bytes go. One whose bytes are deleted
takes its part with it: a sum of few sites tells what each has sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from predbayes.errors import PredbayesError, StudyError
from predbayes.exchange.header import Header
from predbayes.exchange.signing import SigningKey
from predbayes.exchange.upload import Upload
from predbayes.files import remove, write_whole
from predbayes.study.coordinator.folder import StudyFolder
from predbayes.study.coordinator.record import PARTS, PLAIN
from predbayes.study.coordinator.state import State
from predbayes.study.result.accepted import AcceptedUpload
from predbayes.study.result.shardsum import Member, ShardSum, check_arrays


@dataclass(frozen=True, slots=True)
class Parts:
    """The partial sums in a shard's folder, while its lock is held."""

    study: StudyFolder
    state: State
    key: SigningKey

    def usable(self) -> Iterator[tuple[Path, ShardSum]]:
        """Yield parts that count, each with its file; remove what does not."""
        inside = {Member.of(accepted) for accepted in self.state.uploads.values()}
        seen: set[str] = set()
        for path in self._paths():
            try:
                found = self._read(path)
            except PredbayesError:
                remove(path)
                continue
            digests = {member.digest for member in found.members}
            if not inside.issuperset(found.members) or not seen.isdisjoint(digests):
                remove(path)
                continue
            seen |= digests
            yield path, found

    def save(self, part: ShardSum) -> Path:
        """Write a part, whole or not at all."""
        state = self.state
        kept = part.upload(
            state.plan_digest, state.shard, seen="", entry=state.num_entries, part=True
        )
        path = self._folder / f"{kept.digest()}{PLAIN}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, lambda partial: kept.save(partial, self.key))
        return path

    def withdraw(self, accepted: AcceptedUpload) -> None:
        """Take an upload away from the part that it is in, while its bytes are there."""
        gone = Member.of(accepted)
        for path, part in self.usable():
            if gone not in part.members:
                continue
            if len(part.members) > 1:
                alone = ShardSum.of(self.study.plan, [accepted], self.study.read, part.most_rows)
                self.save(part.take_away_(alone))
            remove(path)

    def drop(self, accepted: AcceptedUpload) -> None:
        """Remove the part that an upload is in."""
        for path, part in self.usable():
            if Member.of(accepted) in part.members:
                remove(path)

    def clear(self) -> None:
        """Remove all."""
        remove(self._folder)

    def _read(self, path: Path) -> ShardSum:
        header, plan = Header.read(path), self.study.plan
        check_arrays(plan, header)
        upload = Upload.load(path, header)
        is_own = header.is_signed_by(self.key.public.hex, upload.digest())
        told = upload.info
        if not is_own or told.sum is None or not told.sum.part:
            raise StudyError(f"{path.name} is no part of this shard")
        if (told.plan, told.site) != (self.state.plan_digest, self.state.shard):
            raise StudyError(f"{path.name} is a part of another shard")
        return ShardSum.from_upload(plan, upload)

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{PLAIN}")) if self._folder.is_dir() else []

    @property
    def _folder(self) -> Path:
        return self.study.folder / PARTS
