"""Private predictions: those of a model that was learnt with noise, and a count with noise.

Nothing else leaves: no gate, no counts of classes, and no reference row decides who is held out.
The site's secret decides that, by a coin for each person, tossed anew for each release. No row
decides whether the site refuses: cells are clipped, or missing, one by one
(`tables.column.Outside`), and neither few rows nor reference rows that are near to them are a
reason to refuse.
What the upload promises to each person is written into the site's book of budgets before anything
is trained.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from predbayes.errors import DataError, TrainingError
from predbayes.exchange.upload import Upload
from predbayes.learning.local import Predictor, kept_together
from predbayes.seeding import generator
from predbayes_study.extras.privacy.budget import require_budget
from predbayes_study.extras.privacy.private import MECHANISM, Noise, PrivateLogistic
from predbayes_study.extras.privacy.secret import (
    NUM_BYTES,
    SUFFIX,
    derived,
    read_secret,
    release_id,
)
from predbayes_study.payloads.details import promising
from predbayes_study.payloads.predictions import Predictions
from predbayes_study.plan.models import upload_dtype
from predbayes_study.plan.schema import Plan
from predbayes_study.site.book import Book, Release
from predbayes_study.tables.mapping import PATIENT

if TYPE_CHECKING:
    import pandas as pd

    from predbayes_study.site.fitting import Job
    from predbayes_study.site.policy import SitePolicy
    from predbayes_study.site.rows import SiteRows
    from predbayes_study.tables.sitefile import SiteFile


class PrivatePredictions(Predictions):
    """Predictions under a promise of differential privacy."""

    words = "private.html.j2"

    refusals_tell = False  # they would reveal rows without noise

    def in_words(self, plan: Plan) -> str:
        """Return what leaves, and that it has noise."""
        rows = f"{plan.reference.num_rows:,} reference rows"
        return f"predictions on {rows}, your number of rows with noise"

    def secret(self, own: SiteFile, *, may_make: bool = True) -> bytes:
        """Return the site's secret; without one, a site that only looks has a stand-in."""
        path = own.key_path.with_suffix(SUFFIX)
        return read_secret(path) if may_make or path.exists() else b"0" * NUM_BYTES

    def usable(self, plan: Plan, frame: pd.DataFrame) -> Tensor | None:
        """Leave out rows of unknown people if people are promised something.

        A single row without a patient must not decide whether the site takes part.
        """
        if plan.promise is None or plan.promise.unit != "person":
            return None
        if PATIENT not in frame:
            raise DataError(
                "[privacy] of the plan is for each person, and site.toml has to say whose each row "
                "is (patient = COLUMN), because rows of one person are clipped as one"
            )
        return torch.tensor((frame[PATIENT] != "").to_numpy(bool))

    def hold_out(self, plan: Plan, site: str, rows: SiteRows) -> Tensor:
        """Toss a coin of the site's secret for each person.

        A share, or a blind spot, would hold somebody out because of somebody else's rows: two
        people would differ between neighbouring tables. Coins are independent of all rows, so each
        person can be compared under the same one.

        Another release has coins of its own, as it has noise: they would go by place in the table
        otherwise, and somebody new at the top would move everybody else's.
        """
        whose = torch.arange(len(rows.targets))
        if rows.patients is not None:
            whose = torch.unique(rows.patients, return_inverse=True)[1]
        path = ("coins", plan.digest(), site, rows.digest(), str(MECHANISM))
        noise = Noise(derived(_secret_of(rows), *path))
        coins = noise.uniforms(len(whose), "held out") < plan.learner.holdout
        return torch.from_numpy(coins)[whose]

    def holdout_rule(self, plan: Plan) -> str:
        """Say that coins decide."""
        return f"{plan.learner.holdout:.0%} by a coin of the site's secret for each person"

    def reserve(self, job: Job, *, table: str, policy: SitePolicy, folder: Path) -> None:
        """Write the promise into the book of budgets; a policy may refuse it."""
        plan, learner = job.kit.plan, private_learner(job)
        assert plan.promise is not None  # as this payload is of such plans
        spent = Release(
            table=table,
            release=release_id(release_key(job, learner)),
            plan=job.kit.digest,
            study=plan.name,
            site=job.site,
            guarantee=plan.promise,
        )
        Book(folder).spend(spent, partial(require_budget, policy, spent))

    def make(self, job: Job) -> tuple[Upload, Predictor]:
        """Learn with noise, and predict by that one model."""
        learner = private_learner(job)
        keyed = replace(learner, secret=release_key(job, learner))
        own = keyed.fit(
            job.trained,
            rng=generator(job.kit.plan.seed, "site", job.site),  # of which nothing is drawn
            **kept_together(keyed, job.rows.patients, job.kept),
        )
        said = own.predict(job.kit.inputs)
        upload = Upload.of_predictions(said, num_rows=own.people, dtype=upload_dtype(job.kit.plan))
        named = upload.named(job.site).for_plan(job.kit.digest, learner.name)
        assert learner.guarantee is not None  # as `make_learner` makes it
        return promising(named, learner.guarantee), own


def private_learner(job: Job) -> PrivateLogistic:
    """Return the learner of a job; refuse one that has no noise."""
    promise = job.kit.plan.promise
    if not isinstance(job.fitted, PrivateLogistic):
        assert promise is not None
        raise TrainingError(f"the plan promises {promise.text}, and this learner has no noise")
    return job.fitted


def release_key(job: Job, learner: PrivateLogistic) -> bytes:
    """Return the key of the noise of an upload: another one if anything of it is another."""
    path = ("release", job.kit.digest, job.site, job.rows.digest(), learner.settings)
    return derived(_secret_of(job.rows), *path)


def _secret_of(rows: SiteRows) -> bytes:
    """Refuse to draw what must be secret from what everybody knows."""
    if not rows.secret:
        raise TrainingError(
            "the plan promises differential privacy: `predbayes site train` makes what leaves, "
            "with noise of the site's secret"
        )
    return rows.secret
