"""`predbayes demo`: a study from plan to report, in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predbayes.errors import StudyError
from predbayes_study.cli.show import say, watched


def demo_command(
    out: Annotated[Path, typer.Option(help="A new folder for all files.")] = Path("demo"),
    no_labels: Annotated[
        bool, typer.Option("--no-labels", help="No reference row has a label.")
    ] = False,
    nothing: Annotated[
        bool, typer.Option("--from-nothing", help="No reference row at all; sites tell surveys.")
    ] = False,
) -> None:
    """Run a study of some sites here, from plan to report."""
    import time

    from predbayes_study.demo.digits import run_demo
    from predbayes_study.extras.survey.nothing import run_from_nothing

    if nothing and no_labels:
        raise StudyError("give --no-labels or --from-nothing; the latter has no labels either")
    began = time.monotonic()

    def tell(line: str) -> None:
        say(f"[{time.monotonic() - began:4.0f} s] {line}")

    labels = not (no_labels or nothing)
    with watched():
        run = run_from_nothing(out, tell) if nothing else run_demo(out, tell, labels=labels)
    folder, result = run
    if labels:
        say(result.verdict)
    scores = result.student.scores if result.at_sites is None else result.at_sites.pooled
    assert scores is not None
    accuracy, nll = (scores.metrics[name].value for name in ("accuracy", "nll"))
    whose = "rows set apart" if labels else "sites' held-out rows"
    say(f"accuracy {accuracy:.3f}, NLL {nll:.3f} on {scores.num_rows} {whose}")
    say(f"open {folder / 'report.html'}")
