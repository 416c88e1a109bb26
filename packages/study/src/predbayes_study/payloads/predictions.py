"""Predictions: what a site's model says of the reference rows, with its gate if the plan asks.

    make      fit the site's learner, learn the gate, predict the reference rows; counts of classes
              go with them where none is below the plan's `min_cell`
    check     counts and gate within bounds; then everything that `conclude` will do with it
    conclude  lift into the terms of the plan's pool, screen, pool, distil and score
              (`predbayes_study.result.conclude`)

Any model can take part. Everything random derives from the plan's seed, the site's name and, where
a learner is refitted by the bootstrap, its rows: the same rows give the same upload to the bit.
With other rows, be it one less, every bootstrap weight is drawn anew, so that the difference of two
uploads is mostly theirs, and not the person's who was taken out.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from predbayes.errors import UploadError
from predbayes.exchange.header import Spec, UploadInfo
from predbayes.exchange.upload import GATE, Upload
from predbayes.learning.checkpoint import Checkpoint
from predbayes.learning.gate import GateBounds, log_density_ratio
from predbayes.learning.local import (
    GateLearner,
    Learner,
    Predictor,
    SGHMCLearner,
)
from predbayes.methods.pooled import contribution, upload_of
from predbayes.predictive.families import LOG_PROB_FLOOR, Predictive
from predbayes.predictive.selection import GATED, TERMS
from predbayes_study.payload import ModelPayload
from predbayes_study.plan.draws import site_rng
from predbayes_study.plan.models import make_learner, standard_prior, upload_dtype
from predbayes_study.plan.networks import IN_SITE_FILE, require_allowed
from predbayes_study.plan.schema import Plan
from predbayes_study.result.analysis import Conclusion, Evidence
from predbayes_study.result.conclude import conclude
from predbayes_study.result.scoring import row_values
from predbayes_study.tasks import task_of

if TYPE_CHECKING:
    from predbayes_study.site.fitting import Job


class Predictions(ModelPayload):
    """What a site's model says of the reference rows."""

    kind = "predictions"
    permission = "predictions"

    def arrays(self, plan: Plan) -> Mapping[str, Spec]:
        """Return the arrays of the task's predictions, and the gate."""
        dtype, rows = plan.upload.precision, plan.reference.num_rows
        found = {name: Spec(dtype, shape) for name, shape in task_of(plan).shapes(plan).items()}
        return found if plan.gate is None else {**found, GATE: Spec(dtype, (rows,))}

    def in_words(self, plan: Plan) -> str:
        """Return what leaves, with gate and counts."""
        gate = "" if plan.gate is None else " and where your rows lie (the gate)"
        counts = "your number of rows"
        if task_of(plan).by_class:
            counts += " by class"
        return f"predictions{gate} on {plan.reference.num_rows:,} reference rows, {counts}"

    def meanings(self, plan: Plan, num_trained: int) -> Mapping[str, str]:
        """Return what predictions of each family, and a gate, mean."""
        del num_trained
        rows, classes = f"{plan.reference.num_rows:,}", plan.num_outputs
        return {
            "log_probs": f"probabilities that the site’s model gives to each of the {classes} "
            f"classes, as logarithms: one line for each of the {rows} reference rows",
            "mean": "value that the site’s model expects, one for each of the "
            f"{rows} reference rows",
            "log_odds": f"chance of the event that the site’s model gives to each of the {classes} "
            "intervals of time, for who reached it, as logarithms of odds: one line for each of "
            f"the {rows} reference rows",
            "epistemic_var": "how unsure the model is of it for want of rows (a variance), "
            "likewise",
            "noise_var": "how much true values scatter about it (a variance), likewise",
            GATE: f"how typical each of the {rows} reference rows is of the site’s own rows: how "
            "dense these lie there, against how dense reference rows do, as a logarithm",
        }

    def predict(self, job: Job) -> tuple[Upload, Predictor]:
        """Return the predictions of a site's model with its gate and all counts, not named yet."""
        plan, own = job.kit.plan, job.fit()
        upload = upload_of(
            own,
            "predictions",
            job.trained,
            job.kit.inputs,
            count_classes=task_of(plan).by_class,
            gate=_gate(job),
            dtype=upload_dtype(plan),
            rng=job.rng,
        )
        return upload, own

    def make(self, job: Job) -> tuple[Upload, Predictor]:
        """Predict; counts of classes stay if any is so small that it could point to people."""
        upload, own = self.predict(job)
        counts = upload.info.class_rows
        if counts is not None and _fewest_people(job) < job.kit.plan.rules.min_cell:
            info = upload.info.model_copy(update={"class_rows": None})
            upload = replace(upload, info=info)
        return job.named(upload), own

    def check(self, plan: Plan, upload: Upload, key: str) -> None:
        """Refuse impossible counts, gates out of bounds, and what could not be pooled."""
        del key
        check_counts(plan, upload.info)
        if upload.gate is not None and plan.gate is not None:
            # Over all rows: sites do not know which are kept for evaluation.
            bounds = GateBounds(plan.gate.floor, plan.gate.ceiling)
            bounds.check(upload.gate, most_rows=upload.info.num_rows)
        predictive = upload.predictive()
        if task_of(plan).is_bounded and upload.gate is None:
            return  # rows are within bounds, too: nothing can overflow
        task_of(plan).require_plausible(upload.arrays)
        rehearse(plan, upload, predictive)

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Screen, pool, distil and score."""
        return conclude(evidence)


def _fewest_people(job: Job) -> int:
    """Return how many people the smallest class has; without patients, how many rows."""
    targets = job.trained[1].long()
    whose = job.rows.patients_of(job.kept)
    whose = torch.arange(len(targets)) if whose is None else whose
    people = torch.unique(torch.stack([targets, whose]), dim=1)[0]
    return int(torch.bincount(people, minlength=job.kit.plan.num_outputs).min())


def check_counts(plan: Plan, info: UploadInfo) -> None:
    """Refuse counts of classes that are not the plan's, or more than all rows."""
    if info.class_rows is None:
        return
    if not task_of(plan).by_class or len(info.class_rows) != plan.num_outputs:
        raise UploadError("it does not count the plan's classes")
    if sum(info.class_rows) > info.num_rows * 1.001:
        raise UploadError("it counts more rows by class than in all")


