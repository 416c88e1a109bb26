"""Local learners: from one site's rows to a predictor.

A `Network` is a recipe (how to build a module, how to read its outputs); a learner is a recipe
with a way to fit it; what comes out is a `NetworkPredictor`, the recipe with M weight samples.
The M networks predict one after the other, and their predictives are averaged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from predbayes.arrays import LoaderRows, as_rows
from predbayes.errors import DivergedError, TrainingError
from predbayes.learning.checkpoint import Checkpoint, SamplerProgress, resume
from predbayes.learning.likelihood import Likelihood, LogOdds, Softmax
from predbayes.learning.nets import cnn, mlp
from predbayes.learning.norms import norm_parameters, restate, restated, without_prior
from predbayes.learning.training import (
    Batches,
    Objective,
    Rows,
    as_batches,
    clip,
    resolve_device,
    train,
)
from predbayes.posterior.cyclical import (
    SamplerSettings,
    enough_epochs,
    require_norm,
    warmed_up,
)
from predbayes.posterior.samples import SampleStack, WeightSamples
from predbayes.posterior.sghmc import SGHMC, eager
from predbayes.predictive.families import Categorical, Predictive
from predbayes.seeding import isolated, split

_PREDICT_ROWS = 200  # rows predicted at a time: few enough to stay in the cache
_MOST_SLOWED = 3  # times that the step is halved where a fit diverges

_log = logging.getLogger(__name__)


class Predictor(Protocol):
    """Anything that predicts: a network, an ensemble, a student."""

    def predict(self, inputs: Tensor) -> Predictive:
        """Predictives of a batch of inputs, on the CPU."""


class Learner(Protocol):
    """Fits one site's rows to a predictor. Subclass it, and write `fit`; the rest has defaults."""

    __slots__ = ()

    @property
    def keeps_groups(self) -> bool:
        """True if `fit` takes ``groups``, a number for each row: rows of a group stay together."""
        return False

    def fit(self, rows: Rows, *, rng: torch.Generator) -> Predictor:
        """Learn from a site's rows."""

    def gate_learner(self) -> GateLearner | None:
        """Return a learner of the same kind for gates; None if there is no such learner."""
        return None

    def slower(self) -> Any:
        """Return the same learner with half the step; None if it has no step."""
        return None


def kept_together(learner: Learner, groups: Tensor | None, rows: Tensor) -> dict[str, Any]:
    """Return the option of `fit` with the groups of some rows, for a learner that takes them."""
    return {} if groups is None or not learner.keeps_groups else {"groups": groups[rows]}


@dataclass(frozen=True, slots=True)
class GateLearner:
    """A learner that separates a site's own rows from contrast rows, which are its class 0.

    Own rows are class 1, or ``by_class``, where they have classes, class c of the task is 1 + c.
    A fit to fewer than ``free_rows`` rows takes no fewer steps.
    """

    learner: Any
    by_class: bool = False
    free_rows: int = 0

    def kinds(self, targets: Tensor) -> Tensor:
        """Return the class of each own row, by its target."""
        return 1 + targets if self.by_class else torch.ones(len(targets), dtype=torch.int64)


def fit_with_retries(
    learner: Any,
    rows: Any,
    *,
    rng: torch.Generator,
    checkpoint: Checkpoint | None = None,
    **options: Any,
) -> Any:
    """Fit; if that diverges, begin again with half the step, three times at most.

    A site under a frozen plan can't change the step, nor can a learner of gates.
    """
    given = options if checkpoint is None else options | {"checkpoint": checkpoint}
    for number in range(1, _MOST_SLOWED + 1):
        try:
            return learner.fit(rows, rng=rng, **given)
        except DivergedError as error:
            if (slower := learner.slower()) is None:
                raise
            _log.warning("%s: it begins again with half the step", str(error).partition(";")[0])
            learner = slower
            if checkpoint is not None:
                given = options | {"checkpoint": checkpoint.beside(f"slower-{number}")}
    return learner.fit(rows, rng=rng, **given)


