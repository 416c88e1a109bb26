"""Each baseline against a case of its own paper that can be computed by hand or solved densely."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

from predbayes.api.run import run
from predbayes.errors import PoolError, TrainingError, UploadError
from predbayes.exchange.federation import InProcess
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.likelihood import FixedNoise, LearnedNoise, Softmax
from predbayes.learning.local import (
    Learner,
    Network,
    NetworkPredictor,
    OptimizerSettings,
    SGDLearner,
    SGHMCLearner,
)
from predbayes.methods.pooled import Pooled
from predbayes.pools.terms import product
from predbayes.posterior.cyclical import SamplerSettings
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive import metrics
from predbayes.predictive.families import Categorical
from predbayes.seeding import generator
from predbayes.summand import TensorSum, fold
from predbayes_lab.baselines.ep_mcmc import EPMCMC
from predbayes_lab.baselines.fedavg import FedAvg
from predbayes_lab.baselines.fedbe import FedBE
from predbayes_lab.baselines.fedbens import DAMPING, FedBEns
from predbayes_lab.baselines.fedkt import FedKT, count_votes
from predbayes_lab.baselines.fedpa import FedPA, whitened
from predbayes_lab.baselines.fedprox import FedProx
from predbayes_lab.baselines.fedyogi import FedYogi
from predbayes_lab.baselines.oneshot import OneShotFL

LINE = Network(lambda: nn.Linear(1, 1), FixedNoise(train_var=1.0, predict_var=0.25))
CLASSES = Network(lambda: nn.Linear(2, 3), Softmax(3))


def weights(*values):
    """Samples (bias, slope) of a line."""
    rows = torch.tensor(values, dtype=torch.float32)
    return WeightSamples({"bias": rows[:, :1], "weight": rows[:, 1:].unsqueeze(-1)}, {})


@dataclass(frozen=True)
class Known(Learner):
    """A learner whose result is given by the site's number of rows; it notes where it started."""

    results: dict[int, WeightSamples]
    network: Network = LINE
    device: str = "cpu"
    starts: list = field(default_factory=list)

    def fit(self, rows, *, rng, start=None, penalty=None):
        self.starts.append(start)
        return NetworkPredictor(self.network, self.results[len(rows[0])])


def rows_of(num, width=1):
    return torch.zeros(num, width), torch.zeros(num)


SITES = {"one": rows_of(1), "three": rows_of(3)}
REFERENCE = ReferenceRows.of((torch.tensor([[-1.0], [0.0], [2.0]]), torch.tensor([-1.0, 0.0, 2.0])))
TWO = {1: weights([0.0, 4.0]), 3: weights([2.0, 0.0])}


def run_on(method, sites=SITES, reference=REFERENCE, num_rounds=1):
    return run(method, InProcess(sites), reference, seed=0, num_rounds=num_rounds).state


def vector(state):
    return state.weights.vectors()[0][-1]


class TestFedAvg:
    def test_model_is_the_row_weighted_mean(self):
        state = run_on(FedAvg(Known(TWO)))
        assert vector(state).tolist() == [1.5, 1.0]
        assert state.predictive.mean.tolist() == [0.5, 1.5, 3.5]
        assert state.predictive.var.tolist() == [0.25] * 3

    def test_sites_start_from_the_common_model_and_then_from_the_mean(self):
        learner = Known(TWO)
        run_on(FedAvg(learner), num_rounds=2)
        first, second, third, fourth = learner.starts
        assert first is second
        assert third is fourth
        assert third.vectors()[0].tolist() == [[1.5, 1.0]]

    def test_a_samplers_last_sample_is_what_is_sent(self):
        """The end of the training, whatever was kept on the way."""
        state = run_on(FedAvg(Known({1: weights([9.0, 9.0], [0.0, 4.0]), 3: TWO[3]})))
        assert vector(state).tolist() == [1.5, 1.0]


BATCH_NORM = Network(
    lambda: nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)), FixedNoise()
)


@pytest.mark.parametrize("build", [FedAvg, FedYogi, FedPA, EPMCMC, FedBE])
def test_buffers_of_the_global_model_are_the_sites_mean(build):
    """Of equal sites: whatever is done to the weights, running statistics are averaged."""
    samples = WeightSamples.of(BATCH_NORM.create(generator(0)))
    moved = replace(
        samples,
        buffers={name: value + 3 for name, value in samples.buffers.items()},
    )
    both = WeightSamples.concat([moved, moved])
    state = run_on(build(Known({1: both, 3: both}, BATCH_NORM)))
    for name, value in moved.buffers.items():
        torch.testing.assert_close(state.weights.buffers[name], value)


