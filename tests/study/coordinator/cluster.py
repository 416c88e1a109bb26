"""A shard that is added up on a small cluster of Ray, whose workers and nodes die.

`python -m tests.study.coordinator.cluster SHARD MARKS` writes, as JSON into the folder MARKS, the
digest of the sum that each way gave. It is a process of its own, because Ray leaves threads and
files behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from predbayes.errors import StudyError
from predbayes.study.coordinator import on_ray as on_ray_module
from predbayes.study.coordinator import shard as shard_module
from predbayes.study.coordinator.on_ray import OnRay
from predbayes.study.coordinator.study import Study
from predbayes.workers import import_ray

PATIENCE = 120  # seconds for a busy machine
MARKS = "PREDBAYES_TEST_MARKS"  # folder by which workers and driver tell each other
PACK, FOUND = 3, "found.json"

fold_pack = on_ray_module.fold_pack


def dies_once(folder, pack, most_rows):
    """The task, in a worker that kills itself the first time that anything is asked of any."""
    mark = Path(os.environ[MARKS]) / "died"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return fold_pack(folder, pack, most_rows)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still there")


def stays_away(folder, pack, most_rows):
    """The task, which does not come back on the node that will be removed."""
    import ray

    marks = Path(os.environ[MARKS])
    if (marks / ray.get_runtime_context().get_node_id()).exists():
        (marks / "busy").touch()
        time.sleep(PATIENCE)
    return fold_pack(folder, pack, most_rows)


def summed(shard: Study, fold) -> str:
    """The digest of the shard's sum, made anew."""
    for path in (shard.folder / ".parts").glob("*"):
        path.unlink()
    return shard.sum(shard.folder.with_name("cluster.sum"), fold=fold).digest()


def altered(shard: Study, fold) -> str:
    """What is said of an upload that was altered."""
    path = shard.upload_path(next(iter(shard.state().uploads.values())))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    try:
        return summed(shard, fold)
    except StudyError as error:
        return str(error)
    finally:
        path.write_bytes(content)


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.05)


def main(folder: str, marks: Path) -> None:
    shard, found = Study(folder), {}
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for what nodes start
    os.environ[MARKS] = str(marks)
    shard_module.PACK = PACK
    import_ray("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    fold = OnRay(address=nodes.address)
    found["one worker"] = summed(shard, fold)
    found["altered"] = altered(shard, fold)
    node = nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    on_ray_module.fold_pack = dies_once
    found["two workers, one of which dies"] = summed(shard, fold)
    on_ray_module.fold_pack = stays_away
    (marks / node.node_id).touch()

    def removing(*asked):
        for number, part in enumerate(fold(*asked)):
            if number == 0:
                wait_for(marks / "busy")
                nodes.remove_node(node, allow_graceful=False)
            yield part

    found["a node is removed"] = summed(shard, removing)
    nodes.shutdown()
    (marks / FOUND).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
