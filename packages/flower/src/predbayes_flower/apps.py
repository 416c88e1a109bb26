"""What apps of predbayes share: settings, log lines for Flower, and errors of one line.

A user's function reads the node's configuration and the run's, such as where a table lies. Who
forgets a key in `--node-config`, or in the app's `pyproject.toml`, is told which, and where it
belongs. For code that expects a `KeyError` it is still one.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from predbayes.errors import DataError, is_line, no_such
from predbayes.text import OneLine
from predbayes_flower.round import RoundSettings

_NODE = "flower-supernode's --node-config"
_RUN = "[tool.flwr.app.config] of the app's pyproject.toml"
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
    for package in ("predbayes", "predbayes_study", "predbayes_flower"):
        logger = logging.getLogger(package)
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


class MissingKeyError(DataError, KeyError):
    """A key that a configuration of Flower's lacks."""

    def __str__(self) -> str:
        """Return the line; a bare KeyError would put it in quotes."""
        return str(self.args[0])


class _Config(dict[str, Any]):
    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        super().__init__(given)
        self._where = where

    def __missing__(self, key: str) -> Any:
        raise MissingKeyError(f"{self._where}: {no_such('key', key, self)}")


def with_lines(context: Any) -> Any:
    """Return a Context whose two configurations say which key they lack."""
    own = copy.copy(context)
    own.node_config = _Config(context.node_config, _NODE)
    own.run_config = _Config(context.run_config, _RUN)
    return own
