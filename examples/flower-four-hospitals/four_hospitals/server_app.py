"""The coordinator's half: one round over the study, and its result."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from four_hospitals.task import begin
from predbayes.flower.server import run_study
from predbayes.flower.server_app import log_lines, settings_of, study_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    log_lines(as_json=bool(config["json-logs"]))
    study = study_of(config)
    if config["simulation"] and not study.exists():
        begin(Path(str(config["simulation"])), Path(str(config["data"])))
    run_study(grid, study, settings_of(config))
