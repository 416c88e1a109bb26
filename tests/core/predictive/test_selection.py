"""Which pools are candidates, how they are scored, and which are selected."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from predbayes.errors import PoolError
from predbayes.predictive import selection
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import PredictiveSum, Term, gated
from predbayes.predictive.selection import (
    CATEGORICAL_TERMS,
    GATED_MIXTURE,
    GAUSSIAN_TERMS,
    MIN_LABELS,
    MIXTURE,
    OWN,
    CandidateScore,
    Complexity,
    PoolSpec,
    _least_complexity,
    _shares,
    candidates,
    select,
)
from predbayes.predictive.tuning import tune_weights
from predbayes.seeding import generator
from predbayes.summand import fold
from tests.core.oracles import RANDOM, prior_for, random_categorical, random_targets

FAMILIES = [Categorical, Gaussian]
RECORDED = Path(__file__).with_name("candidates.json")
FEW = {
    "beta",
    "mixture, tempered",
    "mixture, product",
    "log pool, tempered",
    "mixture, product, entropy",
}
TEMPERED = PoolSpec("mixture, tempered", free=("mixture",))


def draw(truth, rng):
    return torch.multinomial(truth.moments(), 1, generator=rng).squeeze(-1)


def lift(client, rows=10.0, class_rows=None, prior=None):
    categorical = isinstance(client, Categorical)
    terms = CATEGORICAL_TERMS if categorical else GAUSSIAN_TERMS
    return PredictiveSum.of(client, rows, class_rows=class_rows, prior=prior, terms=terms)


def kept_apart(clients, **options):
    """A sum with each client as a component, too, as where uploads are kept apart."""
    total = fold(lift(client, **options) for client in clients)
    names = [f"site {k}" for k in range(len(clients))]
    for name, client in zip(names, clients, strict=True):
        total = total.with_component(name, client)
    return total, names


def any_problem(family, rng, num_rows=60, num_clients=3):
    prior = prior_for(family) if family is Gaussian else None
    clients = [RANDOM[family](rng, num_rows=num_rows, scale=1.0) for _ in range(num_clients)]
    if family is Gaussian:
        clients = [Gaussian(p.mean, p.var, p.var / (2 + k)) for k, p in enumerate(clients)]
    total = fold(lift(p, class_rows=torch.arange(4) + 1, prior=prior) for p in clients)
    return total, random_targets(family, rng, num_rows=num_rows)


def names_of(specs):
    return {spec.name for spec in specs}


class _Complete:
    """Stands for a sum that has every component of a family."""

    def __init__(self, family, *, product="product"):
        self.family = family
        names = {"mixture", "product", "own", "marginal", "head", "site:a", "site:b"}
        names |= {term.name for term in selection.TERMS[family]} | {product}
        self.components = dict.fromkeys(names - ({"robust"} - {product}))


class TestTheTable:
    """Later results are comparable only if candidates and their order stay as they are."""

    @pytest.mark.parametrize("family", FAMILIES)
    def test_it_has_the_pools_on_record_in_their_order(self, family):
        recorded = json.loads(RECORDED.read_text())
        product = "product" if family is Categorical else "robust"
        specs = candidates(_Complete(family, product=product), ["site:a", "site:b"])
        found = [
            [s.name, int(s.complexity), s.base, [*s.free], [*s.by_class], s.interpolates]
            for s in specs
        ]
        assert found == recorded["classes" if family is Categorical else "numbers"]


class TestCandidates:
    def test_sites_that_do_not_count_classes_take_their_candidates_away(self, rng):
        clients = [random_categorical(rng) for _ in range(2)]
        total, names = kept_apart(clients)
        assert names_of(candidates(total, names)) == {"mixture", "log pool"} | FEW

    @pytest.mark.parametrize("family", FAMILIES)
    def test_every_candidate_can_be_tuned_and_pooled(self, family, rng):
        total, names = kept_apart(
            [RANDOM[family](rng, num_rows=40, scale=1.0) for _ in range(2)],
            class_rows=torch.ones(4),
        )
        total = total.with_component(OWN, RANDOM[family](rng, num_rows=40))
        y = random_targets(family, rng, num_rows=40)
        for spec in candidates(total, names):
            tuned = spec.tune(total, y)
            assert nll(total.pool(tuned.weights), y) == pytest.approx(tuned.nll, abs=1e-9)


class TestManyWeights:
    def problem(self, rng):
        clients = [random_categorical(rng, num_rows=100) for _ in range(2)]
        total, names = kept_apart(clients, class_rows=torch.ones(4))
        return total, candidates(total, names), random_targets(Categorical, rng, num_rows=100)

    @pytest.mark.parametrize("most", [1, 3, 12])
    def test_directions_that_do_not_fit_in_memory_are_tuned_on_fewer_rows(
        self, most, rng, monkeypatch, caplog
    ):
        """100 rows of 4 classes and one direction for each weight; none is left out."""
        total, specs, y = self.problem(rng)
        monkeypatch.setattr(selection, "_MAX_ELEMENTS", 100 * 4 * most)
        choice = select(total, y, specs, rng=generator(0))
        assert [found.name for found in choice.scores] == [spec.name for spec in specs]
        for found, spec in zip(choice.scores, specs, strict=True):
            fits = 100 * most // max(1, spec.num_weights(4))
            assert found.num_tuned == min(100, max(MIN_LABELS, fits))
            assert spec.tune(total, y).num_labels == found.num_tuned
            assert (f"{spec.name!r} on {found.num_tuned}" in choice.reason) is (
                found.num_tuned < 100
            )
        assert "tuned on some of 100 labelled rows" in caplog.text

    def test_the_rows_are_some_of_all(self, rng, monkeypatch):
        """At random, not the first ones, and the same each time."""
        total, specs, y = self.problem(rng)
        spec = specs[-1]
        monkeypatch.setattr(selection, "_MAX_ELEMENTS", 4 * 40 * spec.num_weights(4))
        tuned = spec.tune(total, y)
        assert tuned == spec.tune(total, y)
        assert tuned.num_labels == 40
        assert tuned != spec.tune(total[:40], y[:40])

    def test_what_cannot_be_tried_is_said(self, rng, monkeypatch, caplog):
        total, specs, y = self.problem(rng)
        monkeypatch.setattr(selection, "_MAX_WEIGHTS", 7)
        choice = select(total, y, specs, rng=generator(0))
        assert choice.left_out == ("a weight per site and class",)
        assert "more than 7 weights: 'a weight per site and class'" in choice.reason
        assert "not tried" in caplog.text


class TestFavour:
    """A few labels do not outvote the gated mixture; many do; nor is it favoured in distrust."""

    def total(self, rng, num_rows, ratio=1.0):
        """The mixture is the truth; the gated mixture was made to differ from it."""
        truth = random_categorical(rng, num_rows=num_rows, scale=1.0)
        gate = torch.full((num_rows,), ratio).log()
        total = PredictiveSum.of(truth, 10, gate=gate, terms=(gated(),))
        other = Categorical.from_natural(0.7 * truth.natural())
        specs = [MIXTURE, GATED_MIXTURE, replace(MIXTURE, name="other", base="other")]
        return total.with_component("other", other), draw(other, rng), specs

    def share(self, rng, num_rows, ratio=1.0):
        total, y, specs = self.total(rng, num_rows, ratio)
        scores = select(total, y, specs, rng=generator(0)).scores
        return sum(found.share for found in scores if found.name != "other")

    def test_few_labels_leave_it_most_of_the_pool(self, rng):
        assert self.share(rng, 40) > 0.5

    def test_many_labels_outvote_it(self, rng):
        assert self.share(rng, 4000) < 0.05

    def test_it_is_not_favoured_where_gates_cannot_be_trusted(self, rng):
        state = rng.get_state()
        trusted = self.share(rng, 120)
        rng.set_state(state)
        assert self.share(rng, 120, ratio=0.01) < trusted


class TestDuplicates:
    """A candidate under several names has one vote."""

    def test_they_leave_the_pool_as_it_is(self, rng):
        truth = random_categorical(rng, num_rows=60, scale=1.0)
        other = random_categorical(rng, num_rows=60, scale=1.0)
        total, y = fold([lift(truth), lift(other)]), draw(truth, rng)
        total = total.with_component("one", truth).with_component("two", other)
        one, two = PoolSpec("one", base="one"), PoolSpec("two", base="two", free=("two",))
        alone = select(total, y, [one, two, TEMPERED], rng=generator(0))
        again = [replace(two, name=f"copy {k}") for k in range(20)]
        crowd = select(total, y, [one, two, *again, TEMPERED], rng=generator(0))
        assert min(found.share for found in alone.scores) > 0.001
        assert crowd.tuned.weights == pytest.approx(alone.tuned.weights)
        torch.testing.assert_close(crowd.losses, alone.losses)
        shares = {found.name: found.share for found in crowd.scores}
        assert shares["two"] == pytest.approx(shares["copy 7"])


@pytest.mark.parametrize("family", FAMILIES)
class TestTooFewLabels:
    @pytest.mark.parametrize("num_labels", [0, 1, 29])
    def test_it_is_the_mixture_with_a_warning(self, family, num_labels, rng, caplog):
        total, y = any_problem(family, rng)
        total, y = total[:num_labels], y[:num_labels]
        choice = select(total, y, candidates(total), rng=rng)
        losses = -total.mixture().log_prob(y)
        torch.testing.assert_close(choice.losses, losses, check_dtype=False)
        assert choice.spec is MIXTURE
        assert choice.tuned.weights == {"mixture": 1.0}
        assert choice.tuned.nll == pytest.approx(float(losses.mean()), nan_ok=True)
        assert choice.tuned.num_labels == num_labels
        assert choice.scores == ()
        assert f"{num_labels} labelled rows are too few" in choice.reason
        assert "the pool is the mixture" in caplog.text
        assert "30 are needed" in caplog.text

    def test_so_it_is_with_labels_that_are_all_the_same(self, family, rng):
        total, y = any_problem(family, rng)
        choice = select(total, torch.full_like(y, 1), candidates(total), rng=rng)
        assert choice.tuned.weights == {"mixture": 1.0}
        assert choice.scores == ()
        assert f"the labels of all {len(y)} labelled rows are the same" in choice.reason

    def test_as_many_as_are_needed_are_enough(self, family, rng, caplog):
        total, y = any_problem(family, rng, num_rows=MIN_LABELS)
        choice = select(total, y, candidates(total), rng=rng)
        assert len(choice.scores) == len(candidates(total))
        assert not caplog.text


def score(complexity, nll, standard_error=0.0, best=1.0):
    return CandidateScore("", Complexity(complexity), 0, nll, nll - best, standard_error)


class TestOneStandardErrorRule:
    def test_the_best_of_a_complexity_counts_not_the_widest_error(self):
        """No complexity is stayed in because one of its losers is uncertain."""
        far = [score(0, 1.3, 9.0), score(0, 1.2, 0.1), score(1, 1.0)]
        near = [score(0, 1.3, 0.1), score(0, 1.2, 0.3), score(1, 1.0)]
        for order in itertools.permutations(range(3)):
            assert _least_complexity([far[k] for k in order]) == Complexity.FEW_WEIGHTS
            assert _least_complexity([near[k] for k in order]) == Complexity.UNTUNED


class TestShares:
    """How much of the pool each spec is, E_w softmax(-sum_i w_i loss_i)."""

    def test_of_constant_differences_they_are_a_softmax_of_sums(self, rng):
        """Whatever the weights of the rows, they sum to the number of rows."""
        row = torch.rand(50, generator=rng, dtype=torch.float64)
        behind = torch.tensor([0.0, 0.01, 0.03]).double()
        shares = _shares([row + gap for gap in behind], [True] * 3, rng)
        assert shares == pytest.approx((-50 * behind).softmax(0).tolist())

    def test_rows_are_weighed_anew_in_each_draw(self, rng):
        """By flat Dirichlet weights, drawn here with numpy."""
        first, gap = torch.randn(2, 40, generator=rng, dtype=torch.float64)
        losses = [first, first + gap - gap.mean() + 0.1, first - gap + gap.mean()]
        weights = 40 * np.random.default_rng(0).dirichlet(np.ones(40), 20_000)
        draws = torch.from_numpy(-weights @ torch.stack(losses).numpy().T)
        expected = draws.softmax(1).mean(0).tolist()
        # The standard error of a mean of 500 numbers between 0 and 1 is .022 at most.
        assert _shares(losses, [True] * 3, rng) == pytest.approx(expected, abs=0.09)
        unweighed = -torch.stack(losses).sum(1)
        assert expected[1] - float(unweighed.softmax(0)[1]) > 0.15  # they matter

    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_pool_is_the_candidates_pools_averaged_log_linearly(self, family, rng):
        """By their shares; a weight that a spec does not have is zero there."""
        total, y = any_problem(family, rng)
        choice = select(total, y, candidates(total), rng=generator(0))
        used = [
            (found.share, spec)
            for found, spec in zip(choice.scores, candidates(total), strict=True)
            if found.share
        ]
        assert len(used) > 1
        assert sum(share for share, _ in used) == pytest.approx(1)
        pools = [share * total.pool(spec.tune(total, y).weights).natural() for share, spec in used]
        expected = family.from_natural(sum(pools))
        pooled = total.pool(choice.tuned.weights)
        torch.testing.assert_close(pooled.natural(), expected.natural(), rtol=1e-6, atol=1e-6)
        assert choice.tuned.nll == pytest.approx(nll(pooled, y))
        assert choice.tuned.num_labels == len(y)


class TestScores:
    def by_hand(self, total, y, specs, seed, num_folds):
        """Each row's pool and loss by weights tuned on the other parts, written out."""
        folds = torch.randperm(len(y), generator=generator(seed)) % num_folds
        losses = torch.zeros(len(specs), len(y)).double()
        natural = torch.zeros(len(specs), *total.component("mixture").shape).double()
        for index, spec in enumerate(specs):
            for fold_index in range(num_folds):
                rest = torch.tensor([i for i in range(len(y)) if folds[i] != fold_index])
                weights = spec.tune(total[rest], y[rest]).weights
                for row in torch.arange(len(y))[folds == fold_index].tolist():
                    pooled = total[row : row + 1].pool(weights)
                    losses[index, row] = -pooled.log_prob(y[row : row + 1])
                    natural[index, row] = pooled.natural()
        return losses, natural

    def variance_if_right(self, family, low, high):
        """Of log(p_high / p_low) under p_low, averaged over rows."""
        if family is Categorical:
            probs, ratio = low.exp(), high - low
            return float(((probs * ratio**2).sum(1) - (probs * ratio).sum(1) ** 2).mean())
        mean, var = -low[:, 0] / (2 * low[:, 1]), -1 / (2 * low[:, 1])
        a, b = (high - low).T  # of a y + b y², up to a constant
        return float(((a + 2 * b * mean) ** 2 * var + 2 * b**2 * var**2).mean())

    @pytest.mark.parametrize("family", FAMILIES)
    def test_they_are_those_of_cross_validation_and_differences_are_paired(self, family, rng):
        total, y = any_problem(family, rng, num_rows=31)
        specs = [MIXTURE, PoolSpec("beta", interpolates=True), TEMPERED]
        choice = select(total, y, specs, num_folds=4, rng=generator(7))
        losses, natural = self.by_hand(total, y, specs, seed=7, num_folds=4)
        best = int(losses.mean(1).argmin())
        for found, spec, own, low in zip(choice.scores, specs, losses, natural, strict=True):
            gap = (own - losses[best]).tolist()
            mean = sum(gap) / 31
            of_sample = sum((g - mean) ** 2 for g in gap) / 30
            variance = max(of_sample, self.variance_if_right(family, low, natural[best]))
            assert (found.name, found.complexity) == (spec.name, spec.complexity)
            assert found.num_weights == spec.num_weights(4)
            assert found.nll == pytest.approx(float(own.mean()))
            assert found.behind == pytest.approx(mean, abs=1e-9)
            assert found.standard_error == pytest.approx(math.sqrt(variance / 31), abs=1e-9)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_losses_are_those_of_the_average_pool_held_out(self, family, rng):
        """The specs' natural coordinates at each row, under weights tuned without it, averaged."""
        total, y = any_problem(family, rng, num_rows=31)
        specs = [TEMPERED, PoolSpec("several", free=("mixture", "product"))]
        choice = select(total, y, specs, num_folds=4, rng=generator(7))
        shares = torch.tensor([found.share for found in choice.scores]).double()
        assert bool((shares > 0).all())
        _, natural = self.by_hand(total, y, specs, seed=7, num_folds=4)
        averaged = family.from_natural((shares.view(-1, 1, 1) * natural).sum(0))
        torch.testing.assert_close(choice.losses, -averaged.log_prob(y), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize(("num_rows", "selected"), [(40, False), (4000, True)])
    def test_errors_that_did_not_happen_count_until_they_should_have(self, num_rows, selected):
        """A pool that gives them .015; a sharper one that was never wrong either."""
        y = torch.arange(num_rows) % 4
        right = torch.nn.functional.one_hot(y, 4).double()
        shy, sharp = (Categorical.from_moments(e / 4 + (1 - e) * right) for e in (0.02, 0.001))
        total = lift(shy).with_component("sharp", sharp)
        specs = [MIXTURE, PoolSpec("sharp", base="sharp")]
        found = select(total, y, specs, rng=generator(0)).scores[0]
        assert found.behind == pytest.approx(math.log((1 - 0.00075) / (1 - 0.015)))
        assert (found.behind > found.standard_error) is selected

    def test_the_generator_decides_scores_and_shares_and_no_candidates_weights(self, rng):
        """One seed, one choice, whatever else was drawn; another, but the same weights."""
        total, y = any_problem(Categorical, rng)
        torch.manual_seed(1)
        first = select(total, y, candidates(total), rng=generator(0))
        torch.manual_seed(2)
        assert select(total, y, candidates(total), rng=generator(0)) == first
        one, other = (select(total, y, [TEMPERED], rng=generator(seed)) for seed in (0, 1))
        assert one.scores != other.scores
        assert one.tuned == other.tuned

    def test_the_chosen_candidate_is_tuned_on_all_rows(self, rng):
        total, y = any_problem(Categorical, rng)
        tuned = select(total, y, [TEMPERED], rng=rng).tuned
        assert tuned.num_labels == len(y)
        assert tuned == tune_weights(total, y, components=["mixture"], prior_std=1.0)
        assert set(tuned.profiles) == {"mixture"}
        several = PoolSpec("", free=("mixture", "product"))
        assert select(total, y, [several], rng=rng).tuned.profiles == {}


class TestChoice:
    def overconfident(self, seed, num_rows=300):
        """The truth to the third power: a temperature mends it, and nothing else is needed."""
        rng = generator(seed, "overconfident")
        truth = random_categorical(rng, num_rows=num_rows, scale=1.0)
        sure = Categorical.from_natural(3 * truth.natural())
        return fold(lift(sure, class_rows=torch.ones(4)) for _ in range(3)), draw(truth, rng)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_pool_that_is_truly_better_is_chosen(self, seed):
        total, y = self.overconfident(seed)
        choice = select(total, y, candidates(total), rng=generator(seed))
        assert choice.spec.complexity == Complexity.FEW_WEIGHTS
        assert choice.tuned.nll < nll(total.mixture(), y) - 0.2

    def test_where_nothing_is_to_gain_the_ground_is_kept(self):
        """The mixture is the truth; what others gain on the rows is noise."""
        chosen = []
        for seed in range(10):
            rng = generator(seed, "truth")
            truth = random_categorical(rng, num_rows=100, scale=1.0)
            total, names = kept_apart([truth] * 3, class_rows=torch.ones(4))
            y = draw(truth, rng)
            scores = select(total, y, candidates(total, names), rng=rng).scores
            chosen.append(max(found.complexity for found in scores if found.share))
        assert chosen.count(Complexity.UNTUNED) >= 9

    def test_a_weight_per_site_finds_the_one_that_knows(self, rng):
        """Two sites talk nonsense, and with certainty."""
        truth = random_categorical(rng, num_rows=400, scale=3.0)
        others = [random_categorical(rng, num_rows=400, scale=6.0) for _ in range(2)]
        total, names = kept_apart([truth, *others], class_rows=torch.ones(4))
        choice = select(total, draw(truth, rng), candidates(total, names), rng=rng)
        assert choice.spec.complexity == Complexity.SITES
        assert choice.tuned.weights["site 0"] > 5 * abs(choice.tuned.weights["site 1"])

    @pytest.mark.parametrize(("num_rows", "selected"), [(30, False), (800, True)])
    def test_weights_by_class_find_who_knows_which_given_labels(self, num_rows, selected, rng):
        """Each site knows two classes of four; of the others it says what comes to its mind."""
        truth = random_categorical(rng, num_rows=num_rows, scale=3.0).natural()
        noise = 3 * torch.randn(2, num_rows, 4, generator=rng, dtype=torch.float64)
        knows = torch.tensor([[True, True, False, False], [False, False, True, True]])
        clients = [
            Categorical.from_natural(torch.where(k, truth, e))
            for k, e in zip(knows, noise, strict=True)
        ]
        total, names = kept_apart(clients, class_rows=torch.ones(4))
        y = draw(Categorical.from_natural(truth), rng)
        chosen = select(total, y, candidates(total, names), rng=rng).spec
        assert (chosen.complexity == Complexity.CLASSES) is selected

    def test_lower_complexities_have_theirs(self):
        """What is surely behind, by .02 on each of 50 rows, is e times less likely."""
        rng = generator(0, "lower")
        truth = random_categorical(rng, num_rows=50, scale=0.5)
        total, y = lift(truth), draw(truth, rng)
        probs, right = truth.moments(), torch.nn.functional.one_hot(y, 4).bool()
        lower = probs * math.exp(-0.02)
        rest = probs * ((1 - lower[right]) / (1 - probs[right])).unsqueeze(-1)
        probs = torch.where(right, lower, rest)
        total = total.with_component("worse", Categorical.from_moments(probs))
        specs = [
            PoolSpec("worse", Complexity.UNTUNED, "worse"),
            PoolSpec("mixture", Complexity.FEW_WEIGHTS),
        ]
        choice = select(total, y, specs, rng=generator(0))
        assert choice.reason.endswith("with a few weights")
        shares = [found.share for found in choice.scores]
        assert shares == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
        assert choice.tuned.weights == pytest.approx(
            dict(zip(("worse", "mixture"), shares, strict=True))
        )

    def test_higher_complexities_have_no_share(self):
        """Nor has what they gain by overfitting any influence on the weights."""
        several = PoolSpec("several", Complexity.SITES, free=("mixture", "product", "entropy"))
        total, y = self.overconfident(1)
        choice = select(total, y, [MIXTURE, TEMPERED, several], rng=generator(0))
        assert choice.scores[2].share == 0
        assert choice.tuned.weights == TEMPERED.tune(total, y).weights


class TestImproperPools:
    """A Gaussian term whose precision is negative somewhere."""

    def problem(self, rng, where):
        shift = torch.zeros(60, 2).double()
        shift[where, 1] = 100.0
        odd = Term("odd", "natural", lambda client: 1.0, shift=lambda client: shift)
        clients = [RANDOM[Gaussian](rng, num_rows=60, scale=1.0) for _ in range(3)]
        total = fold(PredictiveSum.of(c, terms=[odd]) for c in clients)
        return total, random_targets(Gaussian, rng, num_rows=60)

    ODD = (
        PoolSpec("odd", Complexity.UNTUNED, base="odd"),
        PoolSpec("odd, tempered", base="odd", free=("odd",)),
    )

    @pytest.mark.parametrize("where", [slice(0, 60), slice(17, 18)], ids=["all rows", "one row"])
    def test_they_are_never_chosen_and_never_raise(self, where, rng):
        total, y = self.problem(rng, where)
        choice = select(total, y, [*self.ODD, TEMPERED], rng=rng)
        assert choice.spec is TEMPERED
        for found in choice.scores[:2]:
            assert found.nll == found.behind == math.inf
        assert math.isfinite(choice.scores[2].nll)

    def test_where_none_is_proper_that_is_said(self, rng):
        total, y = self.problem(rng, slice(0, 60))
        with pytest.raises(PoolError, match="no pool is a distribution"):
            select(total, y, self.ODD, rng=rng)

    def test_elsewhere_the_same_candidate_may_be_chosen(self, rng):
        """A shift of nothing: it is the rows that were at fault."""
        total, y = self.problem(rng, slice(0, 0))
        assert select(total, y, self.ODD, rng=rng).spec in self.ODD

    @pytest.mark.parametrize("seed", range(5))
    def test_what_is_chosen_is_proper_at_rows_that_were_not_seen(self, seed):
        """Elsewhere the sites are much less certain than on the labelled rows, each in its way."""
        rng = generator(seed)
        scale = torch.cat([torch.ones(40), 10 * torch.rand(40, generator=rng)])
        clients = []
        for _ in range(3):
            p = RANDOM[Gaussian](rng, num_rows=80, scale=1.0)
            order = torch.cat([torch.arange(40), 40 + torch.randperm(40, generator=rng)])
            clients.append(Gaussian(p.mean, scale[order] * p.var + 0.01, p.var / 100))
        total, names = kept_apart(clients)
        y = random_targets(Gaussian, rng, num_rows=40)
        choice = select(total[:40], y, candidates(total[:40], names), rng=rng)
        assert bool((total.pool(choice.tuned.weights).var > 0).all())
        for spec in candidates(total[:40], names):
            weights = spec.tune(total[:40], y).weights
            assert min(weights.values()) >= 0
            assert Gaussian.is_proper(total.pool(weights).natural())
