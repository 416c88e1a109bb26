"""The algebra of pools, as properties over random clients of both families."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import PoolError
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.pooling import ENTROPY, PredictiveSum, Term
from predbayes.summand import fold
from tests.oracles import RANDOM, prior_for, random_categorical, random_gaussian

FAMILIES = [Categorical, Gaussian]
TIGHT = {"rtol": 1e-9, "atol": 1e-9}


@st.composite
def federations(draw, min_clients=1):
    """Clients of one family with row counts and, perhaps, a prior."""
    family = draw(st.sampled_from(FAMILIES))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.1, 3.0, 30.0]))
    clients = [RANDOM[family](rng, scale=scale) for _ in range(draw(st.integers(min_clients, 8)))]
    rows = [float(draw(st.integers(1, 1000))) for _ in clients]
    prior = prior_for(family) if draw(st.booleans()) else None
    return family, clients, rows, prior


def lift(clients, rows, prior, terms=()):
    return [
        PredictiveSum.of(c, w, prior=prior, terms=terms) for c, w in zip(clients, rows, strict=True)
    ]


betas = st.floats(0, 1)


@given(federations(), betas, st.randoms(use_true_random=False))
def test_order_of_clients_is_irrelevant(federation, beta, random):
    _, clients, rows, prior = federation
    summands = lift(clients, rows, prior)
    shuffled = lift(clients, rows, prior)
    random.shuffle(shuffled)
    torch.testing.assert_close(
        fold(summands).pool(beta).natural(), fold(shuffled).pool(beta).natural(), **TIGHT
    )


@given(federations(min_clients=3), betas, st.data())
def test_partial_sums_merge_in_any_grouping(federation, beta, data):
    _, clients, rows, prior = federation
    cut = data.draw(st.integers(1, len(clients) - 1))
    summands = lift(clients, rows, prior)
    tree = fold(summands[:cut]) + fold(summands[cut:])
    flat = fold(lift(clients, rows, prior))
    assert tree.num_clients == flat.num_clients == len(clients)
    torch.testing.assert_close(tree.pool(beta).natural(), flat.pool(beta).natural(), **TIGHT)


@given(federations(), betas)
def test_in_place_equals_out_of_place(federation, beta):
    _, clients, rows, prior = federation
    first, *others = lift(clients, rows, prior)
    out_of_place = first
    for other in others:
        out_of_place = out_of_place + other
    in_place = fold(lift(clients, rows, prior))
    torch.testing.assert_close(out_of_place.pool(beta).natural(), in_place.pool(beta).natural())


@given(federations(), betas)
def test_one_client_is_itself_for_every_beta(federation, beta):
    _, (client, *_), (rows, *_), prior = federation
    expert = client.bounded(-80.0) if prior is None else client.bounded(-80.0).informed(prior)
    alone = PredictiveSum.of(expert, rows, prior=prior).pool(beta)
    torch.testing.assert_close(alone.kl(expert), torch.zeros(len(client)).double(), **TIGHT)


@given(federations())
def test_ends_are_mixture_and_product(federation):
    _, clients, rows, prior = federation
    total = fold(lift(clients, rows, prior))
    torch.testing.assert_close(total.pool(0.0).natural(), total.mixture().natural())
    torch.testing.assert_close(total.pool(1.0).natural(), total.product().natural())


@given(federations(), betas)
def test_every_beta_in_the_unit_interval_is_proper(federation, beta):
    family, clients, rows, prior = federation
    pool = fold(lift(clients, rows, prior)).pool(beta)
    assert family.is_proper(pool.natural())
    if family is Categorical:
        torch.testing.assert_close(pool.moments().sum(-1), torch.ones(len(pool)).double())
    else:
        assert bool((pool.var > 0).all())


@given(federations())
def test_duplicating_clients_keeps_the_mixture_and_doubles_the_evidence(federation):
    _, clients, rows, prior = federation
    once = fold(lift(clients, rows, prior))
    twice = fold(lift(clients * 2, rows * 2, prior))
    torch.testing.assert_close(once.mixture().moments(), twice.mixture().moments(), **TIGHT)
    eta_0 = 0.0 if prior is None else prior.natural()
    torch.testing.assert_close(
        twice.component("product") - eta_0, 2 * (once.component("product") - eta_0), **TIGHT
    )


@given(federations(min_clients=2))
def test_a_client_that_knows_only_the_prior_adds_nothing_to_the_product(federation):
    family, clients, rows, _ = federation
    prior = prior_for(family)
    ignorant = family.from_natural(prior.natural().expand(len(clients[0]), -1))
    before = fold(lift(clients, rows, prior)).product()
    after = fold(lift([*clients, ignorant], [*rows, 5.0], prior)).product()
    torch.testing.assert_close(before.natural(), after.natural(), **TIGHT)


@given(federations())
def test_weights_of_the_mixture_are_relative(federation):
    _, clients, rows, prior = federation
    total = fold(lift(clients, rows, prior))
    scaled = fold(lift(clients, [7 * w for w in rows], prior))
    torch.testing.assert_close(total.mixture().moments(), scaled.mixture().moments(), **TIGHT)


@given(federations(), betas)
def test_restricting_the_rows_commutes_with_pooling(federation, beta):
    family, clients, rows, prior = federation
    terms = [ENTROPY] if family is Categorical else []
    total = fold(lift(clients, rows, prior, terms))
    chosen = torch.tensor([5, 0, 2])
    for taken in (chosen, slice(1, 4)):
        whole, part = total.pool(beta)[taken], total[taken].pool(beta)
        torch.testing.assert_close(whole.natural(), part.natural())
    if terms:
        weights = {"entropy": 1.0}
        torch.testing.assert_close(
            total.pool(weights)[chosen].natural(), total[chosen].pool(weights).natural()
        )


def test_weights_by_class_stay_whole_where_rows_are_as_many_as_classes(rng):
    by_class = Term("by_class", "moments", lambda client: client.class_rows)
    counts = torch.tensor([8.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    client = random_categorical(rng, num_rows=4, num_classes=4)
    total = PredictiveSum.of(client, class_rows=counts, terms=[by_class])
    whole = total.pool({"by_class": 1.0})
    chosen = torch.tensor([3, 0, 1])
    torch.testing.assert_close(
        total[chosen].pool({"by_class": 1.0}).natural(), whole[chosen].natural()
    )


def test_categorical_matches_brute_force(rng):
    """eq:interp_model: p**beta * m**(1 - beta), renormalised, with the prior divided out."""
    clients = [random_categorical(rng) for _ in range(3)]
    rows = [10.0, 20.0, 70.0]
    prior = prior_for(Categorical)
    probs = torch.stack([c.moments() for c in clients])
    product = probs.prod(0) / prior.moments() ** 2
    mixture = (torch.tensor(rows).double()[:, None, None] * probs).sum(0) / 100
    for beta in (0.0, 0.3, 1.0):
        expected = product**beta * mixture ** (1 - beta)
        expected /= expected.sum(-1, keepdim=True)
        total = fold(lift(clients, rows, prior))
        torch.testing.assert_close(total.pool(beta).moments(), expected)


def test_gaussian_matches_precision_weighting(rng):
    """eq:var_regr, eq:mean_regr, eq:mixture_gaussian and eq:interp_gaussian, written out."""
    clients = [random_gaussian(rng) for _ in range(3)]
    rows = [10.0, 20.0, 70.0]
    prior = prior_for(Gaussian)
    prec_prod = sum(1 / c.var for c in clients) - 2 / prior.var
    mean_prod = (sum(c.mean / c.var for c in clients) - 2 * prior.mean / prior.var) / prec_prod
    mean_mix = sum(w * c.mean for w, c in zip(rows, clients, strict=True)) / 100
    second = sum(w * (c.var + c.mean**2) for w, c in zip(rows, clients, strict=True)) / 100
    prec_mix = 1 / (second - mean_mix**2)
    total = fold(lift(clients, rows, prior))
    for beta in (0.0, 0.3, 1.0):
        prec = beta * prec_prod + (1 - beta) * prec_mix
        mean = (beta * prec_prod * mean_prod + (1 - beta) * prec_mix * mean_mix) / prec
        torch.testing.assert_close(total.pool(beta).mean, mean)
        torch.testing.assert_close(total.pool(beta).var, 1 / prec)


def test_hundred_confident_clients_stay_finite(rng):
    logits = 300 * torch.randn(100, 50, 10, generator=rng)
    total = fold(PredictiveSum.of(Categorical.from_natural(x)) for x in logits)
    for beta in (0.0, 0.5, 1.0):
        assert bool(total.pool(beta).log_probs.isfinite().all())


def test_certain_gaussians_stay_finite():
    sure = Gaussian(torch.tensor([0.0, 5.0]), torch.tensor([0.0, 0.0]))
    total = PredictiveSum.of(sure) + PredictiveSum.of(Gaussian(sure.mean + 1, sure.var))
    for beta in (0.0, 0.5, 1.0):
        assert bool(total.pool(beta).natural().isfinite().all())


def test_a_vague_client_moves_the_product_nowhere_and_the_mixture_as_it_is(rng):
    """Variance above the prior's: no evidence, whatever its mean; a mixture takes it literally."""
    prior = Gaussian(torch.zeros(1).double(), torch.ones(1).double())
    vague = Gaussian(torch.full((3,), 9.0).double(), torch.full((3,), 4.0).double())
    knows = Gaussian(torch.full((3,), 0.5).double(), torch.full((3,), 0.1).double())
    total = fold(PredictiveSum.of(c, prior=prior) for c in (knows, vague, vague))
    torch.testing.assert_close(total.product().mean, knows.mean)
    torch.testing.assert_close(total.product().var, knows.var)
    mean = torch.tensor([0.5, 9.0, 9.0]).double()
    second = (mean**2 + torch.tensor([0.1, 4.0, 4.0])).mean()
    torch.testing.assert_close(total.mixture().mean[0], mean.mean())
    torch.testing.assert_close(total.mixture().var[0], second - mean.mean() ** 2)


