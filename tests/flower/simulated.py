"""Flower's simulation as somebody runs it: a SuperLink that simulates, `flwr run`, and Ray.

Port, folder and FLWR_HOME are the simulation's own. Its processes are started, logged and ended as
those of a deployment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flower.deployment import BIN, QUICK, Deployment, Process, deployed, listens, until

_PROFILE = "simulation"


@dataclass(frozen=True)
class Simulation:
    """A SuperLink that simulates, and its runs."""

    processes: Deployment

    @property
    def app(self) -> Path:
        """The app of the documentation: two names of predbayes, and no code."""
        return self.processes.root / "app"

    def run(self, app: Path, num_sites: int, **config: Any) -> Process:
        """`flwr run` of a study's app."""
        return self.run_app(app, num_sites, **QUICK, **config)

    def run_app(self, app: Path, num_sites: int, **config: Any) -> Process:
        """`flwr run` of any app."""
        told = run_config(config)
        nodes = f"num-supernodes={num_sites} client-resources-num-cpus=1 init-args-num-cpus=2"
        return self.flwr("run", app, _PROFILE, "--stream", *told, "--federation-config", nodes)

    def flwr(self, *arguments: object) -> Process:
        return self.processes.start("flwr", BIN / "flwr", *arguments)


@contextlib.contextmanager
def simulated(root: Path, **environment: str) -> Iterator[Simulation]:
    """A simulation without a run yet; all that it starts ends with it."""
    with pytest.MonkeyPatch.context() as patch, deployed(root) as processes:
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **environment}.items():
            patch.setenv(name, value)
        (root / "flwr" / "config.toml").write_text(
            f'[superlink.{_PROFILE}]\naddress = "127.0.0.1:{processes.port}"\ninsecure = true\n'
        )
        superlink = processes.start(
            "superlink",
            *(BIN / "flower-superlink", "--insecure", "--simulation"),
            *("--host", "127.0.0.1", "--port", processes.port),
            *("--database", root / "state.db"),
        )
        until(lambda: listens(processes.port), 60, "the SuperLink listens", superlink)
        yield Simulation(processes)


def run_config(config: dict[str, Any]) -> tuple[str, str]:
    """The arguments that tell `flwr run` a configuration."""
    told = {
        name: f'"{value}"' if isinstance(value, str | Path) else str(value).lower()
        for name, value in config.items()
    }
    return "--run-config", " ".join(f"{name}={value}" for name, value in told.items())
