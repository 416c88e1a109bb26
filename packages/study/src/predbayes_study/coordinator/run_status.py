"""How a run over a network stands, for whoever asks `predbayes study status` meanwhile.

The run writes it into a small file in the study's folder again and again, and removes the file when
it ends. What a run that was killed has left counts no more: its process is gone.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import TypeAdapter

from predbayes.exchange.strict import Bounded
from predbayes.files import remove, write_bytes
from predbayes.system import runs
from predbayes_study.store.files import RUN_LOCK, locked
from predbayes_study.store.ledger import now

RUN_FILE = ".run.json"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run that is under way."""

    sites: Mapping[str, str]  # the state of each admitted site
    seconds_left: float  # to its deadline
    finishing: bool = False  # its round has ended, and the result is being made
    at: str = field(default_factory=now)
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)

    def save(self, folder: Path) -> None:
        """Write it into a study's folder, whole or not at all."""
        write_bytes(folder / RUN_FILE, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path) -> RunStatus | None:
        """Read what a run has written, if there is one under way."""
        try:
            form: TypeAdapter[RunStatus] = TypeAdapter(Annotated[RunStatus, Bounded()])
            found = form.validate_json((folder / RUN_FILE).read_bytes(), strict=True)
        except (OSError, ValueError):
            return None
        return found if found.host != platform.node() or runs(found.pid) else None


@contextmanager
def one_run(folder: Path) -> Iterator[None]:
    """Hold a study's folder for a run; a second run is refused, commands are not."""
    with locked(folder, RUN_LOCK):
        try:
            yield
        finally:
            remove(folder / RUN_FILE)
