"""The coordinator's half: one round over the study, and its result."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from four_hospitals.task import begin
from predbayes_flower.study_server import make_server_app, study_of


def prepare(config: Mapping[str, Any]) -> None:
    """Make the hospitals of a simulation, the first time."""
    if config["simulation"] and not study_of(config).exists():
        begin(Path(config["simulation"]), Path(config["data"]))


app = make_server_app(prepare)
