"""Where gates cannot be trusted the pool is the mixture, and says why."""

import logging

import pytest
import torch

from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.estimators import SklearnClassifier
from predbayes.learning.gate import log_density_ratio
from predbayes.pools.auto import AutoPool
from predbayes.predictive.families import Categorical
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import Contribution, PredictiveSum, gated
from predbayes.predictive.selection import (
    GATED,
    GATED_MIXTURE,
    LEAST_COVERED,
    LEAST_COVERED_BY_FEW,
    MIXTURE,
    distrusted_gates,
    without_labels,
)
from predbayes.seeding import generator

NUM_CLASSES, NUM_INPUTS = 3, 5
CENTRES = torch.tensor([[2.0, 0, 0, 0, 0], [0, 2.0, 0, 0, 0], [0, 0, 2.0, 0, 0]])
SKEWS = {"alike": [[1, 1, 1]] * 3, "skewed": [[8, 1, 1], [1, 8, 1], [1, 1, 8]]}
linear_model = pytest.importorskip("sklearn.linear_model")
LEARNER = SklearnClassifier(linear_model.LogisticRegression(max_iter=300), NUM_CLASSES, size=2)


def total_of(ratio, num_rows):
    log_probs = torch.full((num_rows, 2), 0.5).log()
    gate = torch.full((num_rows,), ratio).log()
    return PredictiveSum.of(Categorical(log_probs), 10, gate=gate, terms=(gated(),))


class TestRule:
    def test_sites_elsewhere_are_not_pooled_by_their_gates(self):
        assert without_labels(total_of(1.1 * LEAST_COVERED, 200)) is GATED_MIXTURE
        total = total_of(0.9 * LEAST_COVERED, 200)
        assert without_labels(total) is MIXTURE
        assert "only 9% of the sites' rows" in distrusted_gates(total)

    def test_few_reference_rows_are_trusted_only_if_they_are_like_the_sites_rows(self):
        assert without_labels(total_of(1.1 * LEAST_COVERED_BY_FEW, 50)) is GATED_MIXTURE
        total = total_of(0.9 * LEAST_COVERED_BY_FEW, 50)
        assert without_labels(total) is MIXTURE
        assert "the 50 reference rows" in distrusted_gates(total)

    def test_without_gates_there_is_nothing_to_distrust(self):
        total = PredictiveSum.of(Categorical(torch.full((5, 2), 0.5).log()))
        assert without_labels(total) is MIXTURE
        assert distrusted_gates(total) == ""

    def test_sites_count_by_their_rows(self):
        large, small = total_of(1.0, 200), total_of(0.001, 200)
        assert without_labels(large + small) is GATED_MIXTURE


def drawn(num, shares, rng, shift=0.0):
    weights = torch.tensor(shares, dtype=torch.float)
    labels = torch.multinomial(weights, num, replacement=True, generator=rng)
    noise = torch.randn(num, NUM_INPUTS, generator=rng)
    return CENTRES[labels] + noise + shift, labels


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize(
    ("num", "shift"),
    [
        (30, 0.0),
        (200, 9),
        *(
            pytest.param(*one, marks=pytest.mark.slow("more worlds"))
            for one in ((30, 1.0), (200, 0.0), (200, 1.0))
        ),
    ],
)
def test_it_is_never_more_than_two_percent_worse_than_the_mixture(skew, num, shift, caplog):
    """With few reference rows, and with reference rows of another population, mean of 4 draws."""
    ratios, chosen = [], set()
    for seed in range(4):
        rng = generator(seed, "rows", skew, num)
        inputs, targets = drawn(num, [1, 1, 1], rng, shift)
        reference = ReferenceRows(inputs, targets[:0])
        pool = AutoPool()
        state, total = pool.init(reference), None
        for shares in SKEWS[skew]:
            rows = drawn(200, shares, rng)
            sent = Contribution(
                "site",
                LEARNER.fit(rows, rng=rng).predict(inputs),
                200,
                None,
                log_density_ratio(LEARNER.gate_learner(), rows, inputs, rng=rng),
            )
            lifted = pool.lift(state, sent)
            total = lifted if total is None else total + lifted
        with caplog.at_level(logging.WARNING):
            after = pool.finish(state, total, reference, rng=generator(0))
        chosen.add(after.choice.spec.name)
        assert ("cannot be trusted" in after.choice.reason) == (GATED not in after.tuned.weights)
        ratios.append(nll(after.predictive, targets) / nll(total.mixture(), targets))
    assert sum(ratios) / len(ratios) < 1.02
    if shift == 9:
        assert chosen == {"mixture"}
        assert "gates cannot be trusted" in caplog.text
    if shift == 0:
        assert chosen == {"gated mixture"}
