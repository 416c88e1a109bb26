"""A shard: a study that takes in a part of the sites, and sends one sum in place of their uploads.

A shard has a folder like a study's and takes the same steps in it: sites are admitted, uploads
pass the same checks, every step is in its ledger. It has a key of its own, by which the study that
takes its sum in knows it, and no labels, because none are needed to add up. What it sends to a
further shard is the same file, so trees may have any depth.

Its sites work with the kit of the study, whose signature names the study: their uploads, and so the
sum, are good for no other.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from predbayes.errors import KeyFileError, StudyError
from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.statement import KIT_SIGNATURE
from predbayes.exchange.strict import require_site_name
from predbayes.exchange.upload import Upload
from predbayes.files import digests, make_folder, remove
from predbayes.study.coordinator.folder import StudyFolder
from predbayes.study.coordinator.record import KIT, LEDGER, RESULTS, UPLOADS
from predbayes.study.coordinator.signer import KEY_PATH
from predbayes.study.coordinator.step import Step
from predbayes.study.kit.kit import Kit
from predbayes.study.result.accepted import AcceptedUpload
from predbayes.study.result.shardsum import ShardSum, require_addable
from predbayes.study.store.audit import AuditLog
from predbayes.study.store.ledger import Ledger

PACK = 1000
"""Uploads that are added up before their sum is kept: what a killed process loses."""

Pack = Sequence[AcceptedUpload]
Folding = Callable[[StudyFolder, Sequence[Pack], float], Iterable[ShardSum]]
"""Adds packs of uploads up, each by itself and in any order, with a limit of rows."""


def begin_shard(folder: Path, name: str, kit_folder: Path, key_path: Path) -> None:
    """Make the folder of a shard: see `Study.shard`."""
    require_site_name(name)
    if folder.exists():
        raise StudyError(f"{folder} exists; give another folder with --study")
    kit = Kit.load(kit_folder)
    require_addable(kit.plan)
    key = CoordinatorKey.load(key_path)
    if kit.plan.recipient and key.public.encryption != kit.plan.recipient:
        raise KeyFileError(
            f"uploads of this plan are encrypted, and {key_path.name} does not open them: make "
            "one with predbayes study key --opens coordinator.key"
        )
    seen = kit.head
    folder.parent.mkdir(parents=True, exist_ok=True)
    with make_folder(folder, 0o700) as scratch:
        shutil.copytree(kit_folder, scratch / KIT)
        (scratch / UPLOADS).mkdir()
        (scratch / RESULTS).mkdir()
        (scratch / KEY_PATH).write_bytes(str(key_path.absolute()).encode())
        files = digests(scratch, (scratch / KIT).rglob("*"))
        files.pop(f"{KIT}/{KIT_SIGNATURE}", None)  # which says itself whose it is
        data = {"plan": kit.digest, "files": files, "key": key.public.signing.hex, "shard": name}
        Ledger(scratch / LEDGER).append("init", {**data, "seen": seen}, key=key.signing)
        AuditLog.at(scratch).note("init", plan=kit.digest, shard=name)


def sum_up(step: Step, most_rows: float = math.inf, fold: Folding | None = None) -> Upload:
    """Add up all that is in a shard, and return what it sends, unsigned.

    Uploads that are in a part already are not read again. What is added up is kept as one part.

    Args:
        step: The shard.
        most_rows: That a site counts for.
        fold: How packs of uploads are added up; one after the other, here.
    """
    _require_possible(step)
    own = _own_sum(step, most_rows, fold or fold_here)
    sums = (step.study.read_sum(a).counting(most_rows) for a in step.state.sums_in_order)
    total = ShardSum.joined(chain([] if own is None else [own], sums))
    assert total is not None  # as something is in
    state, seen = step.state, step.study.kit.head
    return total.upload(state.plan_digest, state.shard, seen=seen, entry=state.num_entries)


def _own_sum(step: Step, most_rows: float, fold: Folding) -> ShardSum | None:
    """The sum of the shard's own uploads, kept as one part; None if it has none."""
    parts, files, known = step.parts, list[Path](), set[str]()

    def sums() -> Iterator[ShardSum]:
        for path, part in parts.usable():
            if part.most_rows != most_rows:
                remove(path)
                continue
            files.append(path)
            known.update(member.digest for member in part.members)
            yield part
        missing = [a for a in step.state.uploads.values() if a.digest not in known]
        packs = [missing[start : start + PACK] for start in range(0, len(missing), PACK)]
        for part in fold(step.study, packs, most_rows):
            files.append(parts.save(part))
            yield part

    total = ShardSum.joined(sums())
    if total is not None and len(files) > 1:
        whole = parts.save(total)
        for path in files:
            if path != whole:
                remove(path)
    return total


def fold_here(study: StudyFolder, packs: Sequence[Pack], most_rows: float) -> Iterator[ShardSum]:
    """Add packs up one after the other, in this process."""
    plan = study.plan
    for pack in packs:
        yield ShardSum.of(plan, pack, study.read, most_rows)


def _require_possible(step: Step) -> None:
    state = step.state
    if not state.shard:
        raise StudyError(f"{step.study.folder} is no shard; make one with predbayes study shard")
    if not state.num_in:
        raise StudyError(f"{state.shard} has no upload yet: run predbayes study add FILE")
    sent = (*state.uploads.values(), *state.sums.values())
    gone = sorted(accepted.site for accepted in sent if accepted.digest in state.deleted)
    if gone:
        raise StudyError(f"the upload of {gone[0]} is deleted; withdraw it to go on without it")
