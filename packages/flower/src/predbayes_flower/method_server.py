"""The ServerApp of any method: what a user writes is the method and the reference rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from predbayes.api.run import run
from predbayes.optional import require
from predbayes_flower.apps import served, settings_of, with_lines
from predbayes_flower.federation import FlowerFederation
from predbayes_flower.pump import over_network
from predbayes_flower.round import SIMULATED, RoundSettings
from predbayes_flower.task import given

_log = logging.getLogger(__name__)


def server_app(
    method: Any,
    *,
    reference: Any,
    num_rounds: int = 1,
    seed: int = 0,
    quorum: int = 2,
    deadline: float = 3600.0,
    grace: float = math.inf,
    sites: Collection[str] = (),
    out: str | Path | None = None,
) -> Any:
    """Make the ServerApp of a method: runs it over the nodes that are there.

    The run configuration may give num-rounds, seed, quorum, deadline-seconds, grace-seconds,
    poll-seconds, retry-seconds, report-seconds and out in place of what is given here.

    Args:
        method: The method, or a function of Flower's Context that returns it.
        reference: The reference rows, or a function of Flower's Context that returns them.
        num_rounds: For methods that average weights.
        seed: Of everything random in the run.
        quorum: Sites with which a round is worth ending; with fewer it fails.
        deadline: Seconds after which a round ends at the latest.
        grace: Seconds for which the others are waited for once the quorum is in.
        sites: The names of those that may take part; if empty, every node that is there.
        out: A folder for the result, as `Result.save` writes it.
    """
    app, method_of = require("flwr.serverapp", "flower").ServerApp(), given(method)
    defaults: dict[str, Any] = {"num-rounds": num_rounds, "seed": seed, "quorum": quorum}
    defaults |= {"deadline-seconds": deadline, "grace-seconds": grace, "out": out or ""}

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        context = with_lines(context)
        config = defaults | dict(context.run_config)
        with served(config):
            usual = RoundSettings() if over_network(grid) else SIMULATED
            pace = settings_of(config, usual)
            result = run(
                method_of(context),
                FlowerFederation(
                    grid,
                    quorum=int(config["quorum"]),
                    deadline=pace.deadline_seconds,
                    grace=pace.grace_seconds,
                    sites=sites,
                    pace=pace,
                ),
                reference(context) if callable(reference) else reference,
                seed=int(config["seed"]),
                num_rounds=int(config["num-rounds"]),
            )
            for line in result.summary().splitlines():
                _log.info("%s", line)
            if config["out"]:
                result.save(config["out"])
                _log.info("saved in %s", Path(config["out"]).absolute())

    return app
