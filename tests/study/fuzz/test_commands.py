"""Whatever is in a file: no traceback, no raw output, nothing taken that a later step refuses.

Two hundred inputs; `PREDBAYES_FUZZ=N` tries others and more, and the slow run a hundred thousand.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from predbayes.errors import StudyError
from predbayes_study.coordinator import status
from tests.study.fuzz import harness

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
NUM_INPUTS = int(os.environ.get("PREDBAYES_FUZZ", "200"))
MAX_GROWTH_BYTES = 400_000_000


@pytest.fixture(scope="module")
def grounds(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz")
    with harness.cheaply():
        yield [harness.make_ground(root / str(r), regression=r) for r in (False, True)]


def _forget_peak() -> int:
    """Memory in use now, from which a new peak is taken: the warming up had a higher one."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def attacked(grounds, num, seed):
    rng = random.Random(seed)
    return {harness.attack(grounds[n % 2], rng.randbytes(60)) for n in range(num)}


def test_what_is_kept_breaks_nothing(grounds):
    assert len(CORPUS) >= 20
    done = {harness.attack(grounds[n % 2], path.read_bytes()) for n, path in enumerate(CORPUS)}
    assert len(done) >= 15


@pytest.mark.parametrize(
    "num", [NUM_INPUTS, pytest.param(100_000, marks=pytest.mark.slow("a hundred thousand inputs"))]
)
def test_inputs_break_nothing_in_bounded_memory(grounds, num):
    attacked(grounds, 60, "warm up")
    before = _forget_peak()
    done = attacked(grounds, num, num)
    assert {f"{way.__name__}: refused" for way in harness.WAYS} <= done
    assert any(found.endswith("taken") for found in done)
    assert _status_bytes("VmHWM") - before < MAX_GROWTH_BYTES


class TestTheHarnessCanFail:
    def test_a_traceback_is_found(self, grounds, monkeypatch):
        monkeypatch.setattr(status, "status_of", lambda *_, **__: {}["missing"])
        with pytest.raises(harness.Broken, match="KeyError"):
            attacked(grounds, 60, "fail")

    def test_what_is_taken_and_then_refused_is_found(self, grounds, monkeypatch):
        def stop(*_):
            raise StudyError("it stopped")

        monkeypatch.setattr("predbayes_study.coordinator.finish.outcome", stop)
        ground = grounds[0]
        ground.reset()
        with pytest.raises(harness.Broken, match="refused by"):
            harness._add(ground, ground.drafts["upload"])