@torch.inference_mode()  # of many small operations the bookkeeping for gradients is a good part
def rehearse(plan: Plan, upload: Upload, predictive: Predictive) -> None:
    """Do with one upload alone all that `conclude` will do with it; refuse it if that fails.

    Rows have nothing to do with each other, so those that have a smallest or largest coordinate
    stand for all. They are scored by the targets that are worst for them: no label is needed.
    """
    rows = _extreme_rows(predictive, upload.gate)
    sent = contribution(upload, predictive).at(rows)
    sent = replace(sent, predictive=sent.predictive.bounded(LOG_PROB_FLOOR))
    terms = TERMS[type(sent.predictive)]
    prior = standard_prior(plan)
    summand = sent.summand(prior=prior, terms=terms, floor=plan.pool.floor)
    lifted = summand.with_floats(summand.floats(), 1, prior)
    pools = [lifted.mixture(), lifted.product()]
    if GATED in lifted.components:
        pools.append(lifted.pool({GATED: 1.0}))
    if not _all_finite([pool.moments() for pool in pools]):
        raise UploadError("what it predicts cannot be pooled: it is not finite")
    scores = row_values(plan, sent.predictive, task_of(plan).worst(sent.predictive))
    if not _all_finite(scores.values()):
        raise UploadError("what it predicts cannot be scored: it is not finite")


def _extreme_rows(predictive: Predictive, gate: Tensor | None) -> Tensor:
    """Rows that have the smallest or the largest of some coordinate."""
    gates = [] if gate is None else [gate.unsqueeze(1)]
    columns = torch.cat([predictive.natural(), predictive.moments(), *gates], -1)
    values = columns.T.contiguous().numpy()  # whose search along memory is much the quicker
    return torch.from_numpy(np.concatenate([values.argmin(1), values.argmax(1)]))


def _all_finite(values: Iterable[Tensor]) -> bool:
    return bool(torch.cat([value.flatten().double() for value in values]).isfinite().all())


def gate_learner_of(
    plan: Plan, fitted: Learner, device: str, allow_networks: Collection[str]
) -> GateLearner:
    """Return the learner of the gate: the model's counterpart, or if it has none the network's."""
    found = fitted.gate_learner()
    if found is None:
        require_allowed(plan, allow_networks, IN_SITE_FILE)
        found = make_learner(plan, "network", device).gate_learner()
    assert found is not None  # a network has one
    return found


def _gate(job: Job) -> Tensor | None:
    """The site's gate on the reference rows: all of them are contrast rows, roles are secret."""
    plan, checkpoint = job.kit.plan, job.checkpoint
    if plan.gate is None:
        return None
    gate_learner = gate_learner_of(plan, job.fitted, job.device, job.allow_networks)
    if checkpoint is not None and isinstance(gate_learner.learner, SGHMCLearner):
        gate_learner = replace(gate_learner, learner=_Resumed(gate_learner.learner, checkpoint))
    return log_density_ratio(
        gate_learner,
        job.trained,
        job.kit.inputs,
        bounds=GateBounds(plan.gate.floor, plan.gate.ceiling),
        groups=job.rows.patients_of(job.kept),
        # By the rows, as bootstrap weights are.
        rng=site_rng(plan, "gate", job.site, job.trained_digest),
    )


@dataclass(frozen=True, slots=True)
class _Resumed(Learner):
    """A learner each of whose fits, counted in their order, goes on where it was stopped."""

    learner: SGHMCLearner
    checkpoint: Checkpoint  # of the site's model, beside which those of the fits are kept
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def slower(self) -> _Resumed:
        """The same with half the step; its fits are further ones."""
        return replace(self, learner=self.learner.slower())

    def fit(self, rows: Any, *, rng: torch.Generator) -> Any:
        own = self.checkpoint.beside(f"gate-{next(self.numbers)}")
        return self.learner.fit(rows, rng=rng, checkpoint=own)