@pytest.mark.parametrize(
    "build", [FedAvg, FedProx, FedYogi, FedPA, EPMCMC, FedBE, FedBEns, OneShotFL, FedKT]
)
def test_methods_of_weights_refuse_learners_without(build):
    class Bare(Learner):
        def fit(self, rows, *, rng):
            raise AssertionError

    with pytest.raises(TrainingError, match=r"needs a network, and the learner has none"):
        build(Bare()).init(REFERENCE, rng=generator(0))


class TestFedProx:
    def test_one_quadratic_site_solves_the_penalised_problem(self):
        """min (v - 2)^2 / 2 + lambda/2 (v - w)^2 is at (2 + lambda w) / (1 + lambda)."""
        net = Network(lambda: nn.Linear(1, 1), FixedNoise(train_var=1.0))
        learner = SGDLearner(net, OptimizerSettings(lr=0.1, momentum=0.0, num_epochs=400))
        method = FedProx(learner, proximal=3.0)
        state = method.init(REFERENCE, rng=generator(0, "init"))
        rows = (torch.zeros(4, 1), torch.full((4,), 2.0))  # at x = 0 only the bias matters
        upload = method.learn(state, rows, REFERENCE.inputs, rng=generator(1))
        bias, slope = upload.samples().vectors()[0][-1].tolist()
        start_bias, start_slope = vector(state).tolist()
        assert bias == pytest.approx((2 + 3 * start_bias) / 4, abs=1e-5)
        assert slope == pytest.approx(start_slope)


class TestFedYogi:
    def test_first_step_by_hand(self):
        method = FedYogi(Known(TWO), server_lr=0.5, adaptivity=0.1)
        start = vector(method.init(REFERENCE, rng=generator(0, "init")))
        change = torch.tensor([1.5, 1.0], dtype=torch.float64) - start
        first = 0.1 * change
        second = 0.01 - 0.01 * change**2 * torch.sign(0.01 - change**2)
        expected = start + 0.5 * first / (second.sqrt() + 0.1)
        torch.testing.assert_close(vector(run_on(method)), expected, rtol=1e-6, atol=1e-7)

    def test_second_step_remembers_the_first(self):
        method = FedYogi(Known(TWO), server_lr=0.5, adaptivity=0.1)
        once, twice = (run_on(method, num_rounds=n) for n in (1, 2))
        change = torch.tensor([1.5, 1.0], dtype=torch.float64) - vector(once)
        first = 0.9 * once.first_moment + 0.1 * change
        square = change.square()
        second = once.second_moment - 0.01 * square * (once.second_moment - square).sign()
        expected = vector(once) + 0.5 * first / (second.sqrt() + 0.1)
        torch.testing.assert_close(vector(twice), expected, rtol=1e-6, atol=1e-7)

    def test_second_moment_starts_at_tau_squared_or_as_given(self):
        for start, expected in ((None, 0.01), (0.0, 0.0)):
            method = FedYogi(Known(TWO), adaptivity=0.1, first_second_moment=start)
            state = method.init(REFERENCE, rng=generator(0))
            assert state.second_moment.tolist() == pytest.approx([expected] * 2)


