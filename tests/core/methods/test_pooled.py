from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from predbayes import pools
from predbayes.api.run import run
from predbayes.errors import PoolError, PredbayesError, TrainingError, UploadError
from predbayes.exchange.federation import InProcess
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Learner, Network, OptimizerSettings, SGDLearner
from predbayes.learning.nets import mlp
from predbayes.methods.distilled import Distilled
from predbayes.methods.pooled import Pooled
from predbayes.pools.auto import AutoPool
from predbayes.pools.pool import PoolState
from predbayes.pools.terms import TermPool
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import nll
from predbayes.seeding import generator, split

NETWORK = Network(lambda: mlp(2, 3, hidden=(8,)), Softmax(3))
LEARNER = SGDLearner(NETWORK, OptimizerSettings(lr=0.05, num_epochs=5, batch_size=20))


class Frequencies(Learner):
    """A learner with no network: the classes' frequencies, whatever the input."""

    def fit(self, rows, *, rng):
        counts = torch.bincount(rows[1], minlength=3) + 1.0

        class Constant:
            def predict(self, inputs):
                return Categorical.from_moments(counts.expand(len(inputs), 3))

        return Constant()


@pytest.fixture
def world(rng):
    x = torch.randn(150, 2, generator=rng)
    y = (x[:, 0] > -0.5).long() + (x[:, 0] > 0.5).long()
    order = x[:120, 0].argsort()
    sites = {f"site{k}": (x[p], y[p]) for k, p in enumerate(order.tensor_split(4))}
    return sites, ReferenceRows.of((x[120:], y[120:]))


def test_tuned_is_not_worse_than_either_end_on_the_labelled_rows(world):
    sites, reference = world
    federation = InProcess(sites)
    beta, low, high = (
        run(method, federation, reference, seed=0).state
        for method in (
            Pooled(LEARNER, pools.beta()),
            Pooled(LEARNER, pools.mixture()),
            Pooled(LEARNER, pools.product()),
        )
    )
    ends = [nll(state.predictive, reference.targets) for state in (low, high)]
    assert nll(beta.predictive, reference.targets) <= min(ends) + 1e-9
    assert beta.tuned.num_labels == 30


def test_sending_predictions_equals_sending_weights(world):
    sites, reference = world
    states = [
        run(Pooled(LEARNER, pools.beta(), send=kind), InProcess(sites), reference, seed=0).state
        for kind in ("weights", "predictions")
    ]
    torch.testing.assert_close(states[0].predictive.natural(), states[1].predictive.natural())
    assert states[0].beta == pytest.approx(states[1].beta)


def test_any_learner_can_send_predictions(world):
    merged, reference = world
    x, y = (torch.cat(part) for part in zip(*merged.values(), strict=True))
    cuts = torch.arange(120).tensor_split([10, 30, 60])  # sites of 10, 20, 30 and 60 rows
    sites = {str(k): (x[rows], y[rows]) for k, rows in enumerate(cuts)}
    state = run(
        Pooled(Frequencies(), pools.mixture(), send="predictions"),
        InProcess(sites),
        reference,
        seed=0,
    ).state
    sizes = torch.tensor([float(len(y)) for _, y in sites.values()])
    freq = torch.stack(
        [(torch.bincount(y, minlength=3) + 1) / (len(y) + 3) for _, y in sites.values()]
    )
    expected = (sizes[:, None] * freq).sum(0) / sizes.sum()
    torch.testing.assert_close(state.predictive.moments()[0].float(), expected)


def test_a_learner_without_weights_cannot_send_them(world):
    sites, reference = world
    with pytest.raises(TrainingError, match="send='predictions'"):
        run(Pooled(Frequencies(), pools.beta()), InProcess(sites), reference, seed=0)