@dataclass(frozen=True, slots=True)
class Network:
    """A recipe for a network: how to build the module, and how to read its outputs.

    Examples:
        >>> from predbayes.learning.likelihood import Softmax
        >>> network = Network.mlp(2, Softmax(3), hidden=(8,))
        >>> network = Network(lambda: nn.Linear(2, 3), Softmax(3))  # a network of one's own
    """

    build: Callable[[], nn.Module]
    likelihood: Likelihood

    def __post_init__(self) -> None:
        if isinstance(self.build, nn.Module) or not callable(self.build):
            raise TrainingError(
                f"a network is built anew for each fit, so {type(self.build).__name__} cannot be "
                "its build; give a function: pb.Network(lambda: ..., ...)"
            )

    @classmethod
    def mlp(
        cls, num_inputs: int, likelihood: Likelihood, hidden: Sequence[int] = (100, 100)
    ) -> Network:
        """A fully connected network with as many outputs as the likelihood reads."""
        return cls(partial(mlp, num_inputs, likelihood.num_outputs, tuple(hidden)), likelihood)

    @classmethod
    def cnn(cls, image_shape: tuple[int, int, int], likelihood: Likelihood) -> Network:
        """A convolutional network with as many outputs as the likelihood reads."""
        return cls(partial(cnn, image_shape, likelihood.num_outputs), likelihood)

    def telling(self) -> Network:
        """The same network, to tell own rows from contrast rows; by class, where it has classes."""
        return Network(self.build, LogOdds(self.likelihood.num_outputs, self.has_classes))

    @property
    def has_classes(self) -> bool:
        """Whether it predicts classes."""
        return self.likelihood.family is Categorical

    def create(self, rng: torch.Generator, start: WeightSamples | None = None) -> nn.Module:
        """A new module, the likelihood's own parameters included.

        Freshly initialised, or with the last of the weight samples ``start``.
        """
        with isolated(rng):
            net = self.build()
            if self.build() is net:
                raise TrainingError(
                    "the network's build returns one and the same module; make a new one each "
                    "time: Network(lambda: MyNet(), ...)"
                )
            module = self.likelihood.attach(net)
        if start is not None:
            start.load_into(module)
        return module

    def batches(self, rows: Rows, batch_size: int, device: str) -> Batches:
        """A site's rows as batches on a device; targets that cannot be learnt are refused."""
        return as_batches(
            rows,
            batch_size=batch_size,
            device=resolve_device(device),
            check=self.likelihood.check,
        )

    def objective(self, rows: Rows) -> Objective:
        """The loss that trains on a site's rows; balanced, it depends on their classes."""
        likelihood = self.likelihood
        if not (isinstance(likelihood, Softmax) and likelihood.balanced):
            return likelihood.loss
        own = as_rows(rows)
        parts = own if isinstance(own, LoaderRows) else (own,)
        counts = [torch.bincount(y.cpu(), minlength=likelihood.num_classes) for _, y in parts]
        return likelihood.balanced_loss(torch.stack(counts).sum(0))

    def predict(
        self, samples: WeightSamples, inputs: Tensor, device: str | torch.device = "cpu"
    ) -> Predictive:
        """The average predictive of the samples (Paper: alg:dBpredbayes, step 3)."""
        device = resolve_device(device)
        skeleton = self.create(torch.Generator()).to(device).eval()
        chunks = torch.split(inputs, _PREDICT_ROWS)
        outputs = []
        # One sample after the other, in the module's own layout: batched over samples, or with
        # weights in another layout, convolutions take several times as long.
        for index in range(len(samples)):
            samples.load_into(skeleton, index)
            with torch.no_grad():
                outputs.append(torch.cat([skeleton(x.to(device)).cpu() for x in chunks]))
        return self.likelihood.predictive(torch.stack(outputs))