class TestFedPA:
    @pytest.mark.parametrize("num_samples", [1, 2, 3, 7])
    @pytest.mark.parametrize("shrinkage", [0.0, 0.4, 1.0])
    def test_delta_equals_the_dense_solve(self, num_samples, shrinkage, rng):
        samples = torch.randn(num_samples, 5, generator=rng, dtype=torch.float64)
        start = torch.randn(5, generator=rng, dtype=torch.float64)
        rho = 1 / (1 + (num_samples - 1) * shrinkage)
        cov = torch.cov(samples.T) if num_samples > 1 else torch.zeros(5, 5, dtype=torch.float64)
        dense = rho * torch.eye(5, dtype=torch.float64) + (1 - rho) * cov
        expected = torch.linalg.solve(dense, start - samples.mean(0))
        torch.testing.assert_close(whitened(start, samples, shrinkage), expected)

    def test_without_shrinkage_it_averages_the_sites_means(self):
        results = {1: weights([0.0, 2.0], [0.0, 6.0]), 3: weights([1.0, 0.0], [3.0, 0.0])}
        state = run_on(FedPA(Known(results), shrinkage=0.0))
        assert vector(state).tolist() == pytest.approx([1.5, 1.0], abs=1e-6)

    def test_momentum_acts_from_the_second_round(self):
        method = FedPA(Known(TWO), server_lr=0.5)
        start = vector(method.init(REFERENCE, rng=generator(0, "init")))
        target = torch.tensor([1.5, 1.0], dtype=torch.float64)
        first_step = 0.5 * (target - start)
        after_one = start + first_step
        expected = after_one + 0.9 * first_step + 0.5 * (target - after_one)
        torch.testing.assert_close(
            vector(run_on(method, num_rounds=2)), expected, rtol=1e-5, atol=1e-6
        )

    def test_adam_at_the_server_is_torchs(self):
        method = FedPA(Known(TWO), server_lr=0.1, server_optimizer="adam")
        start = vector(method.init(REFERENCE, rng=generator(0, "init")))
        parameter = nn.Parameter(start.clone())
        adam = torch.optim.Adam([parameter], lr=0.1)
        for _ in range(3):
            parameter.grad = parameter.detach() - torch.tensor([1.5, 1.0], dtype=torch.float64)
            adam.step()
        torch.testing.assert_close(
            vector(run_on(method, num_rounds=3)), parameter.detach(), rtol=1e-5, atol=1e-6
        )

    def test_sends_one_change_and_no_samples(self):
        method = FedPA(Known({3: weights([1.0, 0.0], [3.0, 0.0])}))
        state = method.init(REFERENCE, rng=generator(0))
        upload = method.learn(state, rows_of(3), REFERENCE.inputs, rng=generator(0))
        assert upload.info.kind == "delta"
        assert len(upload.samples("delta")) == 1
        with pytest.raises(UploadError, match="sent delta, not weights"):
            upload.samples()


class TestEPMCMC:
    LEARNER = Known(
        {
            1: weights([0.0, 1.0], [2.0, 3.0]),  # means 1, 2; variances 2, 2
            3: weights([4.0, 1.0], [8.0, 1.5]),  # means 6, 1.25; variances 8, .125
        }
    )

    def test_mean_is_precision_weighted(self):
        state = run_on(EPMCMC(self.LEARNER))
        bias = (1 / 2 + 6 / 8) / (1 / 2 + 1 / 8)
        slope = (2 / 2 + 1.25 / 0.125) / (1 / 2 + 1 / 0.125)
        assert vector(state).tolist() == pytest.approx([bias, slope])

    def test_a_site_vaguer_than_the_prior_counts_as_the_prior(self):
        """With s = 1 the first site's variance of 2 is taken for 1."""
        state = run_on(EPMCMC(self.LEARNER, prior_std=1.0))
        # Biases: variances 2 and 8, both taken for 1, and one prior divided out again.
        assert vector(state)[0].item() == pytest.approx(1 + 6)

    def test_the_learnt_noise_has_no_prior_to_divide_out(self):
        network = Network(lambda: nn.Linear(1, 1), LearnedNoise())
        sampled = {
            n: WeightSamples(
                {
                    "net.bias": torch.zeros(2, 1) + torch.tensor([[0.0], [1e-3]]),
                    "net.weight": torch.zeros(2, 1, 1) + torch.tensor([[[0.0]], [[1e-3]]]),
                    "raw_noise": torch.tensor([[0.0], [math.sqrt(8) * n]]),
                },
                {},
            )
            for n in (1, 3)
        }
        state = run_on(EPMCMC(Known(sampled, network), prior_std=1.0))
        # Means sqrt(2) n, variances 4 n^2, both above the prior's 1, which does not matter.
        mean = sum(math.sqrt(2) * n / (4 * n * n) for n in (1, 3)) / sum(
            1 / (4 * n * n) for n in (1, 3)
        )
        assert state.weights.parameters["raw_noise"].item() == pytest.approx(mean, rel=1e-5)

    def test_prior_is_divided_out_once_less_than_there_are_sites(self):
        """In a conjugate model the product of the sites' posteriors is the posterior of all."""
        prior_std = 3.0
        state = run_on(EPMCMC(self.LEARNER, prior_std=prior_std))
        # The sites' likelihoods alone: precision less the prior's, which has mean zero.
        prec = (1 / 2 - 1 / 9) + (1 / 8 - 1 / 9) + 1 / 9
        assert vector(state)[0].item() == pytest.approx((1 / 2 + 6 / 8) / prec)

    def test_draws_have_the_products_variance(self):
        state = run_on(EPMCMC(self.LEARNER, num_samples=20_000))
        epistemic = state.predictive.var - 0.25
        bias_var, slope_var = 1 / (1 / 2 + 1 / 8), 1 / (1 / 2 + 8)
        expected = [bias_var + x**2 * slope_var for x in (-1.0, 0.0, 2.0)]
        # The variance of 20,000 draws has a relative standard deviation of .01; five of them.
        assert epistemic.tolist() == pytest.approx(expected, rel=0.05)

    def test_one_sample_has_no_variance(self):
        with pytest.raises(UploadError, match="no variance"):
            run_on(EPMCMC(Known(TWO)))