@pytest.mark.parametrize("bad", [{"send": "prediction"}, {"own": "sam"}])
def test_misspelt_choices_are_refused(bad):
    """A silent default here could send weights where predictions were agreed."""
    with pytest.raises(TrainingError, match="must be"):
        Pooled(LEARNER, **bad)
    with pytest.raises(TrainingError, match="component"):
        Pooled(LEARNER, pools.tempered("sum"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (LEARNER, "is no pool"),
        ("beta", "is no pool"),
        (AutoPool, r"^AutoPool is a class; write AutoPool\(\)$"),
    ],
)
def test_what_is_no_pool_is_refused(wrong, said):
    with pytest.raises(TrainingError, match=said):
        Pooled(LEARNER, wrong)


class Estimator:
    """As far as an estimator of scikit-learn can be told by its parts."""

    def fit(self, x, y):
        return self

    def get_params(self):
        return {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (SGDLearner, "^SGDLearner is a class; give an instance"),
        (Estimator(), "^Estimator is an estimator; wrap it in pb.SklearnClassifier or"),
        (NETWORK, "^Network is no learner; subclass"),
    ],
)
def test_what_is_no_learner_is_refused(wrong, said):
    with pytest.raises(TrainingError, match=said):
        Pooled(wrong, pools.beta())
    with pytest.raises(TrainingError, match=said):
        Pooled(LEARNER, AutoPool(), own=wrong)


class Careless(TermPool):
    """A pool that returns whatever it is told to."""

    def returns(self, what):
        object.__setattr__(self, "what", what)
        return self

    def finish(self, state, total, reference, *, rng):
        return self.what


def certain(num_rows, value=0.0):
    return Categorical(torch.full((num_rows, 1), value))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (certain(30), r"Careless\.finish returned a Categorical without a predictive"),
        (None, r"Careless\.finish returned a NoneType without a predictive"),
        (PoolState(), r"Careless\.finish returned a PoolState without a predictive"),
        (PoolState(pooled=certain(29)), "Careless pooled 29 rows; there are 30 reference rows"),
        (PoolState(pooled=certain(30, math.nan)), "Careless gave a predictive that is not finite"),
    ],
)
def test_what_a_pool_must_not_return_is_refused(world, returned, said):
    method = Pooled(LEARNER, Careless(name="Careless", weights=0.0).returns(returned))
    with pytest.raises(PoolError, match=f"^{said}"):
        method.finish(PoolState(), None, world[1], rng=generator(0))


def test_the_default_pool_is_selected_on_the_labelled_rows():
    assert Pooled(LEARNER) == Pooled(LEARNER, AutoPool())


def test_classes_of_a_loader_are_counted_while_it_is_trained_on(world):
    """Once per epoch, and never again to count."""
    sites, reference = world
    read, counts = [], {}

    class Noted(TensorDataset):
        def __getitem__(self, row):
            read.append(row)
            return super().__getitem__(row)

    x, y = sites["site1"]
    method = Pooled(LEARNER, AutoPool(gates=False), own="none")
    state = method.init(reference, rng=generator(0))
    for name, rows in {"loader": DataLoader(Noted(x, y), batch_size=8), "pair": (x, y)}.items():
        upload = method.learn(state, rows, reference.inputs, rng=generator(0))
        counts[name] = upload.info.class_rows
    assert counts["loader"] == counts["pair"]
    assert sum(counts["pair"]) == len(x)
    assert len(read) == LEARNER.settings.num_epochs * len(x)


def test_a_given_own_model_is_not_fitted_again(world):
    """The pool has it already; the learner is the sites' alone."""
    sites, reference = world
    own = cross_fitted(
        LEARNER, reference.inputs, reference.targets, rng=split(generator(0, "finish", 0), 2)[0]
    )
    given, made = (
        run(Pooled(LEARNER, AutoPool(own)), InProcess(sites), reference, seed=0).state
        for own in (own, None)
    )
    assert torch.equal(given.predictive.natural(), made.predictive.natural())


