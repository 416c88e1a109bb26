"""The convex solve against grids, optimality conditions and repeated sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import PoolError
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import ENTROPY, LOG_POOL, PredictiveSum, Term
from predbayes.predictive.tuning import tune_beta, tune_temperature, tune_weights
from predbayes.seeding import generator
from predbayes.summand import fold
from tests.core.oracles import RANDOM, prior_for, random_categorical, random_targets

FAMILIES = [Categorical, Gaussian]
GRID = 10_000


def federation(family, rng, num_rows=40, num_clients=4, scale=1.0, terms=()):
    prior = prior_for(family) if family is Gaussian else None
    clients = [RANDOM[family](rng, num_rows=num_rows, scale=scale) for _ in range(num_clients)]
    total = fold(PredictiveSum.of(c, 10.0, prior=prior, terms=terms) for c in clients)
    return total, random_targets(family, rng, num_rows=num_rows)


def grid_nll(total, targets, betas):
    """NLL at many betas, with nothing of the solver's code but the families' definitions."""
    mixture, product = total.component("mixture"), total.component("product")
    values = []
    for chunk in torch.split(betas, 500):
        eta = mixture + chunk[:, None, None] * (product - mixture)
        fit = total.family.inner(eta, targets.expand(len(chunk), -1))
        values.append((total.family.log_partition(eta) - fit).mean(-1))
    return torch.cat(values)


seeds = st.integers(0, 2**32)


@pytest.mark.parametrize("family", FAMILIES)
class TestBeta:
    @given(seed=seeds, scale=st.sampled_from([0.3, 1.0, 4.0]))
    @settings(max_examples=25)
    def test_no_grid_point_is_better_and_beta_is_within_a_step(self, family, seed, scale):
        total, y = federation(family, torch.Generator().manual_seed(seed), scale=scale)
        betas = torch.linspace(0, 1, GRID, dtype=torch.float64)
        values = grid_nll(total, y, betas)
        tuned = tune_beta(total, y)
        assert tuned.nll <= float(values.min()) + 1e-12
        assert abs(tuned.beta - float(betas[values.argmin()])) <= 1 / (GRID - 1)

    def test_interval_ends_at_the_likelihood_threshold(self, family, rng):
        total, y = federation(family, rng, num_rows=400)
        tuned = tune_beta(total, y, domain=(-5.0, 5.0))
        for end in tuned.profiles["beta"].interval:
            at_end = float(grid_nll(total, y, torch.tensor([end], dtype=torch.float64)))
            assert 2 * len(y) * (at_end - tuned.nll) == pytest.approx(3.841, abs=1e-2)

    def test_curve_contains_the_optimum_and_nothing_lower(self, family, rng):
        total, y = federation(family, rng)
        tuned = tune_beta(total, y)
        values = dict(tuned.profiles["beta"].curve)
        assert values[tuned.beta] == pytest.approx(tuned.nll, abs=1e-12)
        assert min(values.values()) >= tuned.nll - 1e-12
        assert all(0 <= beta <= 1 for beta in values)

    def test_the_prior_is_on_n_times_beta_in_total(self, family, rng):
        """argmin of N NLL(beta) + (n beta)^2 / (2 s^2), its interval and its curve, on a grid."""
        total, y = federation(family, rng, num_rows=100)
        tuned = tune_beta(total, y, domain=(-1, 2), prior_std=0.5)

        def penalised(beta):
            nll_at = float(grid_nll(total, y, torch.tensor([beta], dtype=torch.float64)))
            return len(y) * nll_at + (total.num_clients * beta) ** 2 / (2 * 0.5**2)

        betas = np.linspace(-1, 2, 3001)
        values = [penalised(beta) for beta in betas]
        assert tuned.beta == pytest.approx(betas[int(np.argmin(values))], abs=1e-3)
        for end in tuned.profiles["beta"].interval:
            gap = 2 * (penalised(end) - penalised(tuned.beta))
            assert gap == pytest.approx(3.841, abs=1e-2)
        for beta, nll_at in tuned.profiles["beta"].curve:
            expected = float(grid_nll(total, y, torch.tensor([beta], dtype=torch.float64)))
            assert nll_at == pytest.approx(expected, abs=1e-9)

    def test_one_client_leaves_beta_undetermined(self, family, rng):
        total, y = federation(family, rng, num_clients=1)
        tuned = tune_beta(total, y)
        assert tuned.profiles["beta"].interval == (0.0, 1.0)


@pytest.mark.parametrize("family", FAMILIES)
class TestWeights:
    def components(self, family):
        return ("mixture", "product", *(["entropy"] if family is Categorical else []))

    def build(self, family, rng, **options):
        return federation(family, rng, terms=[ENTROPY] if family is Categorical else [], **options)

    @given(seed=seeds)
    @settings(max_examples=15)
    def test_no_neighbour_is_better(self, family, seed):
        """Convex, so a point that no direction improves is the optimum."""
        rng = torch.Generator().manual_seed(seed)
        total, y = self.build(family, rng)
        names = self.components(family)
        tuned = tune_weights(total, y, components=names, prior_std=None, profiles=False)
        for direction in torch.randn(20, len(tuned.weights), generator=rng).tolist():
            moved = {
                name: weight + 1e-3 * step
                for (name, weight), step in zip(tuned.weights.items(), direction, strict=True)
            }
            assert nll(total.pool(moved), y) >= tuned.nll - 1e-12

    def test_profiles_bracket_their_weights(self, family, rng):
        total, y = self.build(family, rng, num_rows=200)
        tuned = tune_weights(total, y, components=self.components(family))
        for name, profile in tuned.profiles.items():
            low, high = profile.interval
            assert low < profile.value < high
            assert profile.value == tuned.weights[name]
            assert min(v for _, v in profile.curve) >= tuned.nll - 0.1


@pytest.mark.parametrize("scale", [10.0, 40.0, 200.0])
def test_saturated_clients_are_tuned_to_the_optimum(scale, rng):
    """Certain clients, a third of them wrong: the NLL is nearly piecewise linear."""
    y = torch.randint(10, (400,), generator=rng)
    clients = []
    for _ in range(4):
        guess = torch.where(torch.rand(400, generator=rng) < 0.3, y.flip(0), y)
        logits = scale * torch.nn.functional.one_hot(guess, 10).double()
        clients.append(Categorical.from_natural(logits))
    total = fold(PredictiveSum.of(c) for c in clients)
    betas = torch.linspace(-1, 1, GRID, dtype=torch.float64)
    assert tune_beta(total, y, domain=(-1, 1)).nll <= float(grid_nll(total, y, betas).min()) + 1e-9
    sharpened = tune_weights(total, y, components=["mixture"], prior_std=None)
    grid = [nll(total.pool({"mixture": w}), y) for w in np.linspace(0.01, 2, 400)]
    assert sharpened.nll <= min(grid) + 1e-9


def test_far_targets_are_squared_in_double(rng):
    """Float32 targets around 1000 with a spread of .1."""
    y = (1000 + 0.1 * torch.randn(200, generator=rng)).float()
    clients = [
        Gaussian(y + 0.1 * torch.randn(200, generator=rng), torch.full((200,), 0.02))
        for _ in range(3)
    ]
    total = fold(PredictiveSum.of(c) for c in clients)
    tuned = tune_beta(total, y)
    best = min(nll(total.pool(b), y.double()) for b in np.linspace(0, 1, 201))
    assert nll(total.pool(tuned.beta), y.double()) <= best + 1e-3


def test_a_hundred_thousand_clients_have_a_small_beta_known_well(rng):
    """Every client says the same, so the pool is p ** (1 + beta (n - 1)): beta is about 1 / n."""
    num_rows, num_clients = 500, 100_000
    truth = random_categorical(rng, num_rows=num_rows, scale=1.0)
    y = torch.multinomial(truth.moments(), 1, generator=rng).squeeze(-1)
    shy = Categorical.from_natural(0.5 * truth.natural())
    total = PredictiveSum.of(shy)
    for _ in range(17):  # doubling is adding
        total = total + total if total.num_clients * 2 <= num_clients else total
    tuned = tune_beta(total, y)
    low, high = tuned.profiles["beta"].interval
    assert low < 1 / (total.num_clients - 1) < high  # truth = shy ** 2, normalised
    assert high - low < 1 / total.num_clients


@pytest.mark.slow("intervals without an end")
def test_a_flat_direction_has_an_unbounded_interval(rng):
    """One client is mixture and product alike: only the sum of the weights is determined."""
    total, y = federation(Categorical, rng, num_clients=1)
    tuned = tune_weights(total, y, prior_std=None)
    for profile in tuned.profiles.values():
        assert profile.interval[1] - profile.interval[0] > 1e3
        assert all(math.isfinite(value) and math.isfinite(nll) for value, nll in profile.curve)


def test_equal_components_share_their_weight(rng):
    """Directions that repeat make a singular Hessian, which must not stop the solve."""
    again = Term("again", "moments", lambda client: client.num_rows)
    total, y = federation(Categorical, rng, terms=[again])
    options = {"prior_std": None, "profiles": False}
    once = tune_weights(total, y, components=["product", "mixture"], **options)
    twice = tune_weights(total, y, components=["product", "mixture", "again"], **options)
    assert twice.nll == pytest.approx(once.nll, abs=1e-9)


def test_weights_may_be_negative(rng):
    """Clients that agree too much want the product's weight below zero."""
    y = torch.randint(3, (400,), generator=rng)
    probs = torch.full((400, 3), 0.25, dtype=torch.float64)
    probs[torch.arange(400), y] = 0.5
    noise = 0.7 * torch.randn(400, 3, generator=rng, dtype=torch.float64)
    sharp = Categorical.from_natural(3 * (probs.log() + noise))
    total = PredictiveSum.of(sharp) + PredictiveSum.of(Categorical.from_natural(2 * noise))
    assert min(tune_weights(total, y, prior_std=None).weights.values()) < 0


