"""A site's part in making its upload: which rows it trains on, what it fits, and the randomness.

The upload itself is the plan's payload's to make (`predbayes_study.payload`), of a `Job`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import DataError, TrainingError
from predbayes.exchange.upload import Upload
from predbayes.learning.checkpoint import Checkpoint
from predbayes.learning.local import (
    Learner,
    Predictor,
    SGHMCLearner,
    fit_with_retries,
    kept_together,
)
from predbayes.learning.named import AUTO
from predbayes.threads import threads
from predbayes_study.kit.kit import Kit
from predbayes_study.payload import ModelPayload, payload_of
from predbayes_study.payloads.details import having_seen
from predbayes_study.plan.draws import site_rng
from predbayes_study.plan.models import choose_learner, make_learner
from predbayes_study.plan.networks import IN_SITE_FILE, require_allowed
from predbayes_study.plan.schema import Plan
from predbayes_study.site.rows import SiteRows
from predbayes_study.tasks.choice import Choice
from predbayes_study.trust.signing import SigningKey


@dataclass(frozen=True)  # without slots, where what is made once is kept
class Job:
    """What a site was asked to make of its rows.

    Args:
        kit: Kit of the study.
        site: Name of the site.
        rows: All of its rows with a target.
        learner: What it fits: a learner, or a name that `predbayes_study.plan.models` knows.
        key: Key of the site, for payloads that need one before they are signed.
        checkpoint: Where a sampler keeps how far it is.
        device: Where a network is trained.
        allow_networks: Networks of the consortium's own that the site runs, by their names.
    """

    kit: Kit
    site: str
    rows: SiteRows
    learner: str | Learner
    key: SigningKey | None = None
    checkpoint: Checkpoint | None = None
    device: str = "cpu"
    allow_networks: Collection[str] = ()

    @cached_property
    def kept(self) -> Tensor:
        """Places of the rows to train on."""
        return self.rows.split_for(self.kit, self.site)[0]

    @cached_property
    def trained(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the rows to train on."""
        return self.rows[self.kept]

    @cached_property
    def trained_digest(self) -> str:
        """SHA-256 of the rows to train on."""
        return SiteRows(*self.trained).digest()

    @cached_property
    def fitted(self) -> Learner:
        """The learner."""
        if self.learner == "network":
            require_allowed(self.kit.plan, self.allow_networks, IN_SITE_FILE)
        if isinstance(self.learner, str):
            return make_learner(self.kit.plan, self.learner, self.device)
        return self.learner

    @cached_property
    def rng(self) -> torch.Generator:
        """The generator of the model and its predictions, in this order.

        A sampler goes on after it was killed, so its generator does not depend on the rows.
        """
        drawn_by = () if isinstance(self.fitted, SGHMCLearner) else (self.trained_digest,)
        return site_rng(self.kit.plan, "site", self.site, *drawn_by)

    def fit(self) -> Predictor:
        """Fit the learner to the rows to train on."""
        options: dict[str, Any] = kept_together(self.fitted, self.rows.patients, self.kept)
        if isinstance(self.fitted, SGHMCLearner):
            options["checkpoint"] = self.checkpoint
        own: Predictor = fit_with_retries(self.fitted, self.trained, rng=self.rng, **options)
        return own

    def named(self, upload: Upload) -> Upload:
        """Return an upload with the names of site, plan and learner."""
        name = self.learner if isinstance(self.learner, str) else type(self.learner).__name__
        return upload.named(self.site).for_plan(self.kit.digest, name.replace(":", ".")[-64:])

    def run(self, payload: ModelPayload | None = None) -> tuple[Upload, Predictor]:
        """Make the upload, and return it with the site's own model, which stays.

        Args:
            payload: What to make in place of what the plan asks for.
        """
        plan = self.kit.plan
        payload = payload or payload_of(plan)
        people = self.rows.patients_of(self.kept)
        if why := payload.why_refused(plan, self.trained, plan.rules.min_cell, people):
            raise DataError(why)
        with threads(plan.learner.threads):
            upload, own = payload.make(self)
        return having_seen(upload, self.kit.head), own


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
    own, fitted = SiteRows(*rows), learner or kit.plan.learner_or(None)
    if fitted == AUTO:
        fitted = choose_at_site(kit, site, own).name
    return Job(kit, site, own, fitted, allow_networks=allow_networks).run()[0]


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
    rng = site_rng(plan, "choice", site, kept.digest())
    with threads(plan.learner.threads):
        return choose_learner(
            plan,
            (kept.inputs, kept.targets),
            allowed=allowed,
            device=device,
            groups=rows.patients_of(trained),
            rng=rng,
        )
