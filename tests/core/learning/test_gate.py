"""Gates: learnt ratios against known ones, cross-fitting, calibration, bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import DivergedError, TrainingError, UploadError
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.gate import MIN_ROWS, GateBounds, log_density_ratio, num_contrast_rows
from predbayes.learning.likelihood import LearnedNoise, LogOdds, Softmax
from predbayes.learning.local import (
    DeepEnsemble,
    GateLearner,
    Learner,
    Network,
    OptimizerSettings,
    SGDLearner,
    SGHMCLearner,
)
from predbayes.methods.pooled import Pooled
from predbayes.pools.pool import PoolState
from predbayes.pools.terms import gated
from predbayes.posterior.cyclical import PRESETS
from predbayes.predictive.families import Categorical
from predbayes.seeding import generator

linear_model = pytest.importorskip("sklearn.linear_model")
ensemble = pytest.importorskip("sklearn.ensemble")

LOGISTIC = SklearnClassifier(linear_model.LogisticRegression(), 2, size=1)
GATE_LEARNER = GateLearner(LOGISTIC)


def rows_at(mean, num, address):
    noise = torch.randn(num, 2, generator=generator(0, address))
    return noise + torch.tensor([mean, 0.0])


def site_at(mean, num):
    return rows_at(mean, num, "own"), torch.arange(num) % 3


class Remembering(Learner):
    """A learner that notes what it was fitted to."""

    def __init__(self):
        self.seen = []

    def fit(self, rows, *, rng):
        self.seen.append(rows)
        return LOGISTIC.fit(rows, rng=rng)


class TestLogDensityRatio:
    def test_of_two_normals_is_the_known_one(self):
        own, reference = site_at(1.0, 4000), rows_at(0.0, 4000, "reference")
        found = log_density_ratio(GATE_LEARNER, own, reference, rng=generator(0))
        known = reference[:, 0] - 0.5
        assert float((found - known).abs().mean()) < 0.1

    def test_by_class_it_is_the_known_one_too(self):
        """Two classes at -1 and 1, which no single line of log odds describes."""
        own = torch.cat([rows_at(-1.0, 2000, "a"), rows_at(1.0, 2000, "b")])
        reference = rows_at(0.0, 4000, "reference")
        three = SklearnClassifier(linear_model.LogisticRegression(), 3, size=1)
        classes = (torch.arange(4000) >= 2000).long()
        found = log_density_ratio(
            GateLearner(three, by_class=True), (own, classes), reference, rng=generator(0)
        )
        known = reference[:, 0].double().cosh().log() - 0.5
        assert float((found - known).abs().mean()) < 0.1

    @pytest.mark.parametrize("learner", ["logistic", "network", "forest"])
    def test_is_one_everywhere_where_rows_are_alike(self, learner):
        learners = {
            "logistic": GATE_LEARNER,
            "network": SGDLearner(
                Network.mlp(2, Softmax(3), hidden=(20,)), OptimizerSettings(lr=0.05)
            ).gate_learner(),
            "forest": GateLearner(
                SklearnClassifier(ensemble.RandomForestClassifier(20), 2, size=1)
            ),
        }
        own, reference = site_at(0.0, 600), rows_at(0.0, 600, "reference")
        found = log_density_ratio(learners[learner], own, reference, rng=generator(0))
        assert float(found.abs().mean()) < 0.1

    def test_rows_that_served_as_contrast_are_judged_by_the_other_half(self):
        learner = Remembering()
        own, reference = site_at(0.5, 100), rows_at(0.0, 80, "reference")
        log_density_ratio(GateLearner(learner), own, reference, rng=generator(0))
        (first, _), (second, _) = learner.seen
        assert {tuple(row) for row in first.tolist()}.isdisjoint(map(tuple, second.tolist()))
        assert len(first) + len(second) == 180

    def test_visits_of_a_patient_are_in_one_half(self):
        """Rows like the reference rows, each patient four times: there is nothing to tell."""
        whose = torch.arange(80).repeat(4)
        spreads = torch.tensor([[self.spread(g, seed) for g in (whose, None)] for seed in range(3)])
        together, dealt_singly = spreads.mean(0)
        assert dealt_singly > 1.0
        assert together < 0.4 * dealt_singly

    def spread(self, groups, seed):
        rng = generator(seed, "visits")
        reference = torch.randn(300, 5, generator=rng)
        patients = torch.randn(80, 5, generator=rng).repeat(4, 1)
        own = patients + 0.1 * torch.randn(320, 5, generator=rng), torch.zeros(320).long()
        trees = ensemble.HistGradientBoostingClassifier(max_iter=50)
        gate_learner = SklearnClassifier(trees, 2, size=2).gate_learner()
        rng = generator(seed, "gate")
        return float(log_density_ratio(gate_learner, own, reference, groups=groups, rng=rng).std())

    def test_rows_after_the_contrast_rows_teach_nothing(self):
        own, reference = site_at(1.0, 200), rows_at(0.0, 300, "reference")
        elsewhere = reference.clone()
        elsewhere[200:] = 50.0
        first, second = (
            log_density_ratio(GATE_LEARNER, own, inputs, num_contrast=200, rng=generator(0))[:200]
            for inputs in (reference, elsewhere)
        )
        assert torch.equal(first, second)

    def test_mean_over_contrast_rows_is_at_most_one(self):
        own, reference = site_at(1.5, 300), rows_at(0.0, 300, "reference")
        found = log_density_ratio(GATE_LEARNER, own, reference, rng=generator(0))
        assert float(found.exp().mean()) <= 1 + 1e-9

    @pytest.mark.parametrize(
        ("num_own", "num_patients", "num_reference"),
        [(MIN_ROWS - 1, None, 100), (100, None, 5), (200, MIN_ROWS - 1, 100)],
    )
    def test_few_rows_or_patients_teach_nothing(self, num_own, num_patients, num_reference):
        own, reference = site_at(3.0, num_own), rows_at(0.0, num_reference, "reference")
        groups = None if num_patients is None else torch.arange(num_own) % num_patients
        found = log_density_ratio(GATE_LEARNER, own, reference, groups=groups, rng=generator(0))
        assert torch.equal(found, torch.zeros(num_reference, dtype=torch.float64))


class Steep(Learner):
    """A learner that diverges until its step is short enough."""

    def __init__(self, step, most):
        self.step, self.most = step, most

    def slower(self):
        return Steep(self.step / 2, self.most)

    def fit(self, rows, *, rng):
        if self.step > self.most:
            raise DivergedError("training diverged at step 98; lower the step size")
        return LOGISTIC.fit(rows, rng=rng)


class TestDivergence:
    own, reference = site_at(1.0, 100), rows_at(0.0, 100, "reference")

    def gate(self, learner):
        return log_density_ratio(GateLearner(learner), self.own, self.reference, rng=generator(0))

    def test_the_step_is_halved_until_it_is_short_enough(self, caplog):
        assert torch.equal(self.gate(Steep(0.1, 0.03)), self.gate(LOGISTIC))
        assert caplog.text.count("begins again with half the step") == 4  # twice in each half

    def test_what_diverges_at_an_eighth_of_the_step_is_refused(self):
        with pytest.raises(DivergedError, match="lower the step size"):
            self.gate(Steep(0.1, 0.01))

    @pytest.mark.parametrize("ensemble", [False, True])
    def test_a_real_network_begins_again(self, ensemble, caplog):
        settings = OptimizerSettings(lr=12.0, num_epochs=20, batch_size=10)
        learner = SGDLearner(Network.mlp(2, Softmax(3), hidden=(50, 50)), settings)
        learner = DeepEnsemble(learner, 2) if ensemble else learner
        gate = log_density_ratio(learner.gate_learner(), self.own, self.reference, rng=generator(0))
        assert "begins again with half the step" in caplog.text
        assert gate.isfinite().all()


class TestBounds:
    @pytest.mark.parametrize("floor", [-6.0, -1.0, -0.1, -0.001])
    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    def test_no_floor_lifts_the_mean_above_what_a_study_takes(self, floor, share):
        """A floor near 0 did: an honest site's upload was refused."""
        given = torch.where(torch.arange(100) < 100 * share, -20.0, 2.0)
        found = GateBounds(floor, 3.0).apply(given)
        assert float(found.exp().mean()) <= 1.006
        assert float(found.min()) >= floor

    def test_the_mean_is_over_the_contrast_rows(self):
        given = torch.tensor([0.0, 0.0, 3.0]).double()
        assert torch.equal(GateBounds().apply(given, 2), given)

    @given(
        st.integers(0, 2**32),
        st.sampled_from([(-6.0, 3.0), (-7.3, 2.2), (-0.1, 3.0), (-0.001, 0.5)]),
        st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
        st.integers(1, 60),
    )
    def test_an_honest_gate_is_never_refused(self, seed, bounds, dtype, num_contrast):
        """However it is rounded, and however large it is where no contrast row is."""
        rng = torch.Generator().manual_seed(seed)
        size = 10 ** (3 * float(torch.rand((), generator=rng)) - 2)
        agreed = GateBounds(*bounds)
        found = agreed.apply(size * (torch.randn(60, generator=rng) + 1), num_contrast)
        agreed.check(found.to(dtype).float(), num_contrast)

    @pytest.mark.parametrize("gate", [[0.2, 0.2, -5.0], [3.5, -6.0, -6.0], [0.0, 0.0, -6.5]])
    def test_a_gate_that_no_site_can_have_learnt_is_refused(self, gate):
        with pytest.raises(UploadError, match=r"mean ratio of 1\.221|ceiling = 3"):
            GateBounds().check(torch.tensor(gate), 2)

    @pytest.mark.parametrize(("floor", "ceiling"), [(0.0, 1.0), (-1.0, 0.0), (1.0, -1.0)])
    def test_zero_lies_between(self, floor, ceiling):
        with pytest.raises(TrainingError, match="0 between"):
            GateBounds(floor, ceiling)


