"""The Flower ServerApp of a study: `predbayes.flower.server_app:app`.

Run configuration:

    study             absolute path of the study's folder, on the machine of the SuperLink
    simulation        in its place: the folder of a simulation, as `flower.simulation` lays it out
    deadline-seconds  when the round ends at the latest
    poll-seconds, retry-seconds, report-seconds, ack-seconds
    finish            whether the round makes the result when it ends; true
    json-logs         whether log lines are JSON
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from predbayes.errors import PredbayesError
from predbayes.flower.round import SIMULATED, RoundSettings
from predbayes.flower.server import run_study
from predbayes.flower.simulation import study_folder
from predbayes.optional import require
from predbayes.text import OneLine

_SECONDS = ("deadline", "poll", "retry", "report", "ack")


def make_server_app(prepare: Callable[[Mapping[str, Any]], None] | None = None) -> Any:
    """Make a ServerApp that runs one round over the study that its run configuration names.

    Args:
        prepare: Is called with the run configuration first, to lay a simulation out.
    """
    app = require("flwr.serverapp", "flower").ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        config = dict(context.run_config)
        log_lines(as_json=bool(config.get("json-logs", False)))
        finish = bool(config.get("finish", True))
        try:
            if prepare is not None:
                prepare(config)
            run_study(grid, study_of(config), settings_of(config), finish=finish)
        except PredbayesError:
            sys.tracebacklimit = 0  # Flower logs what ended the run: to its user, one line
            raise

    return app


def study_of(config: Mapping[str, Any]) -> Path:
    """Return the study's folder, or that of a simulation's study."""
    own, simulation = (str(config.get(name, "")) for name in ("study", "simulation"))
    return Path(own) if own or not simulation else study_folder(Path(simulation))


def settings_of(config: Mapping[str, Any]) -> RoundSettings:
    """Read settings from a run configuration; what it does not give has its default."""
    given: dict[str, Any] = {
        f"{name}_seconds": float(config[f"{name}-seconds"])
        for name in _SECONDS
        if f"{name}-seconds" in config
    }
    return replace(SIMULATED if config.get("simulation") else RoundSettings(), **given)


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


app = make_server_app()
