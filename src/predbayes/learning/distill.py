"""Distillation: one network that predicts what the pool predicts.

The student minimises the mean over unlabelled inputs of (Paper: alg:dBpredbayes, step 6)

    KL( teacher(x) || student(x) )

in either family, as a cross-entropy with soft targets (`predbayes.learning.likelihood`). These are
computed once; an epoch of distillation costs an epoch of ordinary training, whatever the number
of clients and samples. A Gaussian student has a variance head (`LearnedNoise(per_input=True)`).

Released: the authors' regression student minimises the other direction, KL(student || teacher).
"""

from __future__ import annotations

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.learning.local import Network, NetworkPredictor, OptimizerSettings
from predbayes.learning.training import TensorBatches, train
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Predictive

DISTILLATION = OptimizerSettings(optimizer="adam", lr=1e-3, num_epochs=100, min_steps=3000)
"""Ends near the teacher also on a few hundred rows, where 100 epochs are a few hundred steps."""

PAPER_DISTILLATION = OptimizerSettings(optimizer="adam", lr=1e-4, num_epochs=100)
"""The paper's settings for classification; made for 12,000 rows."""


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
    likelihood = student.likelihood
    soft_targets = likelihood.soft_targets(teacher).to(device, torch.get_default_dtype())
    model = student.create(rng, start).to(device)
    with torch.no_grad():
        trial = likelihood.predictive(model.eval()(inputs[:1].to(device)).unsqueeze(0))
    if trial.natural().shape[1] != soft_targets.shape[1]:
        raise TrainingError(
            f"the teacher predicts {soft_targets.shape[1]} classes, the student "
            f"{trial.natural().shape[1]}; give the student as many outputs"
        )
    batches = TensorBatches(inputs.to(device), soft_targets, settings.batch_size)
    train(
        model,
        likelihood.soft_loss,
        batches,
        settings.build(model),
        num_epochs=settings.epochs_for(len(batches)),
        rng=rng,
    )
    return NetworkPredictor(student, WeightSamples.of(model), device)
