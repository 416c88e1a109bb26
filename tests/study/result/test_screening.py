"""Who is found out, who is left out, and that honest sites are neither."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import Contribution
from predbayes.predictive.selection import MARGINAL, MIN_LABELS, OWN, PoolSpec, candidates, select
from predbayes.seeding import generator
from predbayes_study.plan.schema import Plan
from predbayes_study.result import copies, screening
from predbayes_study.result.copies import copies_among, hellinger
from predbayes_study.result.influence import PoolLosses
from predbayes_study.result.screening import agreement, screen, screen_sites
from tests.core.oracles import assert_variance

NUM_ROWS, NUM_CLASSES, NUM_SITES = 200, 4, 5
QUICK = (PoolSpec("mixture, tempered", free=("mixture",)),)
PRIOR = {Categorical: None, Gaussian: Gaussian(torch.zeros(1).double(), torch.ones(1).double())}
FAMILIES = [Categorical, Gaussian]


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def truth(family, rng, num_rows=NUM_ROWS):
    """Labels, and what can be known about them."""
    if family is Gaussian:
        signal = randn(rng, num_rows)
        return (signal + 0.5 * randn(rng, num_rows)) / math.sqrt(1.25), signal
    signal = 2.5 * randn(rng, num_rows, NUM_CLASSES)
    return torch.multinomial(signal.softmax(1), 1, generator=rng).squeeze(1), signal


def honest(family, signal, rng, error=0.7, site="", num_rows=100.0):
    """A site that knows the signal, with an error of its own."""
    noisy = signal + error * randn(rng, *signal.shape)
    if family is Gaussian:
        predictive = Gaussian(noisy / math.sqrt(1.25), torch.full_like(noisy, 0.3 + error**2))
        return Contribution(site, predictive, num_rows)
    counts = torch.full((NUM_CLASSES,), num_rows / NUM_CLASSES)
    return Contribution(site, Categorical.from_natural(noisy), num_rows, counts)


def study(family, seed, num_rows=NUM_ROWS, num_sites=NUM_SITES):
    rng = generator(seed, "study")
    targets, signal = truth(family, rng, num_rows)
    sites = [honest(family, signal, rng, site=f"site {k}") for k in range(num_sites)]
    return sites, targets


def replaced(site, predictive):
    return Contribution(site.site, predictive, site.num_rows, site.class_rows)


def wrong(predictive):
    if isinstance(predictive, Gaussian):
        return Gaussian(-predictive.mean, predictive.var)
    return Categorical(predictive.log_probs.roll(1, dims=1))


def wrong_and_sure(predictive):
    if isinstance(predictive, Gaussian):
        return Gaussian(-predictive.mean, predictive.var / 100)
    return Categorical.from_natural(10 * predictive.log_probs.roll(1, dims=1))


def of_other_rows(predictive):
    return predictive[torch.arange(len(predictive)).roll(7)]


def always_the_same(predictive):
    return predictive[torch.zeros(len(predictive), dtype=torch.long)]


def with_noise(predictive, rng):
    if isinstance(predictive, Gaussian):
        return Gaussian(predictive.mean + 0.02 * randn(rng, len(predictive)), predictive.var)
    noise = 0.1 * randn(rng, *predictive.log_probs.shape)
    return Categorical.from_natural(predictive.log_probs + noise)


POISONS = {
    wrong: {"contradicts"},
    wrong_and_sure: {"contradicts"},
    of_other_rows: {"uninformative"},
    always_the_same: {"constant"},
}


def screened(family, sites, targets, **options):
    losses = PoolLosses(targets, seed=0, prior=PRIOR[family], specs=QUICK)
    return screen(sites, targets, losses=losses, **options)


def kinds(found):
    return {finding.kind for finding in found.findings}


class TestAgreement:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_what_is_right_agrees_and_what_is_reversed_does_not(self, family, rng):
        targets = truth(family, rng)[0]
        if family is Gaussian:
            targets = targets.clamp(-2, 2)  # none so far out that it would be bounded
            right = Gaussian(targets, torch.full_like(targets, 0.1))
            against = wrong(right)
        else:
            one_hot = torch.nn.functional.one_hot(targets, NUM_CLASSES).double()
            shares = one_hot.mean(0)
            # Along the direction that has the largest score: 1 / share in the right class.
            right = Categorical.from_natural(0.1 * one_hot / shares)
            against = Categorical.from_natural(-0.1 * one_hot / shares)
        freedom = 1 if family is Gaussian else NUM_CLASSES - 1
        score, correlation = agreement(right, targets)
        assert correlation == pytest.approx(1.0, abs=1e-6)
        assert score == pytest.approx(math.sqrt(NUM_ROWS * freedom), rel=1e-6)
        assert agreement(against, targets)[1] == pytest.approx(-1.0, abs=1e-6)

    def test_it_is_the_score_by_hand(self, rng):
        targets = torch.randint(3, (20,), generator=rng)
        predictive = Categorical.from_natural(randn(rng, 20, 3))
        table = [[max(a, math.log(0.01)) for a in row] for row in predictive.log_probs.tolist()]
        rates = [sum(column) / 20 for column in zip(*table, strict=True)]
        shares = [float((targets == c).double().mean()) for c in range(3)]
        score = variance = 0.0
        for row, label in zip(table, targets.tolist(), strict=True):
            varying = [a - rate for a, rate in zip(row, rates, strict=True)]
            mean = sum(p * a for p, a in zip(shares, varying, strict=True))
            score += varying[label] - mean
            variance += sum(p * (a - mean) ** 2 for p, a in zip(shares, varying, strict=True))
        assert agreement(predictive, targets)[0] == pytest.approx(score / math.sqrt(variance))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_it_is_a_standard_normal_for_who_knows_nothing(self, family, rng):
        """Whatever the site's own base rates and its certainty are."""
        scores = []
        for _ in range(400):
            targets = truth(family, rng, 100)[0]
            if family is Gaussian:
                predictive = Gaussian(3 + randn(rng, 100), torch.rand(100, generator=rng) + 0.01)
            else:
                base = torch.tensor([3.0, 0.0, -3.0, 0.0]).double()
                predictive = Categorical.from_natural(base + 2 * randn(rng, 100, NUM_CLASSES))
            scores.append(agreement(predictive, targets)[0])
        assert_variance(torch.tensor(scores).numpy(), 1.0)

    def test_one_overconfident_row_does_not_decide(self, rng):
        targets, signal = truth(Categorical, rng)
        before = agreement(Categorical.from_natural(signal), targets)[0]
        signal[0] = 0
        signal[0, targets[0]] = -1000
        assert agreement(Categorical.from_natural(signal), targets)[0] > 0.9 * before

    @pytest.mark.parametrize("family", FAMILIES)
    def test_where_nothing_can_be_said_it_is_zero(self, family, rng):
        sites, targets = study(family, 0)
        predictive = sites[0].predictive
        assert agreement(always_the_same(predictive), targets) == (0.0, 0.0)
        assert agreement(predictive, torch.ones_like(targets)) == (0.0, 0.0)
        assert agreement(predictive[:0], targets[:0]) == (0.0, 0.0)


