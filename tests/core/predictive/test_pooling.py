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
from predbayes.predictive.pooling import (
    CLASS_MIXTURE,
    CORRECTED,
    ENTROPY,
    LOG_POOL,
    PredictiveSum,
    Term,
    trust,
)
from predbayes.predictive.selection import TERMS
from predbayes.summand import fold
from tests.core.oracles import RANDOM, prior_for, random_categorical, random_gaussian

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
    assert torch.equal(fold(summands).pool(beta).natural(), fold(shuffled).pool(beta).natural())


@given(federations(min_clients=3), betas, st.data())
def test_partial_sums_merge_in_any_grouping(federation, beta, data):
    _, clients, rows, prior = federation
    cut = data.draw(st.integers(1, len(clients) - 1))
    summands = lift(clients, rows, prior)
    tree = fold(summands[:cut]) + fold(summands[cut:])
    flat = fold(lift(clients, rows, prior))
    assert tree.num_clients == flat.num_clients == len(clients)
    assert torch.equal(tree.pool(beta).natural(), flat.pool(beta).natural())


@given(federations(min_clients=2), betas, st.data())
def test_clients_that_are_taken_away_were_never_there(federation, beta, data):
    family, clients, rows, prior = federation
    terms = TERMS[family]
    cut = data.draw(st.integers(1, len(clients) - 1))
    left = fold(lift(clients, rows, prior, terms))
    left.take_away_(fold(lift(clients[cut:], rows[cut:], prior, terms)))
    without = fold(lift(clients[:cut], rows[:cut], prior, terms))
    assert left.num_clients == without.num_clients
    for name in without.components:
        assert torch.equal(left.component(name), without.component(name))


def test_the_last_client_is_not_taken_away(rng):
    alone = PredictiveSum.of(random_categorical(rng))
    with pytest.raises(PoolError, match="would leave none"):
        (alone + alone).take_away_(alone + alone)


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


def test_float32_clients_are_summed_in_float64(rng):
    """A float32 sum of 2**14 terms loses about four digits; this must not."""
    client = Categorical(torch.full((1, 2), 0.5).log())
    total = fold(PredictiveSum.of(client) for _ in range(2**14))
    assert total.component("product").dtype == torch.float64
    expected = 2**14 * float(client.log_probs[0, 0])
    assert float(total.component("product")[0, 0]) == expected


def test_plus_leaves_both_sides_untouched(rng):
    left, right = (PredictiveSum.of(random_categorical(rng)) for _ in range(2))
    before = [s.component("product").clone() for s in (left, right)]
    assert (left + right).num_clients == 2
    for summand, natural in zip((left, right), before, strict=True):
        assert summand.num_clients == 1
        assert torch.equal(summand.component("product"), natural)


EVERY_TERM = (LOG_POOL, ENTROPY, CLASS_MIXTURE, CORRECTED)
COUNTS = torch.tensor([[8, 0, 2, 0], [1, 1, 0, 4], [30, 20, 10, 0]]).double()


def skewed(rng, counts=COUNTS, terms=EVERY_TERM, **options):
    """Clients with as many rows of each class, and what they sum to."""
    clients = [random_categorical(rng, **options) for _ in counts]
    return clients, [
        PredictiveSum.of(c, float(n.sum()), class_rows=n, terms=terms)
        for c, n in zip(clients, counts, strict=True)
    ]


def spread_out(rng, num_clients=3):
    """Gaussian clients that know how much of their variance more data would remove."""
    plain = [random_gaussian(rng) for _ in range(num_clients)]
    return [
        Gaussian(p.mean, p.var, p.var * torch.rand(7, generator=rng, dtype=torch.float64))
        for p in plain
    ]


