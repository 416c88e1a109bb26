"""From a site's rows to its upload: choose a learner, fit it, learn the gate.

    choose    with the learner `auto`: which of a few serves the rows best, by cross-validation
    fit       the plan's network, or with uploads of predictions any learner
    gate      if the plan asks for it: how dense the site's rows lie at each reference row, learnt
              by the learner's counterpart for two classes (`predbayes.learning.gate`)
    upload    predictions on the reference inputs, or weight samples; gate; row count, and class
              counts where none is below the plan's `min_cell`. Or sums of moments of the rows
              (`study.site.sums`): then the model that was fitted stays, for the site to compare

Under a plan that promises differential privacy (`[privacy]`) there are predictions of a model
that was learnt with noise, a count with noise, and nothing else: no blind spot, no gate, no class
counts.

Everything random derives from the plan's seed, the site's name and, where a learner is refitted by
the bootstrap, its rows: the same rows give the same upload to the bit. With other rows, be it one
less, every bootstrap weight is drawn anew, so that the difference of two uploads is mostly theirs,
and not the person's who was taken out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import TrainingError
from predbayes.exchange.upload import Upload
from predbayes.learning.checkpoint import Checkpoint
from predbayes.learning.gate import GateBounds, log_density_ratio
from predbayes.learning.local import (
    GateLearner,
    Learner,
    Predictor,
    SGHMCLearner,
    fit_with_retries,
    kept_together,
)
from predbayes.learning.named import AUTO
from predbayes.methods.pooled import upload_of
from predbayes.seeding import generator
from predbayes.threads import threads
from predbayes_study.extras.privacy.private import PrivateLogistic
from predbayes_study.kit.kit import Kit
from predbayes_study.payloads.details import having_seen, promising
from predbayes_study.plan.models import choose_learner, make_learner, upload_dtype
from predbayes_study.plan.networks import IN_SITE_FILE, require_allowed
from predbayes_study.plan.schema import Plan
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.secret import derived
from predbayes_study.site.sums import require_many, upload_of_sums
from predbayes_study.tasks import task_of
from predbayes_study.tasks.choice import Choice


def make_upload(
    kit: Kit,
    site: str,
    rows: tuple[Tensor, Tensor],
    *,
    learner: str | Learner = "",
    allow_networks: Collection[str] = (),
) -> Upload:
    """Train on a site's inputs and targets, and make what it sends; nothing is written.

    The learner is one, or a name that `predbayes_study.plan.models` knows; without it the plan's.
    A network of the consortium's own is imported only if it is allowed by its name.
    """
    if kit.plan.sealing is not None:
        raise TrainingError(
            "the plan's sums are sealed: `predbayes site train` makes what leaves, with a key"
        )
    if kit.plan.promise is not None:
        SiteRows(*rows).require_secret()
    own, fitted = SiteRows(*rows), learner or kit.plan.learner_or(None)
    if fitted == AUTO:
        fitted = choose_at_site(kit, site, own).name
    return fit_site(kit, site, own, fitted, allow_networks=allow_networks)[0]


def require_learner(plan: Plan, name: str) -> None:
    """Refuse a choice that the plan does not leave open."""
    if plan.learner.name != "any" and name != plan.learner.name:
        raise TrainingError(
            f"the plan asks every site for the learner {plan.learner.name!r}; leave --learner out"
        )


def choose_at_site(
    kit: Kit, site: str, rows: SiteRows, allowed: Collection[str] = (), device: str = "cpu"
) -> Choice:
    """Choose what `auto` is for a site's rows; those held out have no part in it."""
    plan, trained = kit.plan, rows.split_for(kit, site)[0]
    kept = SiteRows(*rows[trained])
    rng = generator(plan.seed, "choice", site, kept.digest())
    with threads(plan.learner.threads):
        return choose_learner(
            plan,
            (kept.inputs, kept.targets),
            allowed=allowed,
            device=device,
            groups=rows.patients_of(trained),
            rng=rng,
        )


