"""`scripts/tests-of` finds the tests of a change, `scripts/messages` every message."""

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


def test_the_page_of_messages_is_what_the_code_says():
    command = [sys.executable, ROOT / "scripts" / "messages", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_messages_of_all_kinds_are_on_the_page():
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    for words in (
        "a client must have learnt from a positive number of rows",  # a PoolError
        "description: is empty; say what the model is for",  # a finding of plan check
        "only predictions of a class travel in bytes",  # a ValueError of the plan's schema
        "did not sign the upload that stands in its name",  # a StudyError
    ):
        assert words in page
