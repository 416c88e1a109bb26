"""`scripts/tests-of` finds the tests of a change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("changed", "among"),
    [
        ("src/predbayes/exact.py", "tests/test_exact.py"),
        ("src/predbayes/cli/doctor.py", "tests/cli/test_doctor.py"),
        ("src/predbayes/predictive/pooling.py", "tests/predictive/test_pooling.py"),
        ("src/predbayes/study/coordinator/signer.py", "tests/study/coordinator/test_intake.py"),
        ("tests/test_exact.py", "tests/test_exact.py"),
    ],
)
def test_tests_of(changed, among):
    command = [sys.executable, ROOT / "scripts" / "tests-of"]
    done = subprocess.run(
        command,
        input=f"{changed}\nREADME.md\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    found = done.stdout.split()
    assert among in found
    assert all((ROOT / name).is_file() for name in found)
