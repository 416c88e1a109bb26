"""What a site does: fit a model to its rows, and make the one file that it sends.

    rows      encoded as the plan says; a share of them is held out and never trained on
    fit       the plan's network, or with uploads of predictions any learner
    upload    predictions on the reference inputs, or weight samples; row count, and class counts
              where none is below the plan's `min_cell`

Everything random derives from the plan's seed and the site's name: the same rows give the same
upload to the bit.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from predbayes.exchange.upload import Upload
from predbayes.learning.local import LocalLearner
from predbayes.methods.pooled import send_predictive
from predbayes.seeding import generator
from predbayes.study.kit import Kit
from predbayes.study.learners import make_learner
from predbayes.study.plan import Plan


def make_upload(
    kit: Kit,
    site: str,
    rows: tuple[Tensor, Tensor],
    *,
    learner: str | LocalLearner = "network",
) -> Upload:
    """Train on a site's rows, and make what it sends.

    Args:
        kit: The plan and its reference inputs.
        site: Its name.
        rows: Inputs and targets, encoded as the plan says.
        learner: A name that `predbayes.study.learners` knows, or a learner.
    """
    plan = kit.plan
    inputs, targets = rows
    kept, _held_out = split_rows(plan, site, len(targets))
    named = isinstance(learner, str)
    upload = send_predictive(
        make_learner(plan, learner) if isinstance(learner, str) else learner,
        plan.upload.kind,
        (inputs[kept], targets[kept]),
        kit.inputs,
        count_classes=plan.classification,
        rng=generator(plan.seed, "site", site),
    )
    told = _suppressed(upload, plan.rules.min_cell)
    if plan.upload.kind == "predictions":
        dtype = plan.upload.dtype
        arrays = {name: array.to(dtype) for name, array in told.arrays.items()}
        told = dataclasses.replace(told, arrays=arrays)
    name = str(learner) if named else type(learner).__name__
    return told.from_site(site).for_plan(kit.digest, name)


def split_rows(plan: Plan, site: str, num_rows: int) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held out, ascending; the same whenever it is asked."""
    order = torch.randperm(num_rows, generator=generator(plan.seed, "holdout", site))
    num_held_out = int(plan.learner.holdout * num_rows)
    return order[num_held_out:].sort().values, order[:num_held_out].sort().values


def _suppressed(upload: Upload, min_cell: int) -> Upload:
    """Without class counts if any of them is so small that it could point to people."""
    counts = upload.info.class_rows
    if counts is None or min(counts) >= min_cell:
        return upload
    return dataclasses.replace(upload, info=upload.info.model_copy(update={"class_rows": None}))
