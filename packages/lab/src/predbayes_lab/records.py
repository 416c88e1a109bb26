"""Records of finished runs: one JSON object per line, appended and never rewritten.

A record is one method on one cell (a setting of the experiment's axes) with one seed. Its key is a
content hash of all that determines the result, so a run that is there need not be repeated, and one
of other settings, data or results version is not mistaken for it. A process killed while writing
leaves at most one line without its end, which the next writer cuts off.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from predbayes.errors import ExperimentError
from predbayes.system import HeldError, held

RECORDS_FILE = "records.jsonl"
LOSSES_FOLDER = "losses"  # beside it: -log p of each scored row, one file for each record


_YOUNGEST = {"warmup": 0.0, "clip-norm": 0.0, "autocast": False}
ADDED: dict[str, dict[str, Any]] = {
    "network": {"balanced": False},
    "reference": {"num-rows": None, "draw": 0, "classes": "all", "population": ""},
    "sampler": {"min-steps": 0, "step-floor": 0.0, **_YOUNGEST},
    "optimizer": {"decay": "none", **_YOUNGEST},
    "distillation": {"decay": "none", **_YOUNGEST},
    "student": {"hidden": None, "recalibrate": False},
}
"""Settings that are younger than some records, with their defaults: so set, they change no key."""


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of one method on one cell with one seed."""

    key: str  # content hash of config, results versions and data
    experiment: str
    cell: dict[str, Any]  # the experiment's axes: {"data.name": "bike", ...}
    method: str  # its label in the config
    seed: int
    scores: dict[str, float]  # on the evaluation rows; lower is better but for accuracy, coverage
    details: dict[str, Any] = field(default_factory=dict)  # beta, gap of the student, ...
    reliability: dict[str, list[float]] | None = None  # per bin: count, confidence, accuracy
    config: dict[str, Any] = field(default_factory=dict)  # the resolved settings
    data: dict[str, Any] = field(default_factory=dict)  # the dataset's fingerprint
    version: str = ""
    seconds: float = 0.0
    error: str = ""  # why a run that diverged has no scores; its NLL is NaN

    def line(self) -> str:
        """Return the record as one line of JSON; null stands for a score that is NaN."""
        fields = asdict(self)
        scores = {name: None if math.isnan(v) else v for name, v in self.scores.items()}
        return json.dumps(fields | {"scores": scores}, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, line: str) -> Record:
        """Parse what `line` wrote."""
        fields = json.loads(line)
        scores = {name: math.nan if v is None else v for name, v in fields["scores"].items()}
        return cls(**fields | {"scores": scores})


def split_label(label: str) -> tuple[str, str]:
    """Split a record's label into its method and its variant of a grid.

    Examples:
        >>> split_label("fedavg[optimizer.lr=0.1]"), split_label("fedavg")
        (('fedavg', 'optimizer.lr=0.1'), ('fedavg', ''))
        >>> split_label("beta[sampler.step-size=0.1] student")
        ('beta student', 'sampler.step-size=0.1')
    """
    found = re.fullmatch(r"(.*?)\[(.*)\](.*)", label)
    return (found[1] + found[3], found[2]) if found else (label, "")


def read_records(path: Path) -> list[Record]:
    """Read all complete records of a file, in the order written; a missing file has none."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break  # cut short by a killed process
        try:
            records.append(Record.parse(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ExperimentError(f"{path.name}, line {number} is not a record: {error}") from error
    return records


class RecordWriter:
    """Appends records durably; at most one writer per file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def append(self, record: Record) -> None:
        """Write one record through to the disk."""
        self._file.write(record.line().encode())
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def open_writer(path: Path) -> Iterator[RecordWriter]:
    """Lock a records file for appending, and cut off a line that has no end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path), path.open("ab+") as file:
        file.seek(0)
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
        yield RecordWriter(file)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; a dead process holds nothing."""
    try:
        with held(path.with_name(f".{path.name}.lock")):
            yield
    except HeldError as error:
        raise ExperimentError(f"another process is writing to {path}") from error


def without_additions(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the settings of `ADDED` that have their defaults."""
    settings = dict(config)
    for section in config.keys() & ADDED.keys():
        defaults = ADDED[section]
        settings[section] = {
            key: value
            for key, value in config[section].items()
            if key not in defaults or value != defaults[key]
        }
        if not settings[section]:
            del settings[section]
    return settings
