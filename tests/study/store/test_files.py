"""One process at a time works in a folder, and copies have a bound."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from predbayes.errors import StudyError
from predbayes_study.store.files import LOCK, RUN_LOCK, copy_bounded, locked

HOLD = (
    "import sys, time; from pathlib import Path; "
    "from predbayes_study.store.files import locked\n"
    "with locked(Path(sys.argv[1])):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(60)\n"
)


def test_a_second_is_refused_at_once_and_says_where(tmp_path):
    refused = pytest.raises(
        StudyError, match=f"^another command is at work on {tmp_path.name}; try again later$"
    )
    with locked(tmp_path), refused, locked(tmp_path):
        raise AssertionError
    with locked(tmp_path, LOCK), locked(tmp_path, RUN_LOCK):
        pass  # it is free again, and two locks are two
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass  # after an error, too


def test_a_process_that_was_killed_holds_nothing(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StudyError, match="another command"), locked(tmp_path):
            raise AssertionError
        holder.kill()
    with locked(tmp_path):
        pass


def test_a_copy_is_as_large_as_allowed_and_no_larger(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"12345")
    assert copy_bounded(source, target, 5) == 5
    assert target.read_bytes() == b"12345"
    with pytest.raises(StudyError, match="more than the 4 bytes"):
        copy_bounded(source, tmp_path / "other", 4)
    with pytest.raises(StudyError, match="File exists"):
        copy_bounded(source, target, 5)  # what is there, a link perhaps, isn't written to


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StudyError, match="it is not a file"):
            copy_bounded(source, tmp_path / "target", 5)
    with pytest.raises(StudyError, match="cannot be copied: No such file"):
        copy_bounded(tmp_path / "absent", tmp_path / "target", 5)