def test_uniform_clients_have_an_entropy_pool_too():
    uniform = Categorical.from_natural(torch.zeros(2, 3))
    total = fold(PredictiveSum.of(uniform, terms=[ENTROPY]) for _ in range(3))
    torch.testing.assert_close(
        total.pool({"entropy": 1.0}).moments(), torch.full((2, 3), 1 / 3).double()
    )


def test_float32_clients_are_summed_in_float64(rng):
    """A float32 sum of 2**14 terms loses about four digits; this must not."""
    client = Categorical(torch.full((1, 2), 0.5).log())
    total = fold(PredictiveSum.of(client) for _ in range(2**14))
    assert total.component("product").dtype == torch.float64
    expected = 2**14 * float(client.log_probs[0, 0])
    assert float(total.component("product")[0, 0]) == expected


def test_adding_leaves_the_clients_untouched(rng):
    client = random_categorical(rng)
    before = client.log_probs.clone()
    total = PredictiveSum.of(client, terms=[ENTROPY])
    total.add_(PredictiveSum.of(client, terms=[ENTROPY]))
    assert torch.equal(client.log_probs, before)


def test_plus_leaves_both_sides_untouched(rng):
    left, right = (PredictiveSum.of(random_categorical(rng)) for _ in range(2))
    before = [s.component("product").clone() for s in (left, right)]
    assert (left + right).num_clients == 2
    for summand, natural in zip((left, right), before, strict=True):
        assert summand.num_clients == 1
        assert torch.equal(summand.component("product"), natural)


