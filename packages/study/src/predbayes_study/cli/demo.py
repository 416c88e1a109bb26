"""`predbayes demo`: a study from plan to report, in under a minute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predbayes_study.cli.show import say, watched

if TYPE_CHECKING:
    from predbayes_study.demo.digits import Say
    from predbayes_study.result.schema import Result

OutOption = Annotated[Path, typer.Option(help="A new folder for all files.")]


def demo_command(
    out: OutOption = Path("demo"),
    no_labels: Annotated[
        bool, typer.Option("--no-labels", help="No reference row has a label.")
    ] = False,
) -> None:
    """Run a study of some sites here, from plan to report."""
    from predbayes_study.demo.digits import run_demo

    run_here(lambda say: run_demo(out, say, labels=not no_labels), labels=not no_labels)


def run_here(run: Callable[[Say], tuple[Path, Result]], *, labels: bool) -> None:
    """Run a demonstration, show its steps with the time, and then how good the model is."""
    import time

    from predbayes_study.report.unlabelled import in_short
    from predbayes_study.result.model import model_folder, plan_of

    began = time.monotonic()
    with watched():
        folder, result = run(lambda line: say(f"[{time.monotonic() - began:4.0f} s] {line}"))
    say(in_short(plan_of(model_folder(folder)), result))
    if labels:  # without, that sentence has the sites' figures, and says what they are of
        scores = result.student.scores
        assert scores is not None
        accuracy, nll = (scores.metrics[name].value for name in ("accuracy", "nll"))
        say(f"accuracy {accuracy:.3f}, NLL {nll:.3f} on {scores.num_rows} rows set apart")
    say(f"open {folder / 'report.html'}")
