"""Scores and calibration on the scored rows."""

from __future__ import annotations

import torch

from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import DIAGRAM_BINS
from predbayes.seeding import generator
from predbayes_study.result.schema import IntervalCalibration, Reliability
from predbayes_study.tasks import TASKS
from tests.study.samples import classification_plan

PLAN = classification_plan()
CLASSES = Categorical(torch.randn(60, 3, generator=generator(0, "scores")).log_softmax(-1))
NUMBERS = Gaussian(torch.zeros(60), torch.ones(60))


def test_calibration_is_that_of_the_family():
    targets = CLASSES.log_probs.argmax(-1)
    shown = TASKS["classification"].calibration(PLAN, CLASSES, targets, rng=generator(0, "classes"))
    assert isinstance(shown, Reliability)
    assert len(shown.bins) == DIAGRAM_BINS
    assert sum(b.count for b in shown.bins) == len(targets)
    assert all(b.observed == (b.count > 0) for b in shown.bins)
    covered = TASKS["regression"].calibration(
        PLAN, NUMBERS, torch.zeros(60), rng=generator(0, "numbers")
    )
    assert isinstance(covered, IntervalCalibration)
    assert all(level.coverage.value == 1 for level in covered.levels)
