"""Without labels sites are held against each other where both have rows, by their gates."""

import pytest
import torch

from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.estimators import SklearnClassifier, SklearnRegressor
from predbayes.learning.gate import log_density_ratio
from predbayes.predictive.families import Categorical
from predbayes.seeding import generator
from predbayes_study.result.comparison import ComparedRows, agreements, isolated

linear_model = pytest.importorskip("sklearn.linear_model")
NUM_SITES, NUM_ROWS, NUM_REFERENCE, NUM_INPUTS = 5, 150, 300, 8


def shares(kind, num_classes, k, rng):
    """How common each class is at a site."""
    if kind == "two classes each":
        weights = torch.full((num_classes,), 0.02)
        weights[[2 * k % num_classes, (2 * k + 1) % num_classes]] = 1.0
        return weights
    drawn = torch.empty(num_classes).exponential_(generator=rng)
    return drawn**3 + 0.01 if kind == "strong" else drawn + 0.1


def study(seed, num_classes, kind, lie=None):
    """Predictions and gates of sites that were fitted to skewed classes; the first may lie."""
    rng = generator(seed, "isolated", num_classes, kind)
    centres = 1.2 * torch.randn(num_classes, NUM_INPUTS, generator=rng)

    def rows(num, weights):
        classes = torch.multinomial(weights, num, replacement=True, generator=rng)
        return centres[classes] + torch.randn(num, NUM_INPUTS, generator=rng), classes

    inputs, _ = rows(NUM_REFERENCE, torch.ones(num_classes))
    learner = SklearnClassifier(linear_model.LogisticRegression(), num_classes, size=1)
    sites, gates = {}, {}
    for k in range(NUM_SITES):
        own, classes = rows(NUM_ROWS, shares(kind, num_classes, k, rng))
        if lie == "labels" and k == 0:
            classes = (classes + 1) % num_classes
        sites[f"s{k}"] = learner.fit((own, classes), rng=rng).predict(inputs)
        gates[f"s{k}"] = log_density_ratio(learner.gate_learner(), (own, classes), inputs, rng=rng)
    return sites, gates


KINDS = ("mild", "strong", "two classes each")


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_honest_sites_are_not_accused_however_skewed(num_classes):
    alarms = [
        isolated(agreements(*study(seed, num_classes, kind))) for kind in KINDS for seed in range(2)
    ]
    assert not any(alarms)


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_a_site_of_five_that_turned_its_labels_is_named(num_classes):
    for seed in range(2):
        assert set(isolated(agreements(*study(seed, num_classes, "mild", "labels")))) == {"s0"}


@pytest.mark.slow("180 studies")
def test_over_many_studies_honest_sites_are_not_accused_and_liars_mostly_named():
    """What docs/coordinator.md says: none of 180, and 165 of 180."""
    drawn = [(seed, c, kind) for c in (2, 3, 10) for kind in KINDS for seed in range(100, 120)]
    accused = [one for one in drawn if isolated(agreements(*study(*one)))]
    found = [set(isolated(agreements(*study(*one, "labels")))) for one in drawn]
    assert not accused
    assert sum(names == {"s0"} for names in found) == pytest.approx(165, abs=5)  # by rounding
    assert not any(names - {"s0"} for names in found)


def test_a_number_turned_is_named_and_honest_sites_elsewhere_are_not():
    rng = generator(0, "numbers")
    slopes = torch.tensor([1.0, -0.5, 0.3, 0, 0, 0, 0, 0])
    inputs = torch.randn(NUM_REFERENCE, NUM_INPUTS, generator=rng)
    learner = SklearnRegressor(linear_model.BayesianRidge())
    sites, gates, turned = {}, {}, {}
    for k in range(NUM_SITES):
        own = torch.randn(NUM_ROWS, NUM_INPUTS, generator=rng)
        own[:, 0] += 0.5 * (k - 2)
        target = own @ slopes + 0.3 * torch.randn(NUM_ROWS, generator=rng)
        sites[f"s{k}"] = learner.fit((own, target), rng=rng).predict(inputs)
        turned[f"s{k}"] = learner.fit((own, -target), rng=rng).predict(inputs)
        gates[f"s{k}"] = log_density_ratio(learner.gate_learner(), (own, target), inputs, rng=rng)
    assert isolated(agreements(sites, gates)) == {}
    assert set(isolated(agreements({**sites, "s4": turned["s4"]}, gates))) == {"s4"}