def test_entropy_term_listens_to_those_who_know(rng):
    knows = Categorical.from_moments(torch.tensor([[0.98, 0.01, 0.01]]).double())
    ignorant = Categorical.from_moments(torch.ones(1, 3).double())
    total = fold(PredictiveSum.of(c, terms=[ENTROPY]) for c in (knows, ignorant, ignorant))
    torch.testing.assert_close(total.pool({"entropy": 1.0}).moments(), knows.moments())


def test_terms_of_ones_own_are_weighted_means(rng):
    """A size-weighted log pool, and a class-weighted mixture, each in one line."""
    log_pool = Term("log_pool", "natural", lambda client: client.rows)
    by_class = Term("by_class", "moments", lambda client: client.class_rows)
    clients = [random_categorical(rng) for _ in range(2)]
    counts = [torch.tensor([8.0, 1, 1, 1]).double(), torch.tensor([1.0, 1, 1, 8]).double()]
    total = fold(
        PredictiveSum.of(c, float(n.sum()), class_rows=n, terms=[log_pool, by_class])
        for c, n in zip(clients, counts, strict=True)
    )
    mean_log = (clients[0].log_probs + clients[1].log_probs) / 2
    torch.testing.assert_close(
        total.pool({"log_pool": 1.0}).natural(), Categorical.from_natural(mean_log).natural()
    )
    weighted = sum(n * c.moments() for n, c in zip(counts, clients, strict=True)) / sum(counts)
    torch.testing.assert_close(
        total.pool({"by_class": 1.0}).natural(), Categorical.from_moments(weighted).natural()
    )


