"""The same harness under a coverage-guided fuzzer, which keeps inputs that reach new code.

    python -m tests.study.fuzz.guided -runs=100000 NEW tests/study/fuzz/corpus

NEW is a folder for what it finds. A failure leaves its input in `crash-DIGEST`, which belongs into
the corpus when the code is mended. Needs the extra `fuzz`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["predbayes"]):
    from tests.study.fuzz import harness


def main() -> None:
    root = Path(tempfile.mkdtemp())
    with harness.cheaply():
        grounds = [harness.make_ground(root / str(r), regression=r) for r in (False, True)]

        def attack(data: bytes) -> None:
            harness.attack(grounds[len(data) % 2], data)

        atheris.Setup(sys.argv, attack)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