class TestDistance:
    def test_it_is_hellingers(self, rng):
        one, other = (Categorical.from_natural(randn(rng, 5, 3)) for _ in range(2))
        overlap = (one.moments() * other.moments()).sqrt().sum(1)
        torch.testing.assert_close(hellinger(one, other), 1 - overlap)

    def test_it_is_hellingers_of_gaussians(self):
        one = Gaussian(torch.tensor([0.3]).double(), torch.tensor([0.5]).double())
        other = Gaussian(torch.tensor([-0.4]).double(), torch.tensor([2.0]).double())
        grid = torch.linspace(-30, 30, 100_001).double().unsqueeze(1)
        densities = [
            p.log_prob(grid.squeeze(1)) for p in (one[[0] * 100_001], other[[0] * 100_001])
        ]
        overlap = torch.trapezoid((0.5 * (densities[0] + densities[1])).exp(), grid.squeeze(1))
        assert float(hellinger(one, other)) == pytest.approx(1 - float(overlap), abs=1e-8)


class TestCopies:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("seed", range(5))
    def test_honest_sites_have_none(self, family, seed):
        assert copies_among(study(family, seed)[0]) == {}

    def test_three_of_a_kind_are_found(self):
        sites, _ = study(Categorical, 0)
        sites[1:3] = [replaced(site, sites[3].predictive) for site in sites[1:3]]
        found = copies_among(sites)
        assert found["site 1"] == ("site 2", "site 3")
        assert found.keys() == {"site 1", "site 2", "site 3"}

    def test_easy_tasks_make_no_copies(self, rng):
        """Everybody is right and sure, so that all distances are tiny."""
        targets = torch.randint(NUM_CLASSES, (NUM_ROWS,), generator=rng)
        signal = 30.0 * torch.nn.functional.one_hot(targets, NUM_CLASSES)
        sites = [
            honest(Categorical, signal, rng, site=f"site {k}", error=1.0) for k in range(NUM_SITES)
        ]
        distances = copies._distances([site.predictive for site in sites])
        assert float(distances.max()) < 1e-6
        assert copies_among(sites) == {}

    def test_many_rows_are_near_each_other_by_right(self, rng):
        """The same predictions from sites that say they had few rows were copied."""
        _, signal = truth(Categorical, rng)
        rows = [40_000.0, 40_000.0, 400.0, 400.0, 400.0]
        sites = [
            honest(Categorical, signal, rng, 20 / math.sqrt(n), f"site {k}", n)
            for k, n in enumerate(rows)
        ]
        assert copies_among(sites) == {}
        alike = [Contribution(site.site, site.predictive, 400.0) for site in sites]
        assert copies_among(alike) == {"site 0": ("site 1",), "site 1": ("site 0",)}

    @pytest.mark.slow("a rate over a hundred studies")
    @pytest.mark.parametrize(("num_sites", "most"), [(3, 0.06), (5, 0.1), (8, 0.16)])
    def test_small_models_are_seldom_taken_for_copies(self, num_sites, most):
        """Of five numbers all may be alike by chance; 300 draws have 1.7, 4.3 and 9.3 %."""
        named = 0
        for seed in range(100):
            rng = np.random.default_rng(seed)
            inputs = rng.normal(size=(300, 4))
            named += bool(copies_among([_logistic(k, inputs, rng) for k in range(num_sites)]))
        print(f"{named} of 100")  # noqa: T201 - pytest -rP shows it
        assert named <= 100 * most

    def test_of_two_sites_only_exact_copies_can_be_told(self, rng):
        sites = study(Categorical, 0)[0][:2]
        noisy = replaced(sites[1], with_noise(sites[0].predictive, rng))
        exact = replaced(sites[1], sites[0].predictive)
        assert copies_among([sites[0], noisy]) == {}
        assert copies_among([sites[0], exact]).keys() == {"site 0", "site 1"}

    def test_constant_sites_are_nobodys_copies(self):
        """Two hospitals that have seen healthy people only need not know of each other."""
        sites, _ = study(Categorical, 0)
        sites[:2] = [replaced(s, always_the_same(sites[0].predictive)) for s in sites[:2]]
        assert copies_among(sites) == {}
        assert copies_among([]) == {}


