"""A tempered pool, and what is no method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from predbayes.api.run import run
from predbayes.errors import TrainingError
from predbayes.exchange.federation import InProcess
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import (
    Learner,
    Network,
    NetworkPredictor,
)
from predbayes.methods.pooled import Pooled
from predbayes.pools.terms import product, tempered
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_temperature
from predbayes.summand import fold

CLASSES = Network(lambda: nn.Linear(2, 3), Softmax(3))


@dataclass(frozen=True)
class Known(Learner):
    """A learner whose result is given by the site's number of rows."""

    results: dict[int, WeightSamples]
    network: Network = CLASSES
    device: str = "cpu"

    def fit(self, rows, *, rng, start=None, penalty=None):
        return NetworkPredictor(self.network, self.results[len(rows[0])])


def class_world(rng):
    """Three sites whose models are known, and labelled rows that none of them has seen."""
    reference = ReferenceRows.of(
        (torch.randn(6, 2, generator=rng), torch.tensor([0, 1, 2, 0, 1, 2])),
        evaluate=torch.randn(4, 2, generator=rng),
    )
    results = {
        num: WeightSamples(
            {
                "weight": torch.randn(1, 3, 2, generator=rng),
                "bias": torch.randn(1, 3, generator=rng),
            },
            {},
        )
        for num in (1, 3, 4)
    }
    sites = {str(n): (torch.zeros(n, 2), torch.zeros(n)) for n in results}
    return Known(results), sites, reference


def run_on(method, sites, reference):
    return run(method, InProcess(sites), reference, seed=0).state


def test_what_is_no_method_is_refused_before_any_site_trains(rng):
    class NoLift:
        families, streams = frozenset(), True

        def init(self, reference, *, rng):
            raise AssertionError

        learn = finish = init

    for method, message in (
        (NoLift(), "NoLift has no lift"),
        (Pooled, "Pooled is a class"),
    ):
        with pytest.raises(TrainingError, match=message):
            run_on(method, *class_world(rng)[1:])


class TestControls:
    @pytest.mark.parametrize("component", ["mixture", "product"])
    def test_temperature_is_the_best_on_a_grid(self, component, rng):
        learner, sites, reference = class_world(rng)
        agreed = run_on(Pooled(learner, product()), sites, reference).predictive.log_probs.argmax(
            -1
        )
        targets = torch.cat([agreed[:5], (agreed[5:6] + 1) % 3])  # right in five rows of six
        reference = replace(reference, targets=targets)
        state = run_on(Pooled(learner, tempered(component)), sites, reference)
        total = fold(
            PredictiveSum.of(CLASSES.predict(learner.results[n], reference.inputs[:6]), n)
            for n in (1, 3, 4)
        )
        natural = total.component(component)

        def nll(inverse):
            pooled = Categorical.from_natural(inverse * natural)
            return metrics.nll(pooled, reference.targets)

        best = state.tuned.weights[component]
        assert nll(best) <= min(nll(k / 500) for k in range(1, 2500)) + 1e-9
        low, high = state.tuned.profiles["inverse_temperature"].interval
        assert low < best < high

    def test_temperature_scales_a_gaussians_variance_to_the_residuals(self):
        """Var T at the best T is the mean squared residual, where variances are equal."""
        y = torch.tensor([1.0, -2.0, 3.0, 0.5])
        total = PredictiveSum.of(Gaussian(torch.zeros(4), torch.full((4,), 0.1)))
        tuned = tune_temperature(total, y)
        scaled = 0.1 / tuned.weights["mixture"]
        assert scaled == pytest.approx(float(y.square().mean()), rel=1e-6)

    def test_controls_refuse_what_they_cannot_do(self, rng):
        learner, _sites, _reference = class_world(rng)
        bare = ReferenceRows(torch.zeros(3, 2), torch.zeros(0, dtype=torch.long))
        with pytest.raises(TrainingError, match="there are none"):
            Pooled(learner, tempered()).init(bare, rng=rng)
        with pytest.raises(TrainingError, match="component"):
            Pooled(learner, tempered("sum"))
