"""The pool that the labelled rows choose: what it is made of, and that it pays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from predbayes.api.run import run
from predbayes.errors import PoolError, TrainingError
from predbayes.exchange.federation import InProcess, Task
from predbayes.exchange.reference import ReferenceRows
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.likelihood import Softmax
from predbayes.learning.local import Learner, Network, OptimizerSettings, SGDLearner
from predbayes.learning.nets import mlp
from predbayes.methods import pooled as pooled_module
from predbayes.methods.pooled import Pooled, upload_of
from predbayes.pools import auto as auto_module
from predbayes.pools.auto import AutoPool
from predbayes.pools.terms import beta, mixture, tempered
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes.predictive.metrics import nll
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.selection import CATEGORICAL_TERMS, MARGINAL, OWN, Complexity, select
from predbayes.seeding import generator, split
from predbayes.summand import fold

DIM = 24
SHORT = OptimizerSettings("adam", lr=0.02, num_epochs=1, batch_size=100)
NETWORK = SGDLearner(Network(lambda: mlp(DIM, 3, hidden=(4,)), Softmax(3)), SHORT)


@dataclass(frozen=True)
class Fitted:
    """A function from inputs to predictives."""

    predict: Callable[[Tensor], Predictive]


class Blobs(Learner):
    """A Gaussian with unit covariance for each class, in closed form; what was not seen is at 0."""

    def fit(self, rows, *, rng):
        x, y = rows
        chosen = torch.nn.functional.one_hot(y, 3).double()
        means = (chosen.T @ x.double()) / (chosen.sum(0)[:, None] + 1)
        shares = ((chosen.sum(0) + 1) / (len(y) + 3)).log()

        def predict(new):
            logits = new.double() @ means.T - means.square().sum(1) / 2 + shares
            return Categorical.from_natural(logits.float())

        return Fitted(predict)


class BayesLine(Learner):
    """Bayesian linear regression with known noise, in closed form."""

    def fit(self, rows, *, rng):
        x, y = (part.double() for part in rows)
        cov = (torch.eye(DIM).double() + x.T @ x / 0.25).inverse()
        mean = cov @ x.T @ y / 0.25

        def predict(new):
            epistemic = ((new.double() @ cov) * new).sum(1)
            parts = (new.double() @ mean, epistemic + 0.25, epistemic)
            return Gaussian(*(part.float() for part in parts))

        return Fitted(predict)


LEARNERS = {Categorical: Blobs(), Gaussian: BayesLine()}


def auto(family=Categorical, own="same", **options):
    return Pooled(LEARNERS[family], AutoPool(**options), send="predictions", own=own)


def draw_rows(family, num_rows, rng):
    x = torch.randn(num_rows, DIM, generator=rng)
    if family is Gaussian:
        return x, x @ torch.linspace(-1, 1, DIM) + 0.5 * torch.randn(num_rows, generator=rng)
    y = torch.randint(3, (num_rows,), generator=rng)
    return x + 1.5 * torch.nn.functional.one_hot(y, DIM), y


def world(family=Categorical, num_labels=60, num_evaluate=20, seed=0):
    """Three sites of different size: each has few classes, or inputs that vary in few ways."""
    rng = generator(seed, "world")
    sites = {}
    for k, num_rows in enumerate((600, 800, 1000)):
        x, y = draw_rows(family, num_rows, rng)
        if family is Categorical:
            kept = (y == k) | (torch.rand(num_rows, generator=rng) < 0.15)
            x, y = x[kept], y[kept]
        else:
            scale = torch.where(torch.arange(DIM) % 3 == k, 1.0, 0.15)
            y = y - (x * (1 - scale)) @ torch.linspace(-1, 1, DIM)
            x = x * scale
        sites[f"site{k}"] = (x, y)
    inputs, targets = draw_rows(family, num_labels + num_evaluate, rng)
    reference = ReferenceRows.of(
        (inputs[:num_labels], targets[:num_labels]), evaluate=inputs[num_labels:]
    )
    return sites, reference, targets[num_labels:]


def lifted(method, sites, reference):
    """What `finish` gets: the state and the summands, one for each site."""
    state = method.init(reference, rng=generator(0, "init"))
    uploads = list(InProcess(sites).collect(Task(method, state, reference.inputs)))
    return state, uploads, [method.lift(state, u, reference.inputs) for u in uploads]


def components_chosen_from(monkeypatch, method, sites, reference):
    """The sum that the pool is selected on, and the candidates."""
    seen = []

    def spy(total, targets, specs, **options):
        seen.append((total, targets, specs, options))
        return select(total, targets, specs, **options)

    monkeypatch.setattr(auto_module, "select", spy)
    state = run(method, InProcess(sites), reference, seed=0).state
    (call,) = seen
    return state, *call


BOTH = pytest.mark.parametrize(
    "family", [Categorical, pytest.param(Gaussian, marks=pytest.mark.slow("many candidates"))]
)


class TestLearn:
    @pytest.mark.parametrize("send", ["weights", "predictions"])
    def test_sites_say_how_many_rows_of_each_class_they_have(self, send):
        sites, reference, _ = world()
        method = Pooled(NETWORK, AutoPool(), send=send)
        _, uploads, _ = lifted(method, sites, reference)
        for upload in uploads:
            _, y = sites[upload.info.site]
            expected = [float((y == label).sum()) for label in range(3)]
            assert list(upload.info.class_rows) == expected
            assert upload.info.num_rows == len(y)

    @pytest.mark.parametrize("send", ["weights", "predictions"])
    def test_or_do_not_and_send_the_same_besides(self, send):
        sites, reference, _ = world()
        counted, not_counted = (
            lifted(Pooled(NETWORK, AutoPool(count_classes=asked), send=send), sites, reference)[1]
            for asked in (True, False)
        )
        for says, silent in zip(counted, not_counted, strict=True):
            assert silent.info.class_rows is None
            assert says.arrays.keys() == silent.arrays.keys()
            assert all(torch.equal(a, silent.arrays[name]) for name, a in says.arrays.items())

    def test_other_pools_count_no_classes(self):
        sites, reference, _ = world()
        for method in (Pooled(NETWORK, beta()), Pooled(NETWORK, tempered())):
            assert all(u.info.class_rows is None for u in lifted(method, sites, reference)[1])
        fitted = NETWORK.fit(sites["site0"], rng=generator(0))
        upload = upload_of(fitted, "weights", sites["site0"], reference.inputs, rng=generator(0))
        assert upload.info.class_rows is None


class TestWhatItChoosesFrom:
    @pytest.mark.parametrize("apart", [False, True])
    def test_the_coordinator_is_one_more_site_and_a_component(self, apart, monkeypatch):
        """Every term by hand: three sites and the cross-fitted model, by rows and by class."""
        sites, reference, _ = world()
        method = auto(keep_apart=apart)
        _, uploads, _ = lifted(method, sites, reference)
        _, total, targets, specs, _ = components_chosen_from(monkeypatch, method, sites, reference)
        labelled = reference.labelled
        own_rng, _ = split(generator(0, "finish", 0), 2)
        own = cross_fitted(Blobs(), reference.inputs, reference.targets, rng=own_rng)
        clients = [(u.predictive(), sites[u.info.site][1]) for u in uploads]
        clients.append((own, reference.targets))
        expected = fold(
            PredictiveSum.of(
                p, len(y), class_rows=torch.bincount(y, minlength=3), terms=CATEGORICAL_TERMS
            )
            for p, y in clients
        )
        assert torch.equal(targets, reference.targets)
        assert total.num_clients == 4
        alone = {f"site {upload.info.site}": upload.predictive() for upload in uploads}
        assert {*total.components} == {*expected.components, OWN, *(alone if apart else ())}
        assert ({Complexity.SITES, Complexity.CLASSES} <= {s.complexity for s in specs}) is apart
        for name, predictive in alone.items() if apart else ():
            one = predictive[labelled].natural().double()
            torch.testing.assert_close(total.component(name), one)
        torch.testing.assert_close(total.component(OWN), own.log_probs[labelled].double())
        for name in expected.components:
            torch.testing.assert_close(total.component(name), expected.component(name)[labelled])

    def test_without_an_own_model_there_is_none(self, monkeypatch):
        sites, reference, _ = world()
        method = auto(own="none")
        state, total, _, specs, _ = components_chosen_from(monkeypatch, method, sites, reference)
        assert total.num_clients == 3
        assert OWN not in total.components
        assert not any(OWN in spec.components for spec in specs)
        assert "every term" in {spec.name for spec in specs}
        assert state.choice.spec in specs

    def test_a_learner_that_cannot_fit_so_few_rows_leaves_the_pool_without(
        self, monkeypatch, caplog
    ):
        class Picky(Learner):
            def fit(self, rows, *, rng):
                raise TrainingError("50 rows are too few")

        sites, reference, _ = world()
        method = auto(own=Picky())
        state, total, *_ = components_chosen_from(monkeypatch, method, sites, reference)
        assert OWN not in total.components
        assert "without a model of the labelled rows: 50 rows are too few" in caplog.text
        none = run(auto(own="none"), InProcess(sites), reference, seed=0).state
        assert torch.equal(state.predictive.natural(), none.predictive.natural())

    def test_one_silent_site_takes_the_terms_by_class_away(self, monkeypatch):
        """Though the coordinator could count its own rows."""
        sites, reference, _ = world()
        method = auto(count_classes=False)
        _, total, _, specs, _ = components_chosen_from(monkeypatch, method, sites, reference)
        assert total.num_clients == 4
        assert total.components == ("mixture", "product", "log_pool", "entropy", OWN)
        assert not any("every term" in spec.name for spec in specs)

    def test_a_regression_trusts_by_epistemic_variance(self, monkeypatch):
        sites, reference, _ = world(Gaussian)
        method = auto(Gaussian, keep_apart=True)
        state, total, _, specs, _ = components_chosen_from(monkeypatch, method, sites, reference)
        assert {"trust_0.5", "trust_1", "trust_2", OWN, "site site0"} <= set(total.components)
        assert Complexity.SITES in {spec.complexity for spec in specs}
        assert bool((state.predictive.var > 0).all())
        assert total.prior is not None
        assert float(total.prior.mean) == pytest.approx(float(reference.targets.double().mean()))

    def test_the_prior_is_a_component_on_every_row(self, monkeypatch):
        """Of one row, or of one for each input; a flat one is none."""
        sites, reference, _ = world(Gaussian)
        one = Gaussian(torch.tensor([0.5]), torch.tensor([30.0]))
        each = Gaussian(torch.linspace(0, 1, 80), torch.full((80,), 30.0))
        for prior, expected in ((one, one.natural().expand(60, 2)), (each, each.natural()[:60])):
            method = auto(Gaussian, prior=prior)
            _, total, _, specs, _ = components_chosen_from(monkeypatch, method, sites, reference)
            torch.testing.assert_close(total.component(MARGINAL), expected.double())
            assert any(MARGINAL in spec.components for spec in specs)
        method = auto(Gaussian, prior="flat")
        _, total, *_ = components_chosen_from(monkeypatch, method, sites, reference)
        assert MARGINAL not in total.components

    def test_a_labelled_rows_marginal_does_not_know_its_label(self, monkeypatch):
        """Bit by bit; where there is no label it is the distribution of them all."""
        sites, reference, _ = world(Gaussian)
        method, marginals = auto(Gaussian, own="none"), []
        for row in (None, 0, 17):
            changed = reference.targets.clone()
            if row is not None:
                changed[row] += 50.0
            altered = dataclasses.replace(reference, targets=changed)
            _, total, *_ = components_chosen_from(monkeypatch, method, sites, altered)
            marginals.append(total.component(MARGINAL))
            if row is not None:
                same = (marginals[-1] == marginals[0]).all(-1)
                assert bool(same[row])
                assert int(same.sum()) == 12  # 60 rows in five parts

    def test_options_reach_the_selection_and_the_own_model(self, monkeypatch):
        asked = []

        def spy(*arguments, num_folds, num_repeats, rng):
            asked.append((num_folds, num_repeats))
            return cross_fitted(*arguments, num_folds=num_folds, rng=rng)

        monkeypatch.setattr(pooled_module, "cross_fitted", spy)
        sites, reference, _ = world(num_labels=20)
        method = auto(num_folds=3, num_repeats=2, min_labels=15, floor=-0.5, keep_apart=True)
        _, total, _, _, options = components_chosen_from(monkeypatch, method, sites, reference)
        assert asked == [(3, 2)]
        assert (options["num_folds"], options["min_labels"]) == (3, 15)
        for name in (
            "mixture",
            OWN,
            "site site0",
        ):  # floored and renormalised: no class below e^-.5 / 3
            assert float(total.component(name).exp().min()) > 0.2


class TestLabels:
    @pytest.mark.parametrize("num_labels", [0, 29])
    def test_too_few_leave_the_mixture_of_the_sites(self, num_labels, caplog):
        """The coordinator fits nothing to them either."""
        sites, reference, _ = world(num_labels=num_labels)
        ours, plain = (
            run(method, InProcess(sites), reference, seed=0).state
            for method in (auto(), Pooled(Blobs(), mixture(), send="predictions"))
        )
        torch.testing.assert_close(ours.predictive.natural(), plain.predictive.natural())
        assert ours.choice.spec.name == "mixture"
        assert "the pool is the mixture" in caplog.text

    def test_just_enough_are_chosen_by(self):
        sites, reference, _ = world(num_labels=30)
        state = run(auto(), InProcess(sites), reference, seed=0).state
        assert OWN in {name for s in state.choice.scores for name in s.name.split(", ")}

    @BOTH
    def test_weights_do_not_depend_on_the_evaluation_rows(self, family):
        sites, reference, _ = world(family)
        fewer = dataclasses.replace(
            reference, inputs=reference.inputs[reference.labelled], num_evaluate=0
        )
        other = dataclasses.replace(reference, inputs=reference.inputs.clone())
        other.inputs[reference.evaluate] += 5
        states = [
            run(auto(family), InProcess(sites), rows, seed=0).state
            for rows in (reference, fewer, other)
        ]
        for state in states[1:]:
            assert state.choice.spec.name == states[0].choice.spec.name
            assert state.tuned.weights == pytest.approx(states[0].tuned.weights, abs=1e-4)
            torch.testing.assert_close(
                state.predictive[reference.labelled].natural(),
                states[0].predictive[reference.labelled].natural(),
                rtol=1e-4,
                atol=1e-4,
            )

    def test_the_state_says_what_was_chosen(self):
        sites, reference, _ = world()
        state = run(auto(), InProcess(sites), reference, seed=0).state
        assert state.tuned is state.choice.tuned
        assert state.tuned.num_labels == 60
        labelled = state.predictive[reference.labelled]
        assert nll(labelled, reference.targets) == pytest.approx(state.tuned.nll, abs=1e-6)
        assert math.isnan(state.beta)


class TestErrors:
    @pytest.mark.parametrize(
        "bad",
        [
            {"num_folds": 1},
            {"num_folds": 31},
            {"num_folds": 5, "min_labels": 4},
        ],
    )
    def test_what_makes_no_sense_is_refused(self, bad):
        with pytest.raises(TrainingError, match="must be"):
            AutoPool(**bad)

    def test_sites_kept_apart_have_names_of_their_own(self):
        sites, reference, _ = world()
        method = auto(keep_apart=True)
        state, uploads, _ = lifted(method, sites, reference)
        total = fold(method.lift(state, u.named("same"), reference.inputs) for u in uploads)
        with pytest.raises(PoolError, match="'site same' already"):
            method.finish(state, total, reference, rng=generator(0))
