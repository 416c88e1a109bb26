"""Private predictions: those of a model that was learnt with noise, and a count with noise.

Nothing else leaves: no gate, no counts of classes, and no reference row decides who is held out.
What the upload promises to each person is written into the site's book of budgets before anything
is trained.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from predbayes.errors import TrainingError
from predbayes.exchange.upload import Upload
from predbayes.learning.local import Predictor, kept_together
from predbayes.seeding import generator
from predbayes_study.extras.privacy.private import PrivateLogistic
from predbayes_study.payloads.details import promising
from predbayes_study.payloads.predictions import Predictions
from predbayes_study.plan.models import upload_dtype
from predbayes_study.plan.schema import Plan
from predbayes_study.site.budget import Book, Spent
from predbayes_study.site.secret import derived, release_id

if TYPE_CHECKING:
    from predbayes_study.site.fitting import Job
    from predbayes_study.site.policy import SitePolicy


class PrivatePredictions(Predictions):
    """Predictions under a promise of differential privacy."""

    def in_words(self, plan: Plan) -> str:
        """Return what leaves, and that it has noise."""
        rows = f"{plan.reference.num_rows:,} reference rows"
        return f"predictions on {rows}, your number of rows with noise"

    def reserve(self, job: Job, *, table: str, policy: SitePolicy, folder: Path) -> None:
        """Write the promise into the book of budgets; a policy may refuse it."""
        plan, learner = job.kit.plan, private_learner(job)
        assert plan.promise is not None  # as this payload is of such plans
        spent = Spent(
            table=table,
            release=release_id(release_key(job, learner)),
            plan=job.kit.digest,
            study=plan.name,
            site=job.site,
            guarantee=plan.promise,
        )
        Book(folder).spend(spent, policy)

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
    job.rows.require_secret()
    path = ("release", job.kit.digest, job.site, job.rows.digest(), learner.settings)
    return derived(job.rows.secret, *path)