def test_two_sites_that_share_no_rows_say_nothing_about_each_other():
    inputs = torch.linspace(-3, 3, 200)
    sites, gates = {}, {}
    for k, side in enumerate((-1, -1, -1, 1)):
        logits = torch.stack([inputs, -inputs], 1) * (1 if side < 0 else -1)
        sites[f"s{k}"] = Categorical(logits.log_softmax(1))
        gates[f"s{k}"] = torch.where(side * inputs > 0, 0.6, -8.0)
    assert isolated(agreements(sites, gates)) == {}
    assert set(isolated(agreements(sites, {name: torch.zeros(200) for name in sites}))) == {"s3"}


def test_what_is_found_is_told_in_words_and_needs_every_gate():
    sites, gates = study(1, 3, "mild", "labels")
    reference = ReferenceRows(torch.zeros(NUM_REFERENCE, 1), torch.empty(0))
    rows = ComparedRows.of(reference, 1, rng=generator(0))
    found = rows.compare(sites, gates=gates, rng=generator(0))
    assert set(found.findings) == {"s0"}
    assert "agrees with none of them: correlation at most" in found.findings["s0"].text
    assert "compared with each other" in found.cautions[0]
    del gates["s1"]
    assert "compared with" not in rows.compare(sites, gates=gates, rng=generator(0)).cautions[0]


class TestWhoWasCompared:
    """The report says of how many sites anything is known."""

    def caution(self, sites, gates):
        num = len(next(iter(gates.values())))
        reference = ReferenceRows(torch.zeros(num, 1), torch.empty(0))
        rows = ComparedRows.of(reference, 1, rng=generator(0))
        found = rows.compare(sites, gates=gates, rng=generator(0))
        return found.cautions[0], set(found.findings)

    @pytest.mark.parametrize("num_sites", [1, 2])
    def test_one_or_two_sites_are_not(self, num_sites):
        sites, gates = study(0, 3, "mild")
        some = list(sites)[:num_sites]
        said, _ = self.caution({n: sites[n] for n in some}, {n: gates[n] for n in some})
        assert "Nor could sites be compared with each other: that takes three" in said

    def test_a_site_that_claims_a_few_rows_alone_is_not_and_this_is_told(self):
        """All its share is at seven rows: no other site can say whether it is right there."""
        sites, gates = study(1, 3, "mild", "labels")
        narrow = torch.full((NUM_REFERENCE,), -6.0, dtype=torch.float64)
        narrow[:7] = 3.0
        said, named = self.caution(sites, gates | {"s0": narrow})
        assert f"{NUM_SITES - 1} of {NUM_SITES} sites were compared with each other" in said
        assert "nobody checks that" in said
        assert named == {"s0"}

    def test_a_site_that_says_the_same_everywhere_is_not_and_is_named(self):
        sites, gates = study(1, 3, "mild")
        constant = Categorical(torch.tensor([0.998, 0.001, 0.001]).log().expand(NUM_REFERENCE, 3))
        said, named = self.caution(sites | {"s0": constant}, gates)
        assert f"{NUM_SITES - 1} of {NUM_SITES} sites were compared with each other" in said
        assert named == {"s0"}

    def test_where_the_pool_does_without_gates_sites_are_compared_without(self):
        """Who says that it has no rows here makes the pool the mixture, in which it counts."""
        sites, _ = study(1, 3, "mild", "labels")
        some, few = ["s0", "s1", "s2", "s3"], torch.arange(90)
        nowhere = torch.full((NUM_REFERENCE,), -6.0, dtype=torch.float64)
        fewer = {n: sites[n][few] for n in some}
        whole = {n: torch.zeros(90, dtype=torch.float64) for n in some}
        assert self.caution(fewer, whole | {"s0": nowhere[few], "s1": nowhere[few]})[1] == {"s0"}