class TestTerms:
    """Each against its formula, with plain tensors."""

    def natural(self, total, name):
        """Normalised: logits are defined up to a shift."""
        return Categorical.from_natural(total.component(name)).log_probs

    def test_log_pool(self, rng):
        clients, summands = skewed(rng)
        share = COUNTS.sum(1) / COUNTS.sum()
        logs = sum(s * c.log_probs for s, c in zip(share, clients, strict=True))
        torch.testing.assert_close(fold(summands).component("log_pool"), logs)

    def test_entropy(self, rng):
        clients, summands = skewed(rng)
        probs = torch.stack([c.moments() for c in clients])
        knows = math.log(4) + (probs * probs.log()).sum(-1, keepdim=True)
        logs = (knows * probs.log()).sum(0) / knows.sum(0)
        torch.testing.assert_close(fold(summands).component("entropy"), logs)

    def test_class_mixture(self, rng):
        clients, summands = skewed(rng)
        probs = torch.stack([c.moments() for c in clients])
        weighted = (COUNTS[:, None, :] * probs).sum(0) / COUNTS.sum(0)
        expected = (weighted / weighted.sum(-1, keepdim=True)).log()
        torch.testing.assert_close(self.natural(fold(summands), "class_mixture"), expected)

    def test_corrected(self, rng):
        """The clients' own base rates, with one row of each class added, are divided out."""
        clients, summands = skewed(rng)
        share = COUNTS.sum(1) / COUNTS.sum()
        logits = torch.zeros(7, 4).double()
        for s, c, n in zip(share, clients, COUNTS, strict=True):
            base_rates = (n + 1) / (n.sum() + 4)
            logits += s * (c.moments() / base_rates).log()
        torch.testing.assert_close(fold(summands).component("corrected"), logits)

    @pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
    def test_trust(self, exponent, rng):
        clients = spread_out(rng)
        rows = torch.tensor([10.0, 20.0, 70.0]).double()
        means, variances = (torch.stack([getattr(c, n) for c in clients]) for n in ("mean", "var"))
        weights = rows[:, None] / torch.stack([c.epistemic_var for c in clients]) ** exponent
        weights /= weights.sum(0)
        mean = (weights * means).sum(0)
        second = (weights * (means**2 + variances)).sum(0)
        total = fold(lift(clients, rows.tolist(), None, [trust(exponent)]))
        pooled = total.pool({f"trust_{exponent:g}": 1.0})
        torch.testing.assert_close(pooled.mean, mean)
        torch.testing.assert_close(pooled.var, second - mean**2)

    def test_nobody_is_trusted_without_bound(self, rng):
        """Not even who claims to know all there is: at least 1e-4 of its variance counts."""
        sure, unsure = (Gaussian(torch.full((1,), m), torch.ones(1)) for m in (0.0, 1.0))
        sure = Gaussian(sure.mean, sure.var, torch.zeros(1))
        unsure = Gaussian(unsure.mean, unsure.var, torch.full((1,), 0.5))
        total = fold(lift([sure, unsure], [1.0, 1.0], None, [trust(1.0)]))
        assert float(total.pool({"trust_1": 1.0}).mean) == pytest.approx(2 / (1e4 + 2))

    @pytest.mark.parametrize("prior", [None, prior_for(Categorical)], ids=["flat", "prior"])
    def test_equal_balanced_clients_are_every_term(self, prior, rng):
        """But the product: means do not count clients, and know of no prior."""
        client = random_categorical(rng)
        total = fold(
            PredictiveSum.of(
                client, 20.0, class_rows=torch.full((4,), 5), prior=prior, terms=EVERY_TERM
            )
            for _ in range(3)
        )
        for name in ("mixture", "log_pool", "entropy", "class_mixture", "corrected"):
            torch.testing.assert_close(self.natural(total, name), client.log_probs)

    def test_a_class_that_nobody_has_seen_has_the_plain_mean(self, rng):
        counts = torch.tensor([[8, 1, 1, 0], [1, 1, 2, 0]]).double()
        clients, summands = skewed(rng, counts, terms=[CLASS_MIXTURE])
        probs = torch.stack([c.moments() for c in clients])
        weighted = (counts[:, None, :] * probs).sum(0) / counts.sum(0)
        weighted[:, 3] = probs[:, :, 3].mean(0)
        expected = (weighted / weighted.sum(-1, keepdim=True)).log()
        torch.testing.assert_close(self.natural(fold(summands), "class_mixture"), expected)

    def test_a_balanced_client_needs_no_correction(self, rng):
        """However many rows of each class: equal counts, also after smoothing, are no base rate."""
        for count in (0, 1, 1000):
            _, (total,) = skewed(rng, torch.full((1, 4), float(count)) + 1e-6)
            torch.testing.assert_close(
                self.natural(total, "corrected"), self.natural(total, "log_pool")
            )


