"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME` runs one.

A benchmark prints what it measures as it goes, and one JSON object on its last line.
"""

from __future__ import annotations

import importlib
import json
import sys

from predbayes.errors import PredbayesError

NAMES = ("endtoend", "hospitals", "sampler", "screening", "streaming", "tuning")


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
    if name not in NAMES or rest:
        print(
            f"no benchmark {' '.join(arguments)!r}; there are {', '.join(NAMES)}", file=sys.stderr
        )
        return 2
    try:
        figures = importlib.import_module(f"benchmarks.{name}").run()
    except PredbayesError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