def test_ep_mcmc_divides_no_prior_out_of_scales(rng):
    network = Network(lambda: nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)), Softmax(2))
    method = EPMCMC(SGHMCLearner(network, SamplerSettings(num_epochs=12)), prior_std=0.5)
    state = method.init(ReferenceRows(torch.zeros(2, 1), torch.tensor([0, 1])), rng=rng)
    # By name: 0.bias, 0.weight, 1.bias, 1.weight.
    assert method._prior_prec(state).tolist() == [4.0] * 4 + [0.0] * 4


class TestFedBE:
    def test_ensemble_is_sites_mean_and_draws_from_the_gaussian_over_sites(self):
        """With many draws the moments are those of Gaussian, sites and mean, in proportion."""
        num = 20_000
        state = run_on(FedBE(Known(TWO), num_samples=num))
        # Over sites of 1 and 3 rows: bias 0, 2: mean 1.5, variance .75; slope 4, 0: 1 and 3.
        expected_var = [0.25 + 0.75 + x**2 * 3 for x in (-1.0, 0.0, 2.0)]
        assert state.predictive.mean.tolist() == pytest.approx([0.5, 1.5, 3.5], abs=0.15)
        assert state.predictive.var.tolist() == pytest.approx(expected_var, rel=0.05)
        assert vector(state).tolist() == [1.5, 1.0]

    def test_without_spread_it_counts_sites_and_mean_once_each(self):
        """Two sites and no draws but the mean: an average of three networks."""
        state = run_on(FedBE(Known({1: TWO[1], 3: TWO[3]}), num_samples=0))
        outputs = torch.tensor([[-4.0, 0.0, 8.0], [2.0, 2.0, 2.0], [0.5, 1.5, 3.5]])
        torch.testing.assert_close(state.predictive.mean, outputs.mean(0).double())
        expected = 0.25 + outputs.double().var(0, correction=0)
        torch.testing.assert_close(state.predictive.var, expected)

    def test_equal_sites_are_one_network(self):
        state = run_on(FedBE(Known({1: TWO[1], 3: TWO[1]})))
        torch.testing.assert_close(
            state.predictive.mean, torch.tensor([-4.0, 0.0, 8.0], dtype=torch.float64)
        )
        assert state.predictive.var.tolist() == pytest.approx([0.25] * 3, abs=1e-5)


def class_samples(rng, num=1):
    return WeightSamples(
        {
            "weight": torch.randn(num, 3, 2, generator=rng),
            "bias": torch.randn(num, 3, generator=rng),
        },
        {},
    )


def class_world(rng):
    reference = ReferenceRows.of(
        (torch.randn(6, 2, generator=rng), torch.tensor([0, 1, 2, 0, 1, 2])),
        evaluate=torch.randn(4, 2, generator=rng),
    )
    results = {n: class_samples(rng) for n in (1, 3, 4)}
    return Known(results, CLASSES), {str(n): rows_of(n, 2) for n in results}, reference


def laplace(modes, known, site="one"):
    """What a site of FedBEns sends: modes of a line, and the information of each."""
    return Upload.of_weights(weights(*modes, *known), num_rows=1).named(site)