def test_the_interval_covers_the_true_beta():
    """95 % of intervals contain the beta that generated the labels; binomial test at 1e-5."""
    rng = generator(0, "coverage")
    true_beta, num_rows, trials, hits = 0.4, 150, 300, 0
    for _ in range(trials):
        clients = [random_categorical(rng, num_rows=num_rows, scale=1.5) for _ in range(3)]
        total = fold(PredictiveSum.of(c) for c in clients)
        law = total.pool(true_beta).moments()
        y = torch.multinomial(law, 1, generator=rng).squeeze(-1)
        low, high = tune_beta(total, y, domain=(-3, 4)).profiles["beta"].interval
        hits += low <= true_beta <= high
    spread = math.sqrt(0.95 * 0.05 / trials)
    assert abs(hits / trials - 0.95) < 4.4 * spread


def objective(total, targets, weights, base="mixture", prior_std=1.0):
    """N NLL + penalty of given weights, each an autograd leaf, by the definition."""
    natural = sum(value * total.component(name) for name, value in weights.items())
    partition = total.family.log_partition(natural)
    loss = (partition - total.family.inner(natural, targets)).sum()
    if prior_std is None:
        return loss
    for name, value in weights.items():
        scale = total.num_clients if name == "product" else 1
        centre = 1.0 if name == base else 0.0
        loss = loss + (scale * (value - centre)).square().sum() / (2 * prior_std**2)
    return loss


