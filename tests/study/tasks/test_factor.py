"""The likelihood ratio of a factor of log odds: its size, its power, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from predbayes.predictive.families import Categorical
from predbayes.seeding import generator
from predbayes_study.result.schema import ClassRisk, Estimate, Reliability
from predbayes_study.tasks.classes import Classes, _factor


def stated(num_rows, draw, num_classes=10):
    rng = generator(0, "stated", draw)
    logits = 2.5 * torch.randn(num_rows, num_classes, generator=rng, dtype=torch.float64)
    return Categorical(logits.log_softmax(1)), rng


def drawn(num_rows, draw, time):
    """What a model says whose log odds are right if they are multiplied."""
    said, rng = stated(num_rows, draw)
    probs = (time * said.log_probs).softmax(1)
    return said, torch.multinomial(probs, 1, generator=rng)[:, 0]


@pytest.mark.parametrize(("time", "num_rows"), [(1.3, 350), (1.3, 100), (1 / 1.3, 350)])
def test_the_stated_power_is_the_share_in_which_it_is_found(time, num_rows):
    """By 150 studies, so to .04; the power that is stated is that of the harder direction."""
    found = [_factor(*drawn(num_rows, draw, time)) for draw in range(150)]
    share = np.mean([one.p_value < 0.05 for one in found])
    power = np.mean([one.power for one in found])
    assert share > power - 0.12
    if time > 1:
        assert share == pytest.approx(power, abs=0.12)


def test_a_calibrated_model_is_accused_in_one_of_twenty_studies():
    found = [_factor(*drawn(350, draw, 1.0)).p_value < 0.05 for draw in range(200)]
    assert sum(found) <= 19  # of 200 with a probability of .05, more than 19 have one of .003


def test_the_factor_is_found():
    values = [_factor(*drawn(2000, draw, 1.5)).value for draw in range(5)]
    assert np.mean(values) == pytest.approx(1.5, abs=0.06)


def test_of_a_model_that_is_certain_of_all_nothing_is_tested():
    said = Categorical(torch.tensor([[0.0, -torch.inf]]).expand(20, -1).clamp_min(-80.0))
    assert _factor(said, torch.zeros(20).long()) is None


class TestVerdict:
    NOTHING = "No miscalibration was found"

    def said(self, time, num_rows=1000, risks=()):
        predictive, targets = drawn(num_rows, 3, time)
        shown = Classes().calibration(None, predictive, targets, rng=generator(0))
        assert isinstance(shown, Reliability)
        return Classes().verdict(None, shown, num_rows, self.NOTHING, risks)

    def test_nothing_found_says_what_would_have_been(self):
        judged, words = self.said(1.0)
        assert judged
        assert words.startswith(f"{self.NOTHING} on 1,000 scored rows: the expected")
        assert "off by a factor of 1.3 would be found out in about 100 of 100 studies" in words

    @pytest.mark.parametrize(("time", "side"), [(0.6, "too extreme"), (1.7, "not sure enough")])
    def test_a_factor_is_said_with_its_side(self, time, side):
        _, words = self.said(time)
        assert words.startswith("The probabilities are not quite right: on 1,000 scored rows")
        assert f"They are {side}: multiplied by" in words
        assert self.NOTHING not in words

    def test_it_speaks_with_one_voice_with_the_events_risks(self):
        slope = {"slope": Estimate(0.68, 0.43, 0.93)}
        share = Estimate(0.3, 0.2, 0.4)
        steep = ClassRisk(name="died", num_rows=270, prevalence=share, metrics=slope)
        _, words = self.said(1.0, risks=(steep,))
        assert self.NOTHING not in words
        assert "Of the risks of “died”: They are too extreme" in words