class TestErrors:
    def test_families_do_not_mix(self, rng):
        with pytest.raises(PoolError, match="cannot pool Categorical with Gaussian"):
            PredictiveSum.of(random_categorical(rng)).add_(PredictiveSum.of(random_gaussian(rng)))

    def test_shapes_must_agree(self, rng):
        small, large = random_categorical(rng, num_rows=3), random_categorical(rng)
        with pytest.raises(PoolError, match="same reference inputs"):
            PredictiveSum.of(small).add_(PredictiveSum.of(large))

    def test_terms_must_agree(self, rng):
        p = random_categorical(rng)
        with pytest.raises(PoolError, match="cannot add terms"):
            PredictiveSum.of(p).add_(PredictiveSum.of(p, terms=[ENTROPY]))

    def test_priors_must_agree(self, rng):
        p, prior = random_gaussian(rng), prior_for(Gaussian)
        wider = Gaussian(prior.mean, 2 * prior.var)
        for first, second in itertools.permutations([None, prior, wider], 2):
            with pytest.raises(PoolError, match="different priors"):
                PredictiveSum.of(p, prior=first).add_(PredictiveSum.of(p, prior=second))

    def test_equal_priors_need_not_be_one_object(self, rng):
        p = random_gaussian(rng)
        first, second = (PredictiveSum.of(p, prior=prior_for(Gaussian)) for _ in range(2))
        assert first.add_(second).num_clients == 2

    def test_clients_must_be_finite(self):
        with pytest.raises(PoolError, match="not finite"):
            PredictiveSum.of(Categorical(torch.tensor([[math.nan, -1.0]])))
        with pytest.raises(PoolError, match="not finite"):
            PredictiveSum.of(Gaussian(torch.tensor([math.inf]), torch.tensor([1.0])))

    @pytest.mark.parametrize("name", ["natural", "product"])
    def test_names_that_every_sum_has_are_taken(self, name, rng):
        with pytest.raises(PoolError, match="may not be called"):
            PredictiveSum.of(random_categorical(rng), terms=[Term(name, "natural", lambda c: 1.0)])

    def test_the_prior_must_be_of_the_clients_family(self, rng):
        with pytest.raises(PoolError, match="the prior is Gaussian, the predictive Categorical"):
            PredictiveSum.of(random_categorical(rng), prior=prior_for(Gaussian))

    def test_clients_must_have_rows(self, rng):
        with pytest.raises(PoolError, match="positive number of rows"):
            PredictiveSum.of(random_categorical(rng), 0)

    def test_unknown_components_are_named(self, rng):
        total = PredictiveSum.of(random_categorical(rng), terms=[ENTROPY])
        for name in ("entrpy", "natural"):
            with pytest.raises(PoolError, match="it has mixture, product, entropy"):
                total.pool({name: 1.0})

    def test_pools_of_nothing_are_refused(self, rng):
        with pytest.raises(PoolError, match="every weight"):
            PredictiveSum.of(random_categorical(rng)).pool({"mixture": 0.0})

    def test_improper_pools_are_refused(self, rng):
        total = fold(PredictiveSum.of(random_gaussian(rng)) for _ in range(5))
        with pytest.raises(PoolError, match="not a distribution"):
            total.pool(-5.0)

    def test_no_clients_no_pool(self):
        with pytest.raises(PoolError, match="nothing to pool"):
            fold([])