@given(st.integers(0, 2**32), st.permutations(range(4)), st.integers(1, 3), st.booleans())
def test_every_term_adds_in_any_order_and_grouping(seed, order, cut, gaussian):
    rng = torch.Generator().manual_seed(seed)
    if gaussian:
        clients, terms = spread_out(rng, 4), [trust(0.5), trust(2.0)]
        counts = [None] * 4
    else:
        clients, terms = [random_categorical(rng) for _ in range(4)], EVERY_TERM
        counts = list(torch.randint(0, 20, (4, 4), generator=rng))

    def summands(chosen):
        return [
            PredictiveSum.of(clients[k], k + 1.0, class_rows=counts[k], terms=terms) for k in chosen
        ]

    flat = fold(summands(range(4)))
    tree = fold(summands(order[:cut])) + fold(summands(order[cut:]))
    assert tree.components == flat.components
    for name in flat.components:
        torch.testing.assert_close(tree.component(name), flat.component(name), **TIGHT)


class TestSitesThatSayLess:
    """A client that cannot contribute to a term takes it out of the sum."""

    def summands(self, rng, silent):
        clients = [random_categorical(rng) for _ in range(3)]
        return [
            PredictiveSum.of(
                c, 10.0, class_rows=None if k == silent else COUNTS[k], terms=EVERY_TERM
            )
            for k, c in enumerate(clients)
        ]

    @pytest.mark.parametrize("silent", range(3))
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_whenever_it_comes_its_terms_are_gone(self, silent, order, rng):
        summands = self.summands(rng, silent)
        total = fold(summands[k] for k in order)
        assert total.components == ("mixture", "product", "log_pool", "entropy")
        assert total.num_clients == 3
        for name in ("class_mixture", "corrected"):
            with pytest.raises(PoolError, match=f"'{name}' needs what some site did not send"):
                total.component(name)

    def test_partial_sums_that_lack_terms_merge(self, rng):
        summands = self.summands(rng, 0)
        left = fold(summands[1:]) + summands[0]
        right = self.summands(rng, 1)[2] + left
        assert right.num_clients == 4
        assert "corrected" not in right.components

    def test_restricting_the_rows_keeps_what_is_lacking(self, rng):
        part = fold(self.summands(rng, 1))[:3]
        with pytest.raises(PoolError, match="did not send"):
            part.component("corrected")
        assert part.add_(fold(self.summands(rng, 3))[:3]).num_clients == 6
        assert "corrected" not in part.components

    def test_a_gaussian_that_does_not_split_its_variance_is_not_trusted(self, rng):
        knows, plain = spread_out(rng, 1)[0], random_gaussian(rng)
        total = fold(lift([knows, plain], [1.0, 1.0], None, [trust(1.0)]))
        assert total.components == ("mixture", "product")

    def test_a_refused_sum_leaves_the_total_as_it_was(self, rng):
        total = PredictiveSum.of(random_categorical(rng), class_rows=COUNTS[0], terms=EVERY_TERM)
        silent = PredictiveSum.of(random_categorical(rng, num_rows=3), terms=EVERY_TERM)
        before = {name: total.component(name) for name in total.components}
        with pytest.raises(PoolError, match="same reference inputs"):
            total.add_(silent)
        assert total.components == tuple(before)
        for name, natural in before.items():
            assert torch.equal(total.component(name), natural)


class TestOneMoreComponent:
    def test_it_is_the_predictive_itself_and_no_client(self, rng):
        own = random_categorical(rng)
        total = fold(skewed(rng)[1])
        more = total.with_component("own", own)
        assert more.components == (*total.components, "own")
        assert more.num_clients == total.num_clients
        assert torch.equal(more.component("own"), own.natural())
        torch.testing.assert_close(more.pool({"own": 1.0}).natural(), own.natural())
        for name in total.components:
            assert torch.equal(more.component(name), total.component(name))
        assert "own" not in total.components

    @pytest.mark.parametrize("family", FAMILIES)
    def test_it_pools_log_linearly_with_the_others(self, family, rng):
        clients, own = [RANDOM[family](rng) for _ in range(3)], RANDOM[family](rng)
        total = fold(lift(clients, [1.0, 2.0, 3.0], None)).with_component("own", own)
        pooled = total.pool({"mixture": 0.3, "own": 0.9})
        expected = family.from_natural(0.3 * total.mixture().natural() + 0.9 * own.natural())
        torch.testing.assert_close(pooled.natural(), expected.natural())

    @pytest.mark.parametrize("name", ["mixture", "product", "natural", "entropy", "own"])
    def test_names_are_given_once(self, name, rng):
        total = fold(skewed(rng)[1]).with_component("own", random_categorical(rng))
        with pytest.raises(PoolError, match="already"):
            total.with_component(name, random_categorical(rng))

    def test_it_is_no_summand_any_more(self, rng):
        plain = [fold(skewed(rng)[1]) for _ in range(2)]
        more = [total.with_component("own", random_categorical(rng)) for total in plain]
        for first, second in (more, (more[0], plain[1]), (plain[0], more[1])):
            with pytest.raises(PoolError, match="does not add"):
                _ = first + second


