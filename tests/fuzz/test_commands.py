"""Whatever is in a file: no traceback, no raw output, nothing taken that a later step refuses.

Two thousand inputs; `PREDBAYES_FUZZ=N` tries others and more, and the slow run a hundred thousand.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predbayes.cli import show
from predbayes.study.coordinator import status
from predbayes.study.coordinator.intake import Intake
from tests.faults.malformed import _forget_peak, _status_bytes
from tests.fuzz import harness

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
NUM_INPUTS = int(os.environ.get("PREDBAYES_FUZZ", "2000"))
NUM_DRAWN = 1900 * NUM_INPUTS // 2000  # the others are hypothesis's
MAX_GROWTH_BYTES = 400_000_000


@pytest.fixture(scope="module")
def grounds(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz")
    with harness.cheaply():
        yield [harness.make_ground(root / str(r), regression=r) for r in (False, True)]


def attacked(grounds, num, seed):
    rng = random.Random(seed)
    return {harness.attack(grounds[n % 2], rng.randbytes(60)) for n in range(num)}


def test_what_is_kept_breaks_nothing(grounds):
    assert len(CORPUS) >= 20
    done = {harness.attack(grounds[n % 2], path.read_bytes()) for n, path in enumerate(CORPUS)}
    assert len(done) >= 15


@pytest.mark.ci("thousands of inputs, each a command")
def test_inputs_by_the_thousand_break_nothing_in_bounded_memory(grounds):
    attacked(grounds, 60, "warm up")
    before = _forget_peak()
    done = attacked(grounds, NUM_DRAWN, NUM_INPUTS)
    assert {f"{way.__name__}: refused" for way in harness.WAYS} <= done
    assert {"sent_upload: taken", "sent_evaluation: taken", "kit: taken"} <= done
    assert _status_bytes("VmHWM") - before < MAX_GROWTH_BYTES


def test_inputs_that_shrink_break_nothing(grounds):
    @settings(
        max_examples=NUM_INPUTS - NUM_DRAWN,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(min_size=20, max_size=80))
    def attack(data):
        harness.attack(grounds[len(data) % 2], data)

    attack()


@pytest.mark.slow("a hundred thousand inputs")
def test_a_hundred_thousand_break_nothing(grounds):
    attacked(grounds, 100_000, "slow")


class TestTheHarnessCanFail:
    def test_a_traceback_is_found(self, grounds, monkeypatch):
        monkeypatch.setattr(status, "status_of", lambda *_, **__: {}["missing"])
        with pytest.raises(harness.Broken, match="KeyError"):
            attacked(grounds, 60, "fail")

    def test_raw_output_is_found(self, grounds, monkeypatch):
        monkeypatch.setattr(show, "printable", lambda text, most=None: f"{text}\x1b[8m")
        with pytest.raises(harness.Broken, match="printed"):
            attacked(grounds, 60, "fail")

    def test_what_is_taken_and_then_refused_is_found(self, grounds, monkeypatch):
        monkeypatch.setattr(Intake, "rehearse", lambda *_: None)
        ground, draft = grounds[0], grounds[0].drafts["upload"]
        ground.reset()
        log_probs = draft.arrays["log_probs"].copy()
        log_probs[0] = [0.005, -5.5, -5.5]
        with pytest.raises(harness.Broken, match="refused by"):
            harness._add(ground, draft.holding({"log_probs": log_probs}))
