"""`predbayes demo`: a study of five sites from plan to report, in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predbayes.cli.show import say


def demo_command(
    out: Annotated[Path, typer.Option(help="A new folder for all files.")] = Path("demo"),
    no_labels: Annotated[
        bool, typer.Option("--no-labels", help="No reference row has a label.")
    ] = False,
) -> None:
    """Run a study of five sites here, from plan to report."""
    import time

    from predbayes.study.demo import run_demo

    began = time.monotonic()

    def tell(line: str) -> None:
        say(f"[{time.monotonic() - began:4.0f} s] {line}")

    folder, result = run_demo(out, tell, labels=not no_labels)
    if not no_labels:
        say(result.verdict)
    scores = result.student.scores if result.at_sites is None else result.at_sites.pooled
    assert scores is not None
    accuracy, nll = (scores.metrics[name].value for name in ("accuracy", "nll"))
    whose = "sites' held-out rows" if no_labels else "rows set apart"
    say(f"accuracy {accuracy:.3f}, NLL {nll:.3f} on {scores.num_rows} {whose}")
    say(f"open {folder / 'report.html'}")
