"""`predbayes demo`: a study of five sites from plan to report, in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predbayes.cli.show import say


def demo_command(
    out: Annotated[Path, typer.Option(help="A new folder for all files.")] = Path("demo"),
) -> None:
    """Run a study of five sites here, from plan to report."""
    import time

    from predbayes.study.demo import run_demo

    began = time.monotonic()
    folder, result = run_demo(out, lambda line: say(f"[{time.monotonic() - began:4.0f} s] {line}"))
    say(result.verdict)
    scores = result.student.scores
    assert scores is not None
    accuracy, nll = (scores.metrics[name].value for name in ("accuracy", "nll"))
    say(f"accuracy {accuracy:.3f}, NLL {nll:.3f} on {scores.num_rows} rows set apart")
    say(f"open {folder / 'report.html'}")
