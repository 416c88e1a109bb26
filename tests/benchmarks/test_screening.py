"""The bookkeeping of the benchmark `screening`; its figures are in `test_targets.py`."""

from __future__ import annotations

import pytest
import torch

from benchmarks.screening import Study, _cell, pool_nll, score
from predbayes.predictive.families import Categorical
from predbayes.seeding import generator
from predbayes.study.result.screening import Contribution


@pytest.fixture(scope="module")
def study():
    """Four sites that know something, on 60 labelled and 100 test rows; one may say the reverse."""
    rng = generator(0, "study")
    signal = 2 * torch.randn(160, 3, generator=rng, dtype=torch.float64)
    targets = torch.multinomial(signal.softmax(1), 1, generator=rng).squeeze(1)
    noisy = [signal + torch.randn(160, 3, generator=rng) for _ in range(5)]
    sites = tuple(
        Contribution(f"site {k}", Categorical.from_natural(n), 50, torch.full((3,), 50 / 3))
        for k, n in enumerate(noisy[:4])
    )
    reverse = Categorical.from_natural(-3 * noisy[2])
    own = Categorical.from_natural(noisy[4])
    return Study("any", sites, targets, 60, own, None, 2, {"reverse": reverse}, seed=0)


@pytest.fixture(scope="module")
def lines(study):
    return list(score(study))


def test_ratios_are_to_everybody_if_honest_and_else_to_the_study_without(study, lines):
    honest, poisoned = lines
    assert honest.base == honest.open == pool_nll(study, study.sites)
    without = [site for site in study.sites if site.site != "site 2"]
    assert poisoned.base == poisoned.screened == pool_nll(study, without)
    assert poisoned.open == pool_nll(study, study.poisoned("reverse")) > poisoned.base
    assert (poisoned.named[0], poisoned.left_out, poisoned.accused) == ("contradicts", True, 0)


def test_a_cell_is_the_mean_over_seeds(lines):
    line = lines[1]
    cell = _cell("any", "reverse", [line, line])
    assert cell["screened"] == pytest.approx(1.0)
    assert cell["open"] == pytest.approx(line.open / line.base)
    assert (cell["named"], cell["left_out"], cell["accused"]) == (1.0, 1.0, 0.0)
    assert "contradicts" in cell["as"]