@dataclass(frozen=True, slots=True)
class NetworkPredictor:
    """A network with M weight samples.

    ``inverse_temperature`` is 1 / T of what is predicted, eta = eta_network / T in natural
    coordinates; it is no part of the weights, so keep it with them.
    """

    network: Network
    samples: WeightSamples
    device: str = "cpu"
    inverse_temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.inverse_temperature < math.inf:
            raise TrainingError(
                f"inverse_temperature must be positive and finite, not {self.inverse_temperature}"
            )

    def predict(self, inputs: Tensor) -> Predictive:
        """The average predictive of the samples, at its temperature."""
        predictive = self.network.predict(self.samples, inputs, self.device)
        if self.inverse_temperature == 1:
            return predictive  # to the bit, and with the parts of its variance
        return predictive.from_natural(self.inverse_temperature * predictive.natural())

    def module(self) -> nn.Module:
        """Return the network as a torch module that evaluates; refuse to choose among samples.

        Its outputs are those before the temperature.
        """
        if len(self.samples) > 1:
            raise TrainingError(
                f"the model is the average of {len(self.samples)} networks; distil it into one: "
                "pb.Distilled(method, student=network)"
            )
        module = self.network.create(torch.Generator(), self.samples)
        return module.to(resolve_device(self.device)).eval()


@runtime_checkable
class NetworkLearner(Learner, Protocol):
    """A learner whose predictor is a network with weight samples, which can be sent."""

    @property
    def network(self) -> Network:
        """The recipe, which the coordinator needs to read the weights."""

    @property
    def device(self) -> str:
        """The device to train and predict on."""

    def fit(
        self, rows: Rows, *, rng: torch.Generator, start: WeightSamples | None = None
    ) -> NetworkPredictor:
        """Learn from a site's rows, from random weights or from the last sample of ``start``."""


def require_learner(learner: object) -> None:
    """Refuse what cannot fit a site's rows."""
    if isinstance(learner, type):
        raise TrainingError(f"{learner.__name__} is a class; give an instance of it as the learner")
    name = type(learner).__name__
    if hasattr(learner, "get_params"):
        raise TrainingError(
            f"{name} is an estimator; wrap it in pb.SklearnClassifier or pb.SklearnRegressor"
        )
    if not all(hasattr(learner, part) for part in ("fit", "gate_learner", "slower")):
        raise TrainingError(f"{name} is no learner; subclass pb.Learner, and write fit")


def check_targets(learner: object, targets: Tensor) -> None:
    """Refuse targets that the learner's network, if it has one, could not predict."""
    if isinstance(learner, NetworkLearner):
        learner.network.likelihood.check(targets)


