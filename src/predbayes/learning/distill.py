"""Distillation: one network that predicts what the pool predicts.

The student minimises the mean over unlabelled inputs of (Paper: alg:dBpredbayes, step 6)

    KL( teacher(x) || student(x) )

in either family. The teacher's predictives are computed once and cached; an epoch of
distillation costs an epoch of ordinary training, whatever the number of clients and samples. A
Gaussian student has a variance head (`LearnedNoise(per_input=True)`).

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
    family = student.likelihood.family
    if not isinstance(teacher, family):
        raise TrainingError(
            f"the teacher is {type(teacher).__name__}, the student's likelihood "
            f"{family.__name__}; choose a student of the teacher's family"
        )
    model = student.create(rng)
    if start is not None:
        start.load_into(model)
    model.to(device)
    # Natural coordinates are what every family can be packed into and rebuilt from, batch by batch.
    targets = teacher.natural().to(device, torch.get_default_dtype())
    with torch.no_grad():
        trial = student.likelihood.predictive(model.eval()(inputs[:1].to(device)).unsqueeze(0))
    if trial.natural().shape[1] != targets.shape[1]:
        raise TrainingError(
            f"the teacher predicts {targets.shape[1]} classes, the student "
            f"{trial.natural().shape[1]}; give the student as many outputs"
        )
    batches = TensorBatches(inputs.to(device), targets, settings.batch_size)

    def divergence(outputs: Tensor, natural: Tensor) -> Tensor:
        predicted = student.likelihood.predictive(outputs.unsqueeze(0))
        return family.from_natural(natural).kl(predicted).mean()

    train(
        model,
        divergence,
        batches,
        settings.build(model),
        num_epochs=settings.epochs_for(len(batches)),
        rng=rng,
    )
    return NetworkPredictor(student, WeightSamples.of(model), device)