def test_what_cannot_work_is_refused_before_any_site_trains(world):
    sites, reference = world
    wrong = dataclasses.replace(reference, targets=reference.targets.float())
    none = dataclasses.replace(reference, targets=reference.targets[:0])
    other = Network(lambda: mlp(2, 2), LearnedNoise(per_input=True))

    class Untouched(InProcess):
        def collect(self, task):
            raise AssertionError("a site was asked")

    class NoLift:
        families, streams = frozenset(), True

        def init(self, reference, *, rng):
            raise AssertionError("it was begun")

        learn = finish = init

    for method, rows in (
        (NoLift(), reference),
        (Pooled, reference),
        (Pooled(LEARNER, pools.beta()), wrong),
        (Pooled(LEARNER, pools.beta()), none),
        (Pooled(LEARNER, pools.tempered()), none),
        (Distilled(Pooled(LEARNER, pools.beta()), other), reference),
    ):
        with pytest.raises(PredbayesError):
            run(method, Untouched(sites), rows, seed=0)


def test_a_learner_must_return_a_predictive(world):
    sites, reference = world

    class Sloppy(Learner):
        def fit(self, rows, *, rng):
            return self

        def predict(self, inputs):
            return inputs

    with pytest.raises(TrainingError, match="must return a Categorical, a Gaussian or a Survival"):
        run(Pooled(Sloppy(), pools.beta(), send="predictions"), InProcess(sites), reference, seed=0)


def test_options_of_the_method_reach_the_pool(world):
    sites, reference = world
    federation = InProcess(sites)

    def tuned(**options):
        return run(Pooled(LEARNER, pools.beta(**options)), federation, reference, seed=0).state.beta

    assert 0.2 <= tuned(domain=(0.2, 0.3)) <= 0.3
    assert tuned(domain=(-1, 1), prior_std=1e-3) == pytest.approx(0, abs=1e-3)
    assert abs(tuned(domain=(-1, 1))) > 0.01
    floored = run(Pooled(LEARNER, pools.beta(1.0, floor=-0.5)), federation, reference, seed=0).state
    plain = run(Pooled(LEARNER, pools.beta(1.0)), federation, reference, seed=0).state
    assert float(floored.predictive.entropy().min()) > float(plain.predictive.entropy().min())


class TestGates:
    """A gate is checked where it is taken in, whoever sent it."""

    rows = torch.arange(80.0)[:, None].expand(80, 2)
    reference = ReferenceRows.of(
        (rows[:0], torch.zeros(0, dtype=torch.long)), unlabelled=rows[:60], evaluate=rows[60:]
    )

    def lift(self, gate, pool):
        method = Pooled(LEARNER, pool, send="predictions")
        upload = Upload.of_predictions(
            Categorical(torch.full((80, 3), 1 / 3).log()), num_rows=20, gate=gate
        )
        state = method.init(self.reference, rng=generator(0))
        return method.lift(state, upload.named("Delta"), self.reference.inputs)

    @pytest.mark.parametrize("pool", [pools.gated(), AutoPool(), AutoPool(gates=False)])
    @pytest.mark.parametrize("log_ratio", [0.1, 3.0, 30.0, 800.0, -300.0])
    def test_one_that_no_site_can_have_learnt_is_refused_by_name(self, pool, log_ratio):
        with pytest.raises(UploadError, match=r"^site 'Delta': its gate .*; leave the site out"):
            self.lift(torch.full((80,), log_ratio), pool)

    @pytest.mark.parametrize("shape", [(0,), (79,), (80, 1)])
    def test_it_has_one_number_for_each_reference_row(self, shape):
        with pytest.raises(UploadError, match=r"^site 'Delta': .*; leave the site out"):
            self.lift(torch.zeros(shape), pools.gated())

    def test_the_mean_is_over_the_contrast_rows(self):
        """Rows that are kept for evaluation teach no gate, which may be large there."""
        gate = torch.zeros(80)
        gate[60:] = 3.0
        self.lift(gate, pools.gated())
        with pytest.raises(UploadError, match="mean ratio"):
            self.lift(gate.flip(0), pools.gated())

    def test_a_federation_of_honest_sites_passes(self, world, rng):
        sites, labelled = world
        far = 4 * torch.randn(40, 2, generator=rng) + 2
        reference = ReferenceRows.of((labelled.inputs, labelled.targets), far, far)
        for pool in (pools.gated(), AutoPool()):
            run(Pooled(LEARNER, pool), sites, reference, seed=0)


