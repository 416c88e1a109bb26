"""The controls: the coordinator's own model, the best site, and a tempered pool."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from predbayes.api.run import run
from predbayes.errors import ImproperPoolError, TrainingError
from predbayes.exchange.federation import InProcess
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import (
    Learner,
    Network,
    NetworkPredictor,
    OptimizerSettings,
    SGDLearner,
)
from predbayes.methods.pooled import Pooled
from predbayes.methods.server_only import ServerOnly
from predbayes.pools.best_site import BestSite
from predbayes.pools.terms import product, tempered
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import Contribution, PredictiveSum
from predbayes.predictive.tuning import tune_temperature
from predbayes.seeding import generator
from predbayes.summand import Collected, fold
from predbayes_lab.released import released_beta

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
        (ServerOnly, "ServerOnly is a class"),
    ):
        with pytest.raises(TrainingError, match=message):
            run_on(method, *class_world(rng)[1:])


class TestControls:
    def test_server_only_ignores_the_sites(self, rng):
        _learner, _sites, reference = class_world(rng)
        learner = SGDLearner(CLASSES, OptimizerSettings(num_epochs=3))
        x = torch.randn(30, 2, generator=rng)
        worlds = [{"a": (x, torch.full((30,), k))} for k in (0, 1)]
        first, second = (run_on(ServerOnly(learner), w, reference).predictive for w in worlds)
        assert torch.equal(first.natural(), second.natural())
        labelled = (reference.inputs[:6], reference.targets)
        alone = learner.fit(labelled, rng=generator(0, "finish", 0)).predict(reference.inputs)
        assert torch.equal(first.natural(), alone.natural())

    def test_best_site_is_the_one_with_the_least_nll_on_the_labels(self, rng):
        learner, sites, reference = class_world(rng)
        own = {
            site: CLASSES.predict(learner.results[int(site)], reference.inputs) for site in sites
        }
        for predictive in own.values():
            labels = predictive.log_probs.argmax(-1)[:6]  # all that this site would say
            state = run_on(Pooled(learner, BestSite()), sites, replace(reference, targets=labels))
            scores = {site: metrics.nll(p[:6], labels) for site, p in own.items()}
            assert state.site == min(scores, key=scores.get)
            assert torch.equal(state.predictive.natural(), own[state.site].natural())

    def test_a_site_without_finite_predictions_is_not_the_best(self, rng):
        learner, sites, reference = class_world(rng)
        broken = WeightSamples(
            {
                name: torch.full_like(value, math.inf)
                for name, value in learner.results[1].parameters.items()
            },
            {},
        )
        method = Pooled(replace(learner, results=learner.results | {1: broken}), BestSite())
        state = method.init(reference, rng=rng)
        lifted = [
            Collected(
                Contribution(
                    site, CLASSES.predict(method.learner.results[int(site)], reference.inputs), 1
                )
            )
            for site in sites
        ]
        assert method.finish(state, fold(lifted), reference, rng=rng).site in {"3", "4"}
        with pytest.raises(ImproperPoolError, match="finite NLL"):
            method.finish(state, lifted[0].__class__(lifted[0].items[0]), reference, rng=rng)

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
        for method in (ServerOnly(learner), Pooled(learner, tempered())):
            with pytest.raises(TrainingError, match="there are none"):
                method.init(bare, rng=rng)
        with pytest.raises(TrainingError, match="component"):
            Pooled(learner, tempered("sum"))


class TestReleasedScores:
    def test_beta_moves_ten_full_steps_on_a_small_set(self):
        """As measured of the authors' code: .400 to .405 on sets of one batch, not tuned at all."""
        total = fold(
            PredictiveSum.of(Gaussian(torch.full((50,), m), torch.full((50,), 0.2)))
            for m in (0.0, 0.1)
        )
        y = torch.randn(50, generator=generator(0))
        assert released_beta(total, y) == pytest.approx(0.4, abs=0.01)