class TestBinary:
    NETWORK = Network.mlp(2, Softmax(5), hidden=(8,))

    def learners(self):
        sampler = SGHMCLearner(self.NETWORK, PRESETS["tuned"])
        plain = SGDLearner(Network.mlp(2, LearnedNoise(), hidden=(8,)))
        forest = ensemble.RandomForestRegressor(5)
        boosted = ensemble.HistGradientBoostingRegressor()
        return [
            sampler,
            plain,
            DeepEnsemble(plain, 2),
            SklearnClassifier(linear_model.LogisticRegression(), 5),
            SklearnRegressor(forest),
            SklearnRegressor(boosted),
            SklearnRegressor(linear_model.BayesianRidge()),
        ]

    def test_every_learner_has_a_counterpart_that_tells_own_rows_apart(self):
        inputs = torch.cat([rows_at(-2.0, 60, "a"), rows_at(2.0, 60, "b")])
        for learner in self.learners():
            gate_learner = learner.gate_learner()
            classes = torch.arange(60) % 5 if gate_learner.by_class else torch.zeros(60)
            kinds = torch.cat([torch.zeros(60).long(), gate_learner.kinds(classes)])
            fitted = gate_learner.learner.fit((inputs, kinds), rng=generator(0))
            predictive = fitted.predict(inputs)
            assert isinstance(predictive, Categorical)
            assert predictive.log_probs.shape == (120, 6 if gate_learner.by_class else 2)
            own = predictive.log_probs[:, 1:].logsumexp(1) > predictive.log_probs[:, 0]
            assert (own == (kinds > 0)).double().mean() > 0.9, learner

    def test_outcomes_have_a_part_in_gates_of_networks_for_classes_alone(self):
        inputs, reference = rows_at(4.0, 60, "own"), rows_at(0.0, 60, "reference")
        for learner in self.learners():
            gate_learner = learner.gate_learner()
            one, other = (
                log_density_ratio(gate_learner, (inputs, targets), reference, rng=generator(0))
                for targets in (torch.arange(60) % 5, torch.arange(60) // 12)
            )
            assert torch.equal(one, other) != gate_learner.by_class, learner

    @pytest.mark.parametrize("outputs", [[2.0], [1.0, 3.0], [1.0, 3.0, 100.0]])
    def test_log_odds_are_the_only_output_or_the_difference_of_the_first_two(self, outputs):
        found = LogOdds(len(outputs)).predictive(torch.tensor([[outputs]])).log_probs
        assert float(found[0, 1] - found[0, 0]) == pytest.approx(2.0)

    def test_who_has_none_is_told_what_to_do(self):
        with pytest.raises(TrainingError, match="give a learner for two classes as gate="):
            Pooled(Remembering(), gated())
        with pytest.raises(TrainingError, match="the pool needs gates"):
            Pooled(LOGISTIC, gated(), gate="none")

    def test_and_auto_does_without(self):
        rows = rows_at(0.0, 40, "rows"), (torch.arange(40) % 2).long()
        learnt = Pooled(Remembering(), send="predictions").learn(
            PoolState(), rows, rows[0], rng=generator(0)
        )
        assert learnt.gate is None
        gated = Pooled(Remembering(), send="predictions", gate=LOGISTIC).learn(
            PoolState(), rows, rows[0], rng=generator(0)
        )
        assert gated.gate is not None
        assert gated.gate.shape == (40,)

    @pytest.mark.parametrize(
        "settings", [PRESETS["tuned"], PRESETS["paper"], OptimizerSettings()], ids=str
    )
    def test_a_gate_takes_as_many_steps_as_the_model(self, settings):
        batches, half = 20, settings.halved()  # 2,000 own rows, and as many contrast rows
        gate = 2 * half.epochs_for(batches) * batches
        assert gate <= 1.05 * settings.epochs_for(batches) * batches

    @pytest.mark.parametrize("num_own", [40, 240, 960, 2400, 9600])
    @pytest.mark.parametrize("min_steps", [1000, 2000])
    def test_more_contrast_rows_than_own_ones_take_no_more_steps(self, num_own, min_steps):
        settings = replace(PRESETS["tuned"], min_steps=min_steps)
        half = settings.halved()
        gate_learner = SGHMCLearner(
            Network(lambda: torch.nn.Linear(2, 3), Softmax(3)), settings
        ).gate_learner()
        num_contrast = num_contrast_rows(num_own, gate_learner.free_rows)
        batches = math.ceil((num_own + num_contrast) / 2 / half.batch_size)
        gate = 2 * half.epochs_for(batches) * batches
        own = math.ceil(num_own / settings.batch_size)
        assert gate <= 1.1 * settings.epochs_for(own) * own  # whole passes: some steps more
        assert num_contrast >= min(4 * num_own, 3000)

    @pytest.mark.parametrize(("free_rows", "expected"), [(0, 1000), (800, 1100), (5000, 2000)])
    def test_contrast_rows_that_cost_no_step_are_taken(self, free_rows, expected):
        learner = Remembering()
        gate_learner = GateLearner(learner, free_rows=free_rows)
        reference = rows_at(0.0, 3000, "reference")
        log_density_ratio(gate_learner, site_at(1.0, 500), reference, rng=generator(0))
        assert sum(int((kinds == 0).sum()) for _, kinds in learner.seen) == expected