class TestPrior:
    numbers = ReferenceRows.of((torch.zeros(4, 2), torch.tensor([1.0, 2.0, 3.0, 4.0])))
    classes = ReferenceRows.of((torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])))

    def prior(self, reference, **options):
        return Pooled(Frequencies(), pools.beta(**options)).init(reference, rng=generator(0)).prior

    def test_regression_takes_the_reference_targets_moments(self):
        prior = self.prior(self.numbers)
        assert isinstance(prior, Gaussian)
        assert float(prior.mean) == 2.5
        assert float(prior.var) == pytest.approx(5 / 3)

    def test_classification_is_flat(self):
        assert self.prior(self.classes) is None

    def test_flat_can_be_asked_for(self):
        assert self.prior(self.numbers, prior="flat") is None

    def test_any_prior_can_be_given(self):
        given = Categorical.from_moments(torch.ones(1, 3))
        assert self.prior(self.classes, prior=given) is given

    def test_class_frequencies_must_be_given(self):
        with pytest.raises(TrainingError, match="give a Categorical"):
            self.prior(self.classes, prior="reference")
        with pytest.raises(TrainingError, match="not 'refrence'"):
            self.prior(self.classes, prior="refrence")

    @pytest.mark.parametrize("num_labels", [0, 1])
    def test_without_targets_that_vary_the_default_is_flat(self, num_labels):
        few = dataclasses.replace(self.numbers, targets=self.numbers.targets[:num_labels])
        assert self.prior(few, beta=0.0) is None
        assert self.prior(few, beta=1.0) is None

    def test_one_target_has_no_variance(self):
        single = ReferenceRows.of((torch.zeros(1, 2), torch.ones(1)))
        with pytest.raises(TrainingError, match=r"with a variance.*prior='flat'"):
            self.prior(single, beta=0.0, prior="reference")

    @pytest.mark.parametrize("num_labels", [0, 1])
    def test_a_regression_without_labels_is_the_gated_mixture_by_default(self, rng, num_labels):
        x = torch.randn(90, 2, generator=rng)
        y = x[:, 0] + 0.3 * torch.randn(90, generator=rng)
        sites = {str(k): (x[k:60:2], y[k:60:2]) for k in range(2)}
        network = Network(lambda: mlp(2, 1, hidden=(4,)), LearnedNoise())
        learner = SGDLearner(network, OptimizerSettings(lr=0.01, num_epochs=2, batch_size=20))
        rows = slice(60, 60 + num_labels)
        reference = ReferenceRows.of((x[rows], y[rows]), unlabelled=x[60 + num_labels :])
        default, gated = (
            run(Pooled(learner, pool, send="predictions"), sites, reference, seed=0).state
            for pool in (AutoPool(), pools.gated())
        )
        assert default.choice.name == "gated mixture"
        torch.testing.assert_close(default.predictive.moments(), gated.predictive.moments())

    def test_clients_less_certain_than_the_prior_still_pool(self):
        """Without the cap on variances this product would have negative precision."""
        method = Pooled(Frequencies(), pools.beta(1.0), send="predictions")
        state = method.init(self.numbers, rng=generator(0))
        vague = Upload.of_predictions(Gaussian(torch.zeros(4), torch.full((4,), 50.0)), num_rows=1)
        total = method.lift(state, vague, self.numbers.inputs)
        for _ in range(3):
            total.add_(method.lift(state, vague, self.numbers.inputs))
        pooled = method.finish(state, total, self.numbers, rng=generator(0)).predictive
        torch.testing.assert_close(pooled.var, state.prior.var.expand(4))