def fit_site(
    kit: Kit,
    site: str,
    rows: SiteRows,
    learner: str | Learner,
    *,
    checkpoint: Checkpoint | None = None,
    device: str = "cpu",
    allow_networks: Collection[str] = (),
) -> tuple[Upload, Predictor]:
    """Train on the rows that are not held out; what is sent, and the site's own model."""
    plan, head = kit.plan, kit.head
    if learner == "network":
        require_allowed(plan, allow_networks, IN_SITE_FILE)
    kept, _held_out = rows.split_for(kit, site)
    if plan.sums_alone:
        require_many(plan, *rows[kept], plan.rules.min_cell, rows.patients_of(kept))
    fitted = make_learner(plan, learner, device) if isinstance(learner, str) else learner
    if isinstance(fitted, PrivateLogistic):
        return _private(kit, site, rows, fitted)
    if plan.promise is not None:
        raise TrainingError(f"the plan promises {plan.promise.text}, and this learner has no noise")
    options: Any = {"checkpoint": checkpoint} if isinstance(fitted, SGHMCLearner) else {}
    options |= kept_together(fitted, rows.patients, kept)
    drawn_by = () if isinstance(fitted, SGHMCLearner) else (SiteRows(*rows[kept]).digest(),)
    rng = generator(plan.seed, "site", site, *drawn_by)
    with threads(plan.learner.threads):
        own = fit_with_retries(fitted, rows[kept], rng=rng, **options)
        if plan.sums_alone:
            sums = upload_of_sums(plan, *rows[kept])
            return having_seen(sums.named(site).for_plan(kit.digest), head), own
        gate_learner = gate_learner_of(plan, fitted, device, allow_networks) if plan.gate else None
        upload = upload_of(
            own,
            "predictions",
            rows[kept],
            kit.inputs,
            count_classes=task_of(plan).by_class,
            gate=_gate(kit, site, rows, kept, gate_learner, checkpoint),
            dtype=upload_dtype(plan),
            rng=rng,
        )
    # Under a mask no count of one site is seen.
    told = upload if plan.sealing is not None else _suppressed(upload, plan.rules.min_cell)
    name = learner if isinstance(learner, str) else type(learner).__name__
    told = told.named(site).for_plan(kit.digest, name.replace(":", ".")[-64:])
    return having_seen(told, head), own


def _private(
    kit: Kit, site: str, rows: SiteRows, learner: PrivateLogistic
) -> tuple[Upload, Predictor]:
    """What leaves under a promise of differential privacy: all of it is of one noisy model."""
    assert learner.guarantee is not None  # as `make_learner` makes it
    kept, _held_out = rows.split_for(kit, site)
    keyed = replace(learner, secret=release_key(kit, site, rows, learner))
    with threads(kit.plan.learner.threads):
        own = keyed.fit(
            rows[kept],
            rng=generator(kit.plan.seed, "site", site),  # of which nothing is drawn
            **kept_together(keyed, rows.patients, kept),
        )
        said = own.predict(kit.inputs)
    upload = Upload.of_predictions(said, num_rows=own.people, dtype=upload_dtype(kit.plan))
    told = promising(upload.named(site).for_plan(kit.digest, learner.name), learner.guarantee)
    return having_seen(told, kit.head), own


def release_key(kit: Kit, site: str, rows: SiteRows, learner: PrivateLogistic) -> bytes:
    """Return the key of the noise of an upload: another one if anything of it is another."""
    rows.require_secret()
    return derived(rows.secret, "release", kit.digest, site, rows.digest(), learner.settings)


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


def _gate(
    kit: Kit,
    site: str,
    rows: SiteRows,
    kept: Tensor,
    gate_learner: GateLearner | None,
    checkpoint: Checkpoint | None,
) -> Tensor | None:
    """The site's gate on the reference rows: all of them are contrast rows, roles are secret."""
    plan = kit.plan
    if plan.gate is None or gate_learner is None:
        return None
    if checkpoint is not None and isinstance(gate_learner.learner, SGHMCLearner):
        gate_learner = replace(gate_learner, learner=_Resumed(gate_learner.learner, checkpoint))
    own = rows[kept]
    return log_density_ratio(
        gate_learner,
        own,
        kit.inputs,
        bounds=GateBounds(plan.gate.floor, plan.gate.ceiling),
        groups=rows.patients_of(kept),
        # Of its own, so that a plan without a gate has the same model; by the rows, as bootstrap
        # weights are.
        rng=generator(plan.seed, "gate", site, SiteRows(*own).digest()),
    )


@dataclass(frozen=True, slots=True)
class _Resumed(Learner):
    """A learner each of whose fits, told by their order, goes on where it was stopped."""

    learner: SGHMCLearner
    checkpoint: Checkpoint  # of the site's model, beside which those of the fits are kept
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def slower(self) -> _Resumed:
        """The same with half the step; its fits are further ones."""
        return replace(self, learner=self.learner.slower())

    def fit(self, rows: Any, *, rng: torch.Generator) -> Any:
        own = self.checkpoint.beside(f"gate-{next(self.numbers)}")
        return self.learner.fit(rows, rng=rng, checkpoint=own)


def _suppressed(upload: Upload, min_cell: int) -> Upload:
    """Without class counts if any of them is so small that it could point to people."""
    counts = upload.info.class_rows
    if counts is None or min(counts) >= min_cell:
        return upload
    return dataclasses.replace(upload, info=upload.info.model_copy(update={"class_rows": None}))