def gradients(total, targets, weights, **options):
    leaves = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in weights.items()
    }
    loss = objective(total, targets, leaves, **options)
    found = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


class TestWeightsByClass:
    def tune(self, rng, **options):
        total, y = federation(Categorical, rng, num_rows=200, terms=[ENTROPY, LOG_POOL])
        arguments = {"components": ["mixture", "product"], "by_class": ["entropy", "log_pool"]}
        return total, y, tune_weights(total, y, profiles=False, **(arguments | options))

    @pytest.mark.parametrize("prior_std", [0.3, 1.0, 10.0])
    def test_the_gradient_is_zero(self, prior_std, rng):
        total, y, tuned = self.tune(rng, prior_std=prior_std)
        assert all(len(tuned.weights[name]) == 4 for name in ("entropy", "log_pool"))
        for slope in gradients(total, y, tuned.weights, prior_std=prior_std).values():
            torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-4)

    def test_the_base_may_have_a_weight_for_each_class(self, rng):
        total, y, tuned = self.tune(rng, components=["product"], by_class=["mixture"])
        assert set(tuned.weights) == {"mixture", "product"}
        for slope in gradients(total, y, tuned.weights).values():
            torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
class TestBase:
    def test_the_gradient_is_zero_and_the_base_stays(self, family, rng):
        own = RANDOM[family](rng, num_rows=40, scale=1.0)
        total, y = federation(family, rng)
        total = total.with_component("own", own)
        tuned = tune_weights(total, y, components=["product", "mixture"], base="own")
        assert tuned.weights["own"] == 1.0
        slopes = gradients(total, y, tuned.weights, base="own")
        assert [float(slopes[n]) for n in ("product", "mixture")] == pytest.approx([0, 0], abs=1e-4)

    def test_a_strong_prior_leaves_the_base_alone(self, family, rng):
        total, y = federation(family, rng)
        tuned = tune_weights(total, y, base="product", prior_std=1e-6)
        assert tuned.weights == pytest.approx({"product": 1.0, "mixture": 0.0}, abs=1e-6)

    @pytest.mark.parametrize("base", ["mixture", "product"])
    @pytest.mark.parametrize("nonnegative", [False, True])
    def test_without_free_weights_it_is_the_base_alone(self, family, base, nonnegative, rng):
        total, y = federation(family, rng)
        tuned = tune_weights(total, y, components=(), base=base, nonnegative=nonnegative)
        assert tuned.weights == {base: 1.0}
        assert tuned.profiles == {}
        assert tuned.num_labels == len(y)
        assert tuned.nll == pytest.approx(nll(total.pool({base: 1.0}), y), abs=1e-12)