@dataclass(frozen=True, slots=True)
class SGHMCLearner(Learner):
    """Samples by cyclical SGHMC (Paper: alg:dBpredbayes, step 1).

    With a step that vanishes, as in the presets, they are a snapshot ensemble; with
    ``settings.step_floor`` they are samples of the posterior.
    """

    network: Network
    settings: SamplerSettings
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.settings, SamplerSettings):
            raise TrainingError(
                f"settings are SamplerSettings, such as pb.PRESETS['tuned'], not {self.settings!r}"
            )

    def fit(
        self,
        rows: Rows,
        *,
        rng: torch.Generator,
        start: WeightSamples | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> NetworkPredictor:
        """Run the whole schedule and keep the last ``max_samples`` snapshots.

        With a ``checkpoint`` go on where an earlier run of the same fit was stopped.
        """
        settings = self.settings
        batches = self.network.batches(rows, settings.batch_size, self.device)
        model = self.network.create(rng, start).to(resolve_device(self.device))
        sampler = self._sampler(model, batches.num_rows, rng)
        num_epochs = settings.epochs_for(len(batches))
        schedule = settings.schedule(num_epochs * len(batches))
        temperature = settings.temperature_for(batches.num_rows)
        wanted = set(schedule.snapshot_steps()[-settings.max_samples :])
        samples = SampleStack(len(wanted))

        def follow_schedule(step: int) -> None:
            for group in sampler.param_groups:
                group["step_size"] = schedule.step_size_at(step)
                group["temperature"] = temperature if schedule.is_sampling(step) else 0.0

        def clip_while_exploring() -> None:  # clipped, samples would have another law
            if not sampler.param_groups[0]["temperature"]:
                clip(model, settings.clip_norm)

        def snapshot(step: int) -> None:
            if step in wanted:
                samples.add(WeightSamples.of(model))

        progress = SamplerProgress(model, sampler, samples, rng)

        def keep(done: int) -> None:
            if checkpoint is not None:
                checkpoint.after_epoch(done, progress.tensors)

        train(
            model,
            self.network.objective(rows),
            batches,
            sampler,
            num_epochs=num_epochs,
            rng=rng,
            before_step=follow_schedule,
            after_backward=clip_while_exploring if settings.clip_norm else None,
            after_step=snapshot,
            after_epoch=keep,
            resume=lambda: resume(checkpoint, progress),
            autocast=settings.autocast,
        )
        kept = restated(samples.taken(), model, batches, rng=rng)
        return NetworkPredictor(self.network, kept, self.device)

    def _sampler(self, model: nn.Module, num_rows: int, rng: torch.Generator) -> SGHMC:
        return SGHMC(
            _groups(model, without_prior(model), {"prior_std": math.inf}),
            step_size=self.settings.step_size,
            num_rows=num_rows,
            friction=self.settings.friction,
            prior_std=self.settings.prior_std,
            rng=rng,
        )

    def gate_learner(self) -> GateLearner:
        """Return the learner of a gate: one cycle, and half the steps."""
        return _halved_gate_learner(self)

    def slower(self) -> SGHMCLearner:
        """Return the same with half the step, for a fit that diverged."""
        return replace(self, settings=self.settings.slower())


def _groups(
    model: nn.Module, free: Collection[str], without: dict[str, float]
) -> list[dict[str, Any]]:
    """Weights, and apart from them, if there are any, parameters that no prior pulls to 0."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise TrainingError(
            "the network has nothing to learn: every parameter has requires_grad=False"
        )
    weights = [p for name, p in named if name not in free]
    others = [p for name, p in named if name in free]
    return [{"params": weights}, *([{"params": others, **without}] if others else [])]


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """A plain fit: which optimiser, how fast, how long."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    num_epochs: int = 25
    batch_size: int = 100
    min_steps: int = 0  # small sets are passed over more often, until there are as many steps
    decay: Literal["none", "cosine"] = "none"  # of lr, from its value to zero over all steps
    warmup: float = 0.0  # part of all steps over which lr rises to its value
    clip_norm: float = 0.0  # most length of a gradient; 0 is any
    autocast: bool = False  # train in bfloat16 where torch's autocast does

    def __post_init__(self) -> None:
        if self.optimizer not in (known := ("sgd", "adam", "adamw")):
            raise TrainingError(f"optimizer must be one of {known}, not {self.optimizer!r}")
        if not 0 <= self.warmup <= 1:
            raise TrainingError(f"warmup is a part of all steps, from 0 to 1, not {self.warmup}")
        require_norm(self.clip_norm)
        if self.decay not in ("none", "cosine"):
            raise TrainingError(f"decay must be 'none' or 'cosine', not {self.decay!r}")
        if min(self.num_epochs, self.batch_size) < 1:
            raise TrainingError("epochs and batch size must be at least 1")
        if not self.lr >= 0:
            raise TrainingError(f"lr must not be negative, as {self.lr} is")

    def epochs_for(self, num_batches: int) -> int:
        """Return how often to pass over this many batches."""
        return enough_epochs(self.num_epochs, self.min_steps, num_batches)

    def halved(self) -> OptimizerSettings:
        """Return the same with half the steps, for a simpler task."""
        num_epochs = math.ceil(self.num_epochs / 2)
        return replace(self, num_epochs=num_epochs, min_steps=self.min_steps // 2)

    def slower(self) -> OptimizerSettings:
        """Return the same with half the step."""
        return replace(self, lr=self.lr / 2)

    def lr_at(self, step: int, num_steps: int) -> float:
        """Return the learning rate of one of so many steps."""
        lr = self.lr * warmed_up(step, self.warmup * num_steps)
        if self.decay == "none":
            return lr
        return 0.5 * lr * (1 + math.cos(math.pi * step / num_steps))

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over a model's parameters; those of normalisations do not decay."""
        free = norm_parameters(model) if self.weight_decay else ()
        groups = _groups(model, free, {"weight_decay": 0.0})
        if self.optimizer != "sgd":
            kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
            return eager(kind)(groups, lr=self.lr, weight_decay=self.weight_decay, fused=True)
        return eager(torch.optim.SGD)(
            groups,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            fused=True,
        )

    def minimize(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        *,
        rng: torch.Generator,
        after_backward: Callable[[], None] | None = None,
    ) -> None:
        """Train a model in place with these settings; the other arguments are those of `train`."""
        optimizer = self.build(model)
        num_epochs = self.epochs_for(len(batches))
        num_steps = num_epochs * len(batches)

        def follow_schedule(step: int) -> None:
            for group in optimizer.param_groups:
                group["lr"] = self.lr_at(step, num_steps)

        def finish_gradient() -> None:
            if after_backward is not None:
                after_backward()
            clip(model, self.clip_norm)

        train(
            model,
            objective,
            batches,
            optimizer,
            num_epochs=num_epochs,
            rng=rng,
            before_step=None if self.decay == "none" and not self.warmup else follow_schedule,
            after_backward=finish_gradient if self.clip_norm else after_backward,
            autocast=self.autocast,
        )
        restate(model, batches, rng=rng)


@dataclass(frozen=True, slots=True)
class SGDLearner(Learner):
    """A point estimate by SGD with momentum, Adam or AdamW: one sample."""

    network: Network
    settings: OptimizerSettings = OptimizerSettings()
    device: str = "cpu"

    def fit(
        self,
        rows: Rows,
        *,
        rng: torch.Generator,
        start: WeightSamples | None = None,
        penalty: Callable[[nn.Module], None] | None = None,
    ) -> NetworkPredictor:
        """Minimise the mean NLL; ``penalty`` adds its gradient to the module's own, each step."""
        settings = self.settings
        batches = self.network.batches(rows, settings.batch_size, self.device)
        model = self.network.create(rng, start).to(resolve_device(self.device))
        settings.minimize(
            model,
            self.network.objective(rows),
            batches,
            rng=rng,
            after_backward=None if penalty is None else partial(penalty, model),
        )
        return NetworkPredictor(self.network, WeightSamples.of(model), self.device)

    def gate_learner(self) -> GateLearner:
        """Return the learner of a gate: half the steps."""
        return _halved_gate_learner(self)

    def slower(self) -> SGDLearner:
        """Return the same with half the step, for a fit that diverged."""
        return replace(self, settings=self.settings.slower())


def _halved_gate_learner(learner: Any) -> GateLearner:
    """The gate_learner of a network's learner, with half the steps."""
    half = learner.settings.halved()
    telling = replace(learner, network=learner.network.telling(), settings=half)
    free_rows = half.min_steps // half.num_epochs * half.batch_size
    return GateLearner(telling, learner.network.has_classes, free_rows)


@dataclass(frozen=True, slots=True)
class DeepEnsemble(Learner):
    """Several independent fits of a learner, from different initial weights."""

    member: NetworkLearner
    size: int = 5

    @property
    def network(self) -> Network:
        """The members' network."""
        return self.member.network

    @property
    def device(self) -> str:
        """The members' device."""
        return self.member.device

    def fit(
        self, rows: Rows, *, rng: torch.Generator, start: WeightSamples | None = None
    ) -> NetworkPredictor:
        """Fit every member with randomness of its own."""
        if self.size < 1:
            raise TrainingError(f"an ensemble needs at least one member, not {self.size}")
        stack: SampleStack | None = None
        for own in split(rng, self.size):
            fitted = self.member.fit(rows, rng=own, start=start).samples
            stack = stack or SampleStack(self.size * len(fitted))
            stack.add(fitted)
        assert stack is not None
        return NetworkPredictor(self.network, stack.taken(), self.device)

    def gate_learner(self) -> GateLearner | None:
        """Return the learner of a gate."""
        gate = self.member.gate_learner()
        return gate and replace(gate, learner=replace(self, member=gate.learner))

    def slower(self) -> DeepEnsemble | None:
        """Return the same with members of half the step."""
        member = self.member.slower()
        return member and replace(self, member=member)