def _logistic(k, inputs, rng):
    """A site of 240 rows with a logistic regression of four columns."""
    from sklearn.linear_model import LogisticRegression

    rows = rng.normal(size=(240, 4))
    odds = rows @ np.array([1.0, 0.5, -0.5, 0.8])
    model = LogisticRegression().fit(rows, rng.random(240) < 1 / (1 + np.exp(-odds)))
    log_probs = torch.tensor(model.predict_log_proba(inputs))
    return Contribution(f"site {k}", Categorical(log_probs), 240.0)


class TestPoisons:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.__name__)
    def test_the_poisoned_site_is_named_and_left_out(self, family, poison):
        sites, targets = study(family, 0)
        sites[2] = replaced(sites[2], poison(sites[2].predictive))
        found = screened(family, sites, targets)
        assert kinds(found["site 2"]) - {"harmful"} == POISONS[poison]
        assert [name for name, one in found.items() if one.leave_out] == ["site 2"]
        assert not any(one.findings for name, one in found.items() if name != "site 2")

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("noisy", [False, True])
    def test_copies_are_named_and_count_once_at_most(self, family, noisy, rng):
        sites, targets = study(family, 1)
        copied = sites[3].predictive
        sites[1] = replaced(sites[1], with_noise(copied, rng) if noisy else copied)
        found = screened(family, sites, targets)
        assert {name for name, one in found.items() if kinds(one) == {"copy"}} == {
            "site 1",
            "site 3",
        }
        assert "site 3" in found["site 1"].findings[0].text
        assert sum(one.leave_out for one in found.values()) <= 1
        assert not any(found[f"site {k}"].leave_out for k in (0, 2, 4))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_honest_sites_are_not_accused(self, family):
        """The rate is .01 for all tests of harm in a study; the others are rarer."""
        accused = 0
        for seed in range(6):
            found = screened(family, *study(family, seed))
            accused += sum(bool(one.findings or one.leave_out) for one in found.values())
        assert accused == 0

    def test_skewed_sites_stay(self, rng):
        """Each knows two classes of ten, and by itself is worse than knowing nothing."""
        targets = torch.randint(10, (NUM_ROWS,), generator=rng)
        signal = 4 * torch.nn.functional.one_hot(targets, 10) + randn(rng, NUM_ROWS, 10)
        sites = []
        for k in range(NUM_SITES):
            own = torch.zeros(10, dtype=torch.bool)
            own[2 * k : 2 * k + 2] = True
            logits = torch.where(own, signal + randn(rng, NUM_ROWS, 10), randn(rng, 10) - 4)
            counts = torch.where(own, 190.0, 2.5)
            sites.append(Contribution(f"site {k}", Categorical.from_natural(logits), 400, counts))
        assert all(nll(site.predictive, targets) > math.log(10) for site in sites)
        found = screened(Categorical, sites, targets)
        assert not any(one.findings or one.leave_out for one in found.values())
        assert all(one.influence.value > 0 for one in found.values())

    @pytest.mark.parametrize("family", FAMILIES)
    def test_order_of_contributions_is_irrelevant(self, family):
        sites, targets = study(family, 3)
        sites[0] = replaced(sites[0], wrong(sites[0].predictive))
        sites[4] = replaced(sites[4], sites[1].predictive)
        first, second = (screened(family, order, targets) for order in (sites, sites[::-1]))
        assert list(first) == sorted(first)
        assert first == second