class TestNonnegative:
    @pytest.mark.parametrize("family", FAMILIES)
    @given(seed=seeds)
    @settings(max_examples=25)
    def test_the_optimality_conditions_hold(self, family, seed):
        """No weight is negative; the slope is zero at those that are not zero, else not down."""
        rng = torch.Generator().manual_seed(seed)
        total, y = federation(family, rng)
        tuned = tune_weights(total, y, nonnegative=True, profiles=False)
        misfit = objective(total, y, tuned.weights, prior_std=None)
        assert tuned.nll == pytest.approx(float(misfit) / len(y), abs=1e-12)
        for name, slope in gradients(total, y, tuned.weights).items():
            assert tuned.weights[name] >= 0
            if tuned.weights[name] > 0:
                assert float(slope) == pytest.approx(0, abs=1e-3)
            else:
                assert float(slope) >= -1e-9

    def test_weights_by_class_are_held_too_the_bases_at_zero_in_all(self, rng):
        """Labels that shun what the clients say: every weight would go below zero."""
        total, y = federation(Categorical, rng, num_rows=400, num_clients=1, scale=2.0)
        y = total.mixture().log_probs.argmin(-1)
        options = {"components": (), "by_class": ["mixture"], "prior_std": 10.0, "profiles": False}
        assert max(tune_weights(total, y, **options).weights["mixture"]) < 0
        held = tune_weights(total, y, nonnegative=True, **options)
        assert held.weights["mixture"] == pytest.approx((0.0,) * 4)
        assert held.nll == pytest.approx(math.log(4))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("component", ["mixture", "product"])
class TestTemperature:
    def test_the_prior_is_a_normal_around_one(self, family, component, rng):
        """argmin of N NLL(t) + (n t - 1)^2 / (2 s^2), n = 1 but for the product."""
        total, y = federation(family, rng, num_rows=100)
        count = total.num_clients if component == "product" else 1
        tuned = tune_temperature(total, y, component=component, prior_std=0.2)

        def penalised(weight):
            misfit = len(y) * nll(total.pool({component: weight}), y)
            return misfit + (count * weight - 1) ** 2 / (2 * 0.2**2)

        grid = np.linspace(0.005, 2, 2001) / count
        best = grid[int(np.argmin([penalised(weight) for weight in grid]))]
        assert tuned.weights[component] == pytest.approx(best, abs=2e-3 / count)


def test_temperature_scales_a_gaussians_variance_to_the_residuals():
    """Var T at the best T is the mean squared residual, where variances are equal."""
    y = torch.tensor([1.0, -2.0, 3.0, 0.5])
    total = PredictiveSum.of(Gaussian(torch.zeros(4), torch.full((4,), 0.1)))
    scaled = 0.1 / tune_temperature(total, y).weights["mixture"]
    assert scaled == pytest.approx(float(y.square().mean()), rel=1e-6)


class TestErrors:
    def test_every_row_needs_a_label(self, rng):
        total, y = federation(Categorical, rng)
        for labels in (y[:-1], y[:0]):
            with pytest.raises(PoolError, match="one label for each"):
                tune_beta(total, labels)

    def test_starting_from_an_improper_pool_is_refused(self, rng):
        clients = [RANDOM[Gaussian](rng) for _ in range(3)]
        total = fold(PredictiveSum.of(c) for c in clients)
        with pytest.raises(PoolError, match="improper where tuning starts"):
            tune_beta(total, random_targets(Gaussian, rng), domain=(-50, -40))

    def test_domains_and_components_must_make_sense(self, rng):
        total, y = federation(Categorical, rng)
        with pytest.raises(PoolError, match="interval"):
            tune_beta(total, y, domain=(1.0, 0.0))
        with pytest.raises(PoolError, match="listed once"):
            tune_weights(total, y, components=["mixture", "mixture"])

    def test_labels_must_be_of_the_family(self, rng):
        total, y = federation(Categorical, rng)
        for bad in (y.float(), y + 1, y - 1, y.unsqueeze(-1)):
            with pytest.raises(PoolError):
                tune_beta(total, bad)
