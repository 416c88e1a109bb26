"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME [--OPTION [N]]` runs one.

A benchmark prints what it measures as it goes, and one JSON object on its last line.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from typing import Any

from predbayes.errors import PredbayesError

NAMES = (
    "clinic",
    "coverage",
    "dp",
    "endtoend",
    "flower",
    "gate",
    "hospitals",
    "largetable",
    "level",
    "malicious",
    "manysites",
    "membership",
    "mixed",
    "nothing",
    "regression",
    "resnet",
    "sampler",
    "scale",
    "screening",
    "sealed",
    "streaming",
    "survival",
    "tuning",
)


def main(arguments: list[str]) -> int:
    """List the benchmarks, or run one."""
    if not arguments:
        for name in NAMES:
            first_line = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").split("\n")[
                0
            ]
            print(f"{name:<12} {first_line}")
        return 0
    name, *rest = arguments
    options = _options(rest)
    run = importlib.import_module(f"benchmarks.{name}").run if name in NAMES else None
    if (
        run is None
        or options is None
        or not options.keys() <= inspect.signature(run).parameters.keys()
    ):
        print(
            f"no benchmark {' '.join(arguments)!r}; there are {', '.join(NAMES)}", file=sys.stderr
        )
        return 2
    try:
        figures = run(**options)
    except PredbayesError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures))
    return 0


def _options(words: list[str]) -> dict[str, Any] | None:
    """`--name` is True, `--name 5` a number; None if it is neither."""
    options: dict[str, Any] = {}
    for word in words:
        if word.startswith("--"):
            options[word[2:].replace("-", "_")] = True
        elif options and word.isdigit():
            options[list(options)[-1]] = int(word)
        else:
            return None
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