class TestFedBEns:
    TWO_STARTS = FedBEns(Known({}), num_starts=2)

    def pooled(self, *uploads, reference=REFERENCE):
        method, rng = self.TWO_STARTS, generator(0)
        state = method.init(reference, rng=rng)
        total = fold(method.lift(state, one, reference.inputs) for one in uploads)
        return method.finish(state, total, reference, rng=rng)

    def test_modes_are_weighted_by_information_start_by_start(self):
        state = self.pooled(
            laplace([[0.0, 4.0], [1.0, 0.0]], [[1.0, 3.0], [2.0, 2.0]]),
            laplace([[2.0, 0.0], [3.0, 1.0]], [[3.0, 1.0], [2.0, 6.0]]),
        )
        candidates = []
        for damping in DAMPING:
            first, second = 4 * damping, 6 * damping
            candidates.append(
                [
                    [(6 + first) / (4 + first), (12 + 2 * first) / (4 + first)],
                    [(8 + 2 * second) / (4 + second), (6 + 0.5 * second) / (8 + second)],
                ]
            )
        found = state.weights.vectors()[0]
        assert any(torch.allclose(found, torch.tensor(one).double()) for one in candidates)
        losses = [
            metrics.nll(LINE.predict(weights(*one), REFERENCE.inputs), REFERENCE.targets)
            for one in candidates
        ]
        best = torch.tensor(candidates[losses.index(min(losses))]).double()
        torch.testing.assert_close(found, best, rtol=1e-6, atol=1e-6)

    def test_weights_that_no_row_tells_of_are_averaged(self):
        state = self.pooled(
            laplace([[0.0, 4.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]),
            laplace([[0.0, 2.0], [3.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]),
        )
        assert state.weights.vectors()[0].tolist() == [[0.0, 3.0], [2.0, 0.5]]

    def test_no_label_is_needed(self):
        unlabelled = ReferenceRows.of((REFERENCE.inputs[:0], REFERENCE.targets[:0]), [[1.0]])
        same = laplace([[0.0, 4.0], [1.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]])
        state = self.pooled(same, same, reference=unlabelled)
        assert state.weights.vectors()[0].tolist() == [[0.0, 4.0], [1.0, 0.0]]

    @pytest.mark.parametrize(
        ("upload", "says"),
        [
            (laplace([[0.0, 4.0]], [[1.0, 1.0]]), "sent 2 sets of weights; FedBEns needs 4"),
            (laplace([[0.0, 4.0]] * 2, [[1.0, -1.0]] * 2), "negative information"),
        ],
    )
    def test_other_uploads_are_refused(self, upload, says):
        with pytest.raises(UploadError, match=says):
            self.pooled(upload)

    def test_information_is_that_of_the_rows(self):
        """Of a line with noise of variance 1: n for the bias, the sum of squares for the slope."""
        x = torch.linspace(-1, 3, 200).unsqueeze(1)
        learner = Known({200: weights([5.0, -3.0])})  # wherever the line lies
        method = FedBEns(learner, num_starts=20)
        state = method.init(REFERENCE, rng=generator(0))
        upload = method.learn(state, (x, x[:, 0]), REFERENCE.inputs, rng=generator(1))
        known = upload.samples().vectors()[0][20:].mean(0)
        exact = torch.tensor([200.0, float(x.square().sum())]).double()
        torch.testing.assert_close(known, exact, rtol=0.1, atol=0)

    def test_near_a_start_only_its_own_components_count(self):
        """At the closed form every site's mixture is its component of the same start."""
        x = torch.randn(400, 2, generator=generator(0))
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
        network = Network.mlp(2, Softmax(3), hidden=(8,))
        learner = SGDLearner(network, OptimizerSettings(lr=0.1, num_epochs=20, batch_size=20))
        method = FedBEns(learner, num_starts=3)
        reference = ReferenceRows.of((x[:50], y[:50]))
        state = method.init(reference, rng=generator(0))
        sites = [(x[:200], y[:200]), (x[200:], y[200:])]
        sent = [method.learn(state, own, x, rng=generator(k)) for k, own in enumerate(sites)]
        total = fold(method.lift(state, one, x) for one in sent)
        ensemble = method.finish(state, total, reference, rng=generator(0)).weights.vectors()[0]
        for upload in sent:
            parameters = upload.samples().vectors()[0]
            modes, precision = parameters[:3], parameters[3:] + 1e-2
            for index, point in enumerate(ensemble):
                squares = (precision * (point - modes).square()).sum(1)
                log_density = (precision.log().sum(1) - squares) / 2
                assert float(log_density.softmax(0)[index]) > 0.999


class TestOneShot:
    def test_it_is_the_product_at_temperature_n(self, rng):
        learner, sites, reference = class_world(rng)
        oneshot = run_on(OneShotFL(learner), sites, reference).predictive
        whole = run_on(Pooled(learner, product()), sites, reference).predictive
        expected = Categorical.from_natural(whole.natural() / len(sites))
        torch.testing.assert_close(oneshot.natural(), expected.natural())

    def test_in_a_regression_every_site_counts_once(self):
        state = run_on(OneShotFL(Known(TWO)))
        assert state.predictive.mean.tolist() == [-1.0, 1.0, 5.0]
        assert state.predictive.var.tolist() == [9.25, 1.25, 9.25]


class TestFedKT:
    def test_a_site_votes_only_where_its_students_agree(self):
        votes = torch.tensor([[[1, 0], [1, 0], [0, 1]], [[1, 0], [0, 1], [0, 1]]])
        assert count_votes(votes, consistent=True).tolist() == [[2, 0], [0, 0], [0, 2]]
        assert count_votes(votes, consistent=False).tolist() == [[2, 0], [1, 1], [0, 2]]

    def test_lift_counts_the_students_votes_on_rows_that_may_be_trained_on(self, rng):
        learner, _sites, reference = class_world(rng)
        method = FedKT(learner)
        state = method.init(reference, rng=rng)
        assert state.num_inputs == 6
        students = class_samples(rng, num=2)
        upload = Upload.of_weights(students, num_rows=4)
        logits = torch.einsum("ri,sci->src", reference.inputs[:6], students.parameters["weight"])
        chosen = (logits + students.parameters["bias"].unsqueeze(1)).argmax(-1)
        expected = [
            [2.0 * (a == b == c) for c in range(3)]
            for a, b in zip(chosen[0].tolist(), chosen[1].tolist(), strict=True)
        ]
        assert method.lift(state, upload, reference.inputs)["votes"].tolist() == expected

    def test_final_network_learns_the_labels_with_most_votes(self):
        """Votes that contradict every label win: labels are never used."""
        x = torch.cat([torch.full((20, 2), -2.0), torch.full((20, 2), 2.0)])
        reference = ReferenceRows.of((x, torch.zeros(40, dtype=torch.long)))
        learner = SGDLearner(CLASSES, OptimizerSettings(num_epochs=60, batch_size=10))
        method = FedKT(learner)
        state = method.init(reference, rng=generator(0))
        votes = torch.zeros(40, 3)
        votes[:20, 1], votes[20:, 2], votes[5:8] = 2, 3, 0
        finished = method.finish(state, TensorSum({"votes": votes}), reference, rng=generator(1))
        assert finished.predictive.log_probs.argmax(-1).tolist() == [1] * 20 + [2] * 20

    def test_evaluation_inputs_train_nothing(self):
        x = torch.randn(60, 2, generator=generator(0))
        learner = SGDLearner(CLASSES, OptimizerSettings(num_epochs=2, batch_size=10))
        method = FedKT(learner, num_parts=2)
        rows = (x[20:], (x[20:, 0] > 0).long())
        uploads, finals = [], []
        for evaluate in (x[:5], -x[:5]):
            reference = ReferenceRows.of((x[:20], torch.zeros(20).long()), evaluate=evaluate)
            state = method.init(reference, rng=generator(0))
            upload = method.learn(state, rows, reference.inputs, rng=generator(1))
            total = method.lift(state, upload, reference.inputs)
            final = method.finish(state, total, reference, rng=generator(2))
            uploads.append(upload.digest())
            finals.append(final.predictive.natural()[:20])
        assert uploads[0] == uploads[1]
        assert torch.equal(*finals)

    def test_cuts_are_random(self):
        """Two students of one site come from different cuts, so they differ."""
        x = torch.randn(40, 2, generator=generator(0))
        fitted = []

        class Recording(SGDLearner):
            def fit(self, rows, **options):
                fitted.append(rows[0])
                return SGDLearner.fit(self, rows, **options)

        learner = Recording(CLASSES, OptimizerSettings(num_epochs=1))
        reference = ReferenceRows.of((x[:10], torch.zeros(10).long()))
        method = FedKT(learner, num_parts=2)
        state = method.init(reference, rng=generator(0))
        method.learn(state, (x, torch.zeros(40).long()), reference.inputs, rng=generator(1))
        assert len(fitted) == 6  # twice two teachers and a student
        assert not torch.equal(fitted[0], fitted[3])
        for parts in (fitted[:2], fitted[3:5]):
            assert len(torch.cat(parts).unique(dim=0)) == 40

    def test_refuses_sites_that_cannot_be_cut_and_rounds_without_votes(self, rng):
        learner, _sites, reference = class_world(rng)
        method = FedKT(learner)
        state = method.init(reference, rng=rng)
        with pytest.raises(TrainingError, match="3 rows cannot be cut into 5 parts"):
            method.learn(state, rows_of(3), reference.inputs, rng=rng)
        with pytest.raises(PoolError, match="no site's students agree"):
            method.finish(state, TensorSum({"votes": torch.zeros(6, 3)}), reference, rng=rng)
