"""Adding up the uploads of a shard on Ray: one task for each pack of uploads.

    driver   deals the uploads out in packs, and signs and keeps the sum of each as it comes
    task     reads the uploads of a pack, each checked as `finish` would, and adds them up

A task is a pure function of its pack. Ray runs one again whose worker or node has died, and the
driver takes one sum of each, of just the uploads that it asked for. So nothing is counted twice,
and any number of workers gives the same bits. A driver that is killed finds the sums that it kept
(`predbayes.study.coordinator.parts`), and does what is missing.

On a cluster every node must see the shard's folder under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from predbayes.errors import StudyError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.study.coordinator.folder import StudyFolder
from predbayes.study.coordinator.shard import Pack
from predbayes.study.result.shardsum import Member, ShardSum
from predbayes.threads import threads
from predbayes.workers import running_ray

EXTRA = "ray"
_RETRIES = 5  # of a task whose worker or node died

Packed = tuple[str, dict[str, np.ndarray[Any, Any]]]
"""A sum on its way between processes: what it says of itself as JSON, and its arrays."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """Adds packs up on Ray.

    Args:
        num_workers: Processes on this machine.
        address: Of a cluster, instead of processes here; `auto` is the one that runs here.
    """

    num_workers: int = 1
    address: str | None = None

    def __call__(
        self, study: StudyFolder, packs: Sequence[Pack], most_rows: float
    ) -> Iterator[ShardSum]:
        """Yield the sum of each pack, in the order in which they are ready."""
        plan = study.plan
        if plan.recipient and plan.upload.keep_sealed:
            raise StudyError("uploads are kept sealed, and no worker has the key: sum without --on")
        if not packs:
            return
        folder = study.folder.resolve()
        with running_ray(EXTRA, address=self.address, num_workers=self.num_workers) as ray:
            task = ray.remote(num_cpus=1, max_retries=_RETRIES)(fold_pack)
            asked = {task.remote(folder, list(pack), most_rows): pack for pack in packs}
            while asked:
                ready, _ = ray.wait(list(asked))
                for reference in ready:
                    pack = asked.pop(reference)
                    yield _received(study, pack, _got(ray, reference))


def fold_pack(folder: Path, pack: Pack, most_rows: float) -> Packed:
    """Add up the uploads of a pack, in a worker."""
    study = StudyFolder(folder)
    with threads(1):
        total = ShardSum.of(study.plan, pack, study.read, most_rows)
        made = total.upload(study.plan.digest(), "", seen="", entry=1, part=True)
    return made.info.model_dump_json(), {name: a.numpy() for name, a in made.arrays.items()}


def _got(ray: Any, reference: Any) -> Packed:
    try:
        found: Packed = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause  # the worker's, as if it had been raised here
        raise cause if isinstance(cause, StudyError) else _failed(error) from error
    except ray.exceptions.RayError as error:
        raise _failed(error) from error
    return found


def _failed(error: Exception) -> StudyError:
    why = str(error).strip().splitlines()[-1]
    return StudyError(f"a worker failed ({why}); run the command again to do what is missing")


def _received(study: StudyFolder, pack: Pack, packed: Packed) -> ShardSum:
    """What came from a worker, if it is of the uploads that were asked for."""
    info = UploadInfo.model_validate_json(packed[0])
    arrays = {name: torch.tensor(array) for name, array in packed[1].items()}
    found = ShardSum.from_upload(study.plan, Upload(info, arrays))
    if found.members != tuple(sorted(map(Member.of, pack))):
        raise StudyError("a worker added up other uploads than it was asked to")
    return found
