"""Ray, on this machine or on a cluster: started quietly, and ended with the block that needs it.

Ray schedules tasks, and runs one again whose worker or machine has died. Nothing here does.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from predbayes.optional import require

_STDERR = 2  # the process's, also where sys.stderr is another


@contextmanager
def running_ray(
    *,
    address: str | None,
    num_workers: int,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Yield the module `ray`, connected.

    Args:
        address: Of a cluster, whatever its size, instead of processes on this machine.
        num_workers: Processes on this machine.
        environment: Further variables of the workers.
    """
    ray = import_ray()
    variables = {"OMP_NUM_THREADS": "1", **(environment or {})}
    if address is None:  # what this process can import, its workers can
        variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    with _stderr_closed():  # it announces its log level there before it obeys it
        ray.init(
            address=address,
            num_cpus=None if address else num_workers,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            runtime_env={"env_vars": variables},
        )
    try:
        yield ray
    finally:
        ray.shutdown()


def import_ray() -> Any:
    """Return the module; what it would tell others, or write to our stderr, is switched off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What goes wrong reaches us as an exception; beside it, Ray writes to our stderr that it could
    # not tell a driver that is already leaving, or that nobody collects its metrics.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns on every start
    # Its workers stand back behind every other process, if nobody says otherwise.
    os.environ.setdefault("RAY_worker_niceness", "0")
    return require("ray", "lab")


@contextmanager
def _stderr_closed() -> Iterator[None]:
    """Discard what is written to the process's stderr inside the block."""
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
