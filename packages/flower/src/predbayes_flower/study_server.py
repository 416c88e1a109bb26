"""The Flower ServerApp of a study: `predbayes_flower.study_server:app`.

Run configuration:

    study             absolute path of the study's folder, on the machine of the SuperLink
    simulation        in its place: the folder of a simulation, as `flower.simulation` lays it out
    deadline-seconds  when the round ends at the latest
    grace-seconds     how long to wait for the others once the quorum is in; 0 or more
    poll-seconds, retry-seconds, report-seconds, ack-seconds
    finish            whether the round makes the result when it ends; true
    device            where networks are run and trained for the result: cpu, cuda, auto; cpu
    json-logs         whether log lines are JSON
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from predbayes.optional import require
from predbayes_flower.apps import served, settings_of
from predbayes_flower.round import SIMULATED, RoundSettings
from predbayes_flower.server import run_study
from predbayes_flower.simulation import study_folder


def make_server_app(prepare: Callable[[Mapping[str, Any]], None] | None = None) -> Any:
    """Make a ServerApp that runs one round over the study that its run configuration names.

    Args:
        prepare: Is called with the run configuration first, to lay a simulation out.
    """
    app = require("flwr.serverapp", "flower").ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        config = dict(context.run_config)
        with served(config):
            if prepare is not None:
                prepare(config)
            run_study(
                grid,
                study_of(config),
                settings_of(config, SIMULATED if config.get("simulation") else RoundSettings()),
                finish=bool(config.get("finish", True)),
                device=str(config.get("device", "cpu")),
            )

    return app


def study_of(config: Mapping[str, Any]) -> Path:
    """Return the study's folder, or that of a simulation's study."""
    own, simulation = (str(config.get(name, "")) for name in ("study", "simulation"))
    return Path(own) if own or not simulation else study_folder(Path(simulation))


app = make_server_app()
