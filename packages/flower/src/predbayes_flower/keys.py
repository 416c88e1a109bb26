"""Flower's Context as functions of a user get it: a key that is not there is one line.

A user's function reads the node's configuration and the run's, such as where a table lies. Who
forgets a key in `--node-config`, or in the app's `pyproject.toml`, is told which, and where it
belongs. For code that expects a `KeyError` it is still one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from predbayes.errors import DataError, no_such

_NODE = "flower-supernode's --node-config"
_RUN = "[tool.flwr.app.config] of the app's pyproject.toml"


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