class Gaps:
    """Losses such that leaving a site out has the effect that is asked for, in standard errors."""

    def __init__(self, scores, num_rows=NUM_ROWS, scale=0.01):
        wave = torch.tensor([1.0, -1.0]).double().repeat(num_rows // 2)
        error = float(wave.std()) / math.sqrt(num_rows)
        self.gaps = {name: scale * (wave + error * score) for name, score in scores.items()}
        self.num_rows, self.calls = num_rows, 0

    def __call__(self, sites):
        self.calls += 1
        there = {site.site for site in sites}
        start = torch.ones(self.num_rows).double()
        return sum((gap for name, gap in self.gaps.items() if name not in there), start=start)


def judged_by(losses, sites, targets, **options):
    return screen(sites, targets, losses=losses, **options)


def left_out(found):
    return {name for name, one in found.items() if one.leave_out}


NAMES = [f"site {k}" for k in range(NUM_SITES)]


class TestRule:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_harm_must_be_no_accident_for_as_many_sites(self, family):
        sites, targets = study(family, 0)
        threshold = NormalDist().inv_cdf(1 - 0.01 / NUM_SITES)
        for score, out in ((-1.001, {"site 1"}), (-0.999, set())):
            losses = Gaps(dict.fromkeys(NAMES, 0.0) | {"site 1": score * threshold})
            found = judged_by(losses, sites, targets)
            assert left_out(found) == {n for n, one in found.items() if one.findings} == out

    @pytest.mark.parametrize(
        ("poison", "burden"), [(wrong, 2.0), (always_the_same, 2.0), (of_other_rows, 0.0)]
    )
    def test_who_was_found_out_stays_if_it_helps_enough(self, poison, burden):
        sites, targets = study(Categorical, 0)
        sites[1] = replaced(sites[1], poison(sites[1].predictive))
        for score, out in ((burden + 0.001, set()), (burden - 0.001, {"site 1"})):
            losses = Gaps(dict.fromkeys(NAMES, 0.0) | {"site 1": score})
            found = judged_by(losses, sites, targets)
            assert left_out(found) == out
            assert found["site 1"].findings

    @pytest.mark.parametrize(("error", "weak"), [(12.0, True), (4.0, False)])
    def test_far_less_than_others_is_next_to_nothing_though_no_accident(self, error, weak, rng):
        targets, signal = truth(Categorical, rng, 2000)
        sites = [honest(Categorical, signal, rng, site=name) for name in NAMES]
        sites[1] = honest(Categorical, signal, rng, error, "site 1")
        score = agreement(sites[1].predictive, targets)[0]
        assert score > 2 * screening.UNINFORMATIVE
        losses = Gaps(dict.fromkeys(NAMES, 0.0) | {"site 1": 1.0}, num_rows=2000)
        found = judged_by(losses, sites, targets)
        assert kinds(found["site 1"]) == ({"uninformative"} if weak else set())
        assert left_out(found) == set()

    @pytest.mark.parametrize(
        ("first", "second", "out"),
        [(-0.2, -0.1, "site 1"), (-0.1, -0.2, "site 3"), (-0.1, -0.1, "site 3"), (1, 1, None)],
    )
    def test_of_copies_the_one_goes_that_is_missed_less(self, first, second, out):
        """Of equals the last by name; and if both are missed, neither."""
        sites, targets = study(Categorical, 0)
        sites[3] = replaced(sites[3], sites[1].predictive)
        losses = Gaps(dict.fromkeys(NAMES, 0.0) | {"site 1": first, "site 3": second})
        assert left_out(judged_by(losses, sites, targets)) == ({out} if out else set())

    def test_one_that_hides_another_goes_first(self):
        """The second does harm only where the first is gone."""
        sites, targets = study(Categorical, 0)
        alone = Gaps(dict.fromkeys(NAMES, 0.0) | {"site 2": -5.0, "site 4": -4.0})

        def losses(some):
            there = {site.site for site in some}
            if "site 2" in there and "site 4" not in there:
                some = [*some, sites[4]]
            return alone(some)

        assert left_out(judged_by(losses, sites, targets)) == {"site 2", "site 4"}

    def test_two_sites_stay_whatever_they_say(self):
        sites, targets = study(Categorical, 0)
        losses = Gaps({name: -10.0 - k for k, name in enumerate(NAMES)})
        assert left_out(judged_by(losses, sites, targets)) == {"site 2", "site 3", "site 4"}

    def test_to_report_is_to_look_once_and_leave_nobody_out(self):
        sites, targets = study(Categorical, 0)
        losses = Gaps({name: -10.0 - k for k, name in enumerate(NAMES)})
        found = judged_by(losses, sites, targets, rule="report")
        assert left_out(found) == set()
        assert all(kinds(one) == {"harmful"} for one in found.values())
        assert losses.calls == NUM_SITES + 1

    def test_without_enough_labels_only_copies_go(self):
        sites, targets = study(Categorical, 0, num_rows=MIN_LABELS - 1)
        sites[0] = replaced(sites[0], wrong(sites[0].predictive))
        sites[1] = replaced(sites[1], always_the_same(sites[1].predictive))
        sites[4] = replaced(sites[4], sites[2].predictive)
        losses = Gaps({})
        found = judged_by(losses, sites, targets)
        assert left_out(found) == {"site 4"}
        assert [kinds(one) for one in found.values()] == [
            set(),
            {"constant"},
            {"copy"},
            set(),
            {"copy"},
        ]
        assert all(one.influence is None for one in found.values())
        assert losses.calls == 0
        assert left_out(judged_by(losses, sites, targets, rule="report")) == set()

    def test_no_labels_and_few_sites_are_no_error(self):
        sites, targets = study(Categorical, 0)
        assert judged_by(Gaps({}), sites[:1], targets).keys() == {"site 0"}
        bare = [replaced(site, site.predictive[:0]) for site in sites]
        assert not any(one.findings for one in judged_by(Gaps({}), bare, targets[:0]).values())
        pair = [sites[0], replaced(sites[1], sites[0].predictive)]
        short = [replaced(site, site.predictive[:5]) for site in pair]
        assert left_out(judged_by(Gaps({}), short, targets[:5])) == set()
        third = replaced(sites[2], short[0].predictive)
        assert left_out(judged_by(Gaps({}), [*short, third], targets[:5])) == {"site 2"}

    def test_of_many_sites_the_suspect_and_the_least_informative_are_judged(self):
        sites, targets = study(Categorical, 0, num_sites=screening.MAX_JUDGED + 10)
        sites[3] = replaced(sites[3], sites[5].predictive)
        losses = Gaps({site.site: 0.1 for site in sites})
        found = judged_by(losses, sites, targets)
        scores = sorted(agreement(site.predictive, targets)[0] for site in sites)
        judged = {name for name, one in found.items() if one.influence is not None}
        least = {
            site.site
            for site in sites
            if agreement(site.predictive, targets)[0] < scores[screening.MAX_JUDGED]
        }
        assert judged == least | {"site 3", "site 5"}


class TestInfluence:
    def test_it_is_the_mean_of_differences_with_an_interval(self):
        """That of a normal mean, but for the bootstrap's own noise."""
        sites, targets = study(Categorical, 0)
        losses = Gaps({name: k - 1.0 for k, name in enumerate(NAMES)})
        found = judged_by(losses, sites, targets)
        for name, one in found.items():
            gaps = losses.gaps[name]
            error = float(gaps.std()) / math.sqrt(len(gaps))
            assert one.influence.value == pytest.approx(float(gaps.mean()))
            assert one.influence.low == pytest.approx(
                float(gaps.mean()) - 1.96 * error, abs=0.2 * error
            )
            assert one.influence.high == pytest.approx(
                float(gaps.mean()) + 1.96 * error, abs=0.2 * error
            )

    def test_it_is_of_the_pool_without_those_left_out(self):
        sites, targets = study(Categorical, 0)
        sites[2] = replaced(sites[2], wrong_and_sure(sites[2].predictive))
        losses = PoolLosses(targets, seed=0, specs=QUICK)
        found = judged_by(losses, sites, targets)
        kept = [site for site in sites if site.site != "site 2"]
        for site in kept:
            rest = [other for other in kept if other is not site]
            expected = float((losses(rest) - losses(kept)).mean())
            assert found[site.site].influence.value == pytest.approx(expected)
        gone = float((losses(kept) - losses(sites)).mean())
        assert found["site 2"].influence.value == pytest.approx(gone)


class TestPool:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_losses_are_those_of_the_selection(self, family, rng):
        sites, targets = study(family, 0)
        own = honest(family, truth(family, rng)[1], rng).predictive
        losses = PoolLosses(targets, seed=3, own=own, prior=PRIOR[family])(sites)
        total = PoolLosses(targets, seed=3, own=own, prior=PRIOR[family]).tuned(sites).total
        assert {OWN} <= set(total.components)
        assert (MARGINAL in total.components) is (family is Gaussian)
        assert total.num_clients == NUM_SITES + 1
        choice = select(total, targets, candidates(total), rng=generator(3, "screening"))
        assert losses.tolist() == choice.losses.tolist()


PLAN = """
format = 1
name = "a study"
[target]
name = "outcome"
{target}
[columns.age]
type = "number"
[reference]
labelled = 200
[pool]
method = "{method}"
[rules]
screening = "{rule}"
"""
TARGETS = {
    Categorical: 'task = "classification"\nclasses = ["a", "b", "c", "d"]',
    Gaussian: 'task = "regression"',
}


class TestPlans:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("method", ["auto", "mixture"])
    def test_the_plan_says_which_pool_and_which_rule(self, family, method):
        sites, targets = study(family, 0, num_sites=3)
        sites[2] = replaced(sites[2], wrong_and_sure(sites[2].predictive))
        for rule, out in (("leave-out", {"site 2"}), ("report", set())):
            plan = Plan.loads(PLAN.format(target=TARGETS[family], method=method, rule=rule))
            found = screen_sites(sites, targets, plan=plan)
            assert left_out(found) == out
            assert "contradicts" in kinds(found["site 2"])

    @pytest.mark.slow("tunes four pools")
    def test_the_own_model_has_a_part_in_auto_only(self, rng):
        """With a model that knows everything sites have less influence."""
        sites, targets = study(Categorical, 0, num_sites=2)
        one_hot = torch.nn.functional.one_hot(targets, NUM_CLASSES)
        own = Categorical.from_natural(8.0 * one_hot.double())
        for method, has_part in (("auto", True), ("mixture", False)):
            plan = Plan.loads(
                PLAN.format(target=TARGETS[Categorical], method=method, rule="report")
            )
            alone, helped = (screen_sites(sites, targets, plan=plan, own=o) for o in (None, own))
            assert (alone != helped) is has_part
            if has_part:
                assert all(abs(one.influence.value) < 0.01 for one in helped.values())
