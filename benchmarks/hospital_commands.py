"""The four hospitals through the commands alone: `examples/four-hospitals/study.py` on splits.

Every hospital has a table of its own making and a model of its own choice; what each takes home is
scored on patients to come (`benchmarks.by_commands`).
"""

from __future__ import annotations

from typing import Any

from benchmarks.by_commands import Story, example, run_quietly, uci

TARGET = {"accuracy": 0.80, "nll": 0.44}  # of the adopted models, at least and at most


def run_commands(num_splits: int) -> dict[str, Any]:
    """Run the example on every split, and score what comes home."""
    script, data = example(), uci("heart", "heart")
    story = Story(
        script.HOSPITALS,
        lambda out, seed: script.main(data, out, seed, run_quietly),
        "patients.csv",
        ("accuracy", "nll"),
    )
    found = story.run(num_splits)
    adopted = found["lines"]["adopted"]
    reached = adopted["accuracy"] >= TARGET["accuracy"] and adopted["nll"] <= TARGET["nll"]
    return {**found, "target": TARGET, "reached": reached}
