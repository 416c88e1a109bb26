"""What every ServerApp of predbayes does: read settings, log to Flower, and fail in one line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from predbayes.errors import is_line
from predbayes.text import OneLine
from predbayes_flower.round import RoundSettings

_SECONDS = ("deadline", "grace", "poll", "retry", "report", "ack")


@contextmanager
def served(config: Mapping[str, Any]) -> Iterator[None]:
    """Log what happens inside the block, and let an error of a user's be one line."""
    log_lines(as_json=bool(config.get("json-logs", False)))
    try:
        yield
    except Exception as error:
        if is_line(error):
            sys.tracebacklimit = 0  # Flower logs what ended the run: to its user, one line
        raise


def settings_of(config: Mapping[str, Any], default: RoundSettings) -> RoundSettings:
    """Read settings from a run configuration, and take the others from the default."""
    given: dict[str, Any] = {
        f"{name}_seconds": float(config[f"{name}-seconds"])
        for name in _SECONDS
        if f"{name}-seconds" in config
    }
    return replace(default, **given)


def log_lines(*, as_json: bool) -> None:
    """Let predbayes write its log to stderr, which Flower streams."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else OneLine("%(message)s"))
    logger = logging.getLogger("predbayes")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


class _JsonLines(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(fields)
