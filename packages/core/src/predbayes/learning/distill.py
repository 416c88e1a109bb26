"""Distillation: one network that predicts what the pool predicts.

The student minimises the mean over unlabelled inputs of (Paper: alg:dBpredbayes, step 6)

    KL( teacher(x) || student(x) )

in either family, as a cross-entropy with soft targets (`predbayes.learning.likelihood`). These are
computed once; an epoch of distillation costs an epoch of ordinary training, whatever the number
of clients and samples. A Gaussian student has a variance head (`LearnedNoise(per_input=True)`).

A student that cannot quite follow its teacher is not quite as calibrated. `recalibrated` gives it
a temperature T of its own, eta = eta_student / T, by the exact solve of
`predbayes.predictive.tuning` on the labelled rows; for a Gaussian it scales the variance and leaves
the mean.

Released: the authors' regression student minimises the other direction, KL(student || teacher).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.learning.local import Network, NetworkPredictor, OptimizerSettings
from predbayes.learning.nets import input_weight
from predbayes.learning.training import TensorBatches, resolve_device
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Predictive
from predbayes.predictive.pooling import PredictiveSum
from predbayes.predictive.tuning import tune_temperature

DISTILLATION = OptimizerSettings(
    optimizer="adam", lr=3e-3, num_epochs=40, min_steps=2000, decay="cosine"
)
"""Ends near the teacher also on a few hundred rows, where 40 epochs are a hundred steps.

At a rate that stays a student circles its teacher; at one that decays it ends nearer, sooner.
"""

PAPER_DISTILLATION = OptimizerSettings(optimizer="adam", lr=1e-4, num_epochs=100)
"""The paper's settings for classification; made for 12,000 rows."""

TEMPERATURE_PRIOR_STD = 0.2
"""Spread of 1 / T around 1, so that a few labels leave a student nearly as it is."""


def distill(
    student: Network,
    teacher: Predictive,
    inputs: Tensor,
    *,
    settings: OptimizerSettings = DISTILLATION,
    start: WeightSamples | None = None,
    device: str = "cpu",
    rng: torch.Generator,
) -> NetworkPredictor:
    """Fit a student to a teacher's predictives on some inputs.

    Args:
        student: The network to fit; its likelihood must be of the teacher's family.
        teacher: Predictives on ``inputs``, row by row.
        inputs: Labels are not needed.
        settings: Optimiser and epochs.
        start: Initial weights, the last of these samples; random if None.
        device: Where to train.
        rng: Initial weights and order of the rows.
    """
    likelihood, on = student.likelihood, resolve_device(device)
    soft_targets = likelihood.soft_targets(teacher).to(on, torch.get_default_dtype())
    model = student.create(rng, start).to(on)
    with torch.no_grad():
        trial = likelihood.predictive(model.eval()(inputs[:1].to(on)).unsqueeze(0))
    if trial.moments().shape[1] != soft_targets.shape[1]:
        raise TrainingError(
            f"the teacher predicts {soft_targets.shape[1]} classes, the student "
            f"{trial.moments().shape[1]}; give the student as many outputs"
        )
    batches = TensorBatches(inputs.to(on), soft_targets, settings.batch_size)
    settings.minimize(model, likelihood.soft_loss, batches, rng=rng)
    return NetworkPredictor(student, WeightSamples.of(model), device)


def recalibrated(
    student: NetworkPredictor,
    inputs: Tensor,
    targets: Tensor,
    *,
    prior_std: float | None = TEMPERATURE_PRIOR_STD,
) -> NetworkPredictor:
    """Set the temperature of a student to that of least NLL; without labelled rows leave it.

    Args:
        student: What `distill` returns.
        inputs: Labelled reference inputs.
        targets: Their labels.
        prior_std: Spread of a normal prior on 1 / T around 1; None is no prior.
    """
    if not len(targets):
        return student
    # Of one client the product is the client itself; its mixture would pass through moments.
    alone = PredictiveSum.of(student.predict(inputs))
    tuned = tune_temperature(alone, targets, component="product", prior_std=prior_std)
    factor = tuned.profiles["inverse_temperature"].value
    return replace(student, inverse_temperature=factor * student.inverse_temperature)


def without_unseen_inputs(student: NetworkPredictor, inputs: Tensor) -> NetworkPredictor:
    """Make a fully connected student deaf to inputs that are zero in every row it saw.

    Such are flags of values that no reference row lacks, and categories that none has. Nothing was
    learnt about them; their weights are still those of the start, and would answer at random.
    """
    samples = student.samples
    name = input_weight(student.network.create(torch.Generator()))
    first_layer = samples.parameters[name]  # (M, out, in)
    heard = (inputs != 0).any(0)
    masked = torch.where(heard, first_layer, torch.zeros_like(first_layer))
    parameters = {**samples.parameters, name: masked}
    return replace(student, samples=WeightSamples(parameters, samples.buffers))
