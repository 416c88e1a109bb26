"""Resumable records: one JSON line per finished cell; an interrupted run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(".benchmarks")


def cached(
    name: str, key: Mapping[str, Any], compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The record of a cell, computed and appended to the file if it is not there."""
    path = FOLDER / f"{name}.jsonl"
    if path.exists():
        for line in path.read_text().splitlines():
            record: dict[str, Any] = json.loads(line)
            if record["key"] == dict(key):
                return record["value"]  # type: ignore[no-any-return]
    value = compute()
    FOLDER.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"key": dict(key), "value": value}) + "\n")
    return value


def mean(records: list[dict[str, Any]], *path: str) -> float:
    """The mean over records of the figure at a path of keys."""
    total = 0.0
    for record in records:
        value: Any = record
        for key in path:
            value = value[key]
        total += float(value)
    return total / len(records)