class TestWeightsByClass:
    def test_each_class_has_its_own(self, rng):
        total = fold(skewed(rng)[1])
        weights = (0.0, 0.5, 1.0, -2.0)
        logits = total.component("mixture") + torch.tensor(weights) * total.component("product")
        pooled = total.pool({"mixture": 1.0, "product": weights})
        torch.testing.assert_close(pooled.natural(), logits.log_softmax(-1))


CLASSES, NUMBERS = (RANDOM[family](torch.Generator().manual_seed(0)) for family in FAMILIES)
FEW = random_categorical(torch.Generator().manual_seed(0), num_rows=3)
PRIOR = prior_for(Gaussian)
WIDER = Gaussian(PRIOR.mean, 2 * PRIOR.var)


def of(predictive, *arguments, **options):
    return PredictiveSum.of(predictive, *arguments, **options)


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(lambda: of(CLASSES) + of(NUMBERS), id="two families"),
        pytest.param(lambda: of(CLASSES) + of(FEW), id="other rows"),
        pytest.param(lambda: of(CLASSES) + of(CLASSES, terms=[ENTROPY]), id="other terms"),
        pytest.param(lambda: of(NUMBERS) + of(NUMBERS, prior=PRIOR), id="a prior and none"),
        pytest.param(lambda: of(NUMBERS, prior=WIDER) + of(NUMBERS, prior=PRIOR), id="two priors"),
        pytest.param(lambda: of(Categorical(torch.tensor([[math.nan, -1.0]]))), id="NaN"),
        pytest.param(lambda: of(Gaussian(torch.tensor([math.inf]), torch.ones(1))), id="infinite"),
        pytest.param(
            lambda: of(CLASSES, terms=[Term("product", "natural", lambda c: 1.0)]), id="name taken"
        ),
        pytest.param(lambda: of(CLASSES, 0), id="no rows"),
        pytest.param(lambda: of(CLASSES).pool({"entrpy": 1.0}), id="unknown component"),
        pytest.param(lambda: fold(of(NUMBERS) for _ in range(5)).pool(-5.0), id="improper"),
        pytest.param(lambda: fold([]), id="nothing"),
    ],
)
def test_what_cannot_be_pooled_is_refused(refused):
    with pytest.raises(PoolError):
        refused()


@pytest.mark.parametrize("family", FAMILIES)
def test_one_client_in_floats_is_the_same_client(family, rng):
    """As it is looked at where nothing is added: not rounded to a grid, and else the same."""
    prior, client = prior_for(family), RANDOM[family](rng)
    gate, counts = torch.zeros(len(client)), torch.full((4,), 5.0)

    def lifted():
        return PredictiveSum.of(
            client, 20, class_rows=counts, gate=gate, prior=prior, terms=TERMS[family]
        )

    seen = lifted().with_floats(lifted().floats(), 1, prior)
    whole = lifted()
    assert set(seen.components) == set(whole.components)
    for name in whole.components:
        torch.testing.assert_close(seen.component(name), whole.component(name), **TIGHT)
    settled = whole.floats()
    for name, (value, weight) in lifted().floats().items():
        torch.testing.assert_close(settled[name][0], value, **TIGHT)
        torch.testing.assert_close(settled[name][1], weight, **TIGHT)


def test_a_sum_with_a_fixed_component_is_combined_apart_from_itself(rng):
    one, other, own = (random_categorical(rng) for _ in range(3))
    both = (PredictiveSum.of(one) + PredictiveSum.of(other)).with_component("own", own)
    before = both.component("mixture").clone()
    alone = both.combined(PredictiveSum.of(other), sign=-1)
    assert torch.equal(alone.component("mixture"), PredictiveSum.of(one).component("mixture"))
    assert torch.equal(alone.component("own"), both.component("own"))
    back = alone.combined(PredictiveSum.of(other), sign=1)
    assert torch.equal(back.component("mixture"), before)
    assert torch.equal(both.component("mixture"), before)
