"""What every result is made with: plan, reference rows, labels, and the coordinator's own model.

Scores are of the `evaluate` rows if the plan has some, otherwise of the labelled rows. Every
generator derives from the plan's seed, so that the same uploads give the same bits.
"""

from __future__ import annotations

import logging
import platform
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

import predbayes
from predbayes.errors import (
    DivergedError,
    PoolError,
    PredbayesError,
    StudyError,
    TrainingError,
    UploadError,
    checking,
)
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.upload import Upload
from predbayes.learning.crossfit import cross_fitted
from predbayes.learning.local import NetworkPredictor
from predbayes.learning.named import AUTO
from predbayes.learning.training import resolve_device
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Predictive
from predbayes.predictive.measures import mean_estimate
from predbayes.predictive.metrics import nll_rows
from predbayes.predictive.selection import why_untunable
from predbayes.progress import tell_step
from predbayes.seeding import generator
from predbayes_study.kit.kit import Kit, Labels
from predbayes_study.plan.models import choose_learner, make_learner
from predbayes_study.plan.schema import Plan
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.groups import group_scores
from predbayes_study.result.importance import importances
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import (
    PoolResult,
    Result,
    Scores,
    SiteResult,
    StudentResult,
)
from predbayes_study.result.scoring import (
    score,
    verdict,
)
from predbayes_study.tasks import task_of

_log = logging.getLogger(__name__)

Read = Callable[[AcceptedUpload], Upload]
"""How an accepted upload is read; the caller knows where the files are."""


@dataclass(frozen=True, slots=True)
class ResultMeta:
    """What a result says about itself beside what it found."""

    number: int
    finished: str
    ledger_digest: str
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a result is made of.

    Args:
        kit: Kit of the study.
        labels: The coordinator's labels.
        uploads: All that count, in the order of their digests.
        read: Reads one of them.
        meta: What the result says about itself.
        leave_out: Sites that are left out by hand; they are shown all the same.
        openings: Files of the key holders, if the sum of the uploads is sealed.
        device: Where networks are run and trained.
    """

    kit: Kit
    labels: Labels
    uploads: Sequence[AcceptedUpload]
    read: Read
    meta: ResultMeta
    leave_out: frozenset[str] = frozenset()
    openings: Sequence[Path] = ()
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The model, and the result that tells about it."""

    model: CalibratedModel
    result: Result


class UnusableUploadError(StudyError):
    """An upload that no result can be made of.

    Args:
        site: The site that sent it.
        what: What it is, or cannot be.
        why: The error.
    """

    def __init__(self, site: str, what: str, why: str) -> None:
        super().__init__(
            f"the upload of {site} {what} ({why}); take it out with `predbayes study withdraw "
            f"{shlex.quote(site)}`, then finish again"
        )
        self.site, self.why = site, why


@contextmanager
def naming(site: str, together: str = "") -> Iterator[None]:
    """Name the site whose upload is at fault, and the way out.

    Args:
        site: The site.
        together: What its upload is among several that are used in this block; empty if it is the
            only one. Then any error is its fault.
    """
    try:
        with nullcontext() if together else checking(UploadError):
            yield
    except (PoolError, UploadError, DivergedError, ValidationError, ArithmeticError) as error:
        why = str(error) if isinstance(error, PredbayesError) else "a figure is not finite"
        if together:
            raise StudyError(str(UnusableUploadError(site, together, why))) from error
        raise UnusableUploadError(site, "cannot be used", why) from error


@dataclass(frozen=True)  # without slots, where what is made once is kept
class Analysis:
    """The steps that need plan, reference rows and labels, and no upload."""

    plan: Plan
    reference: ReferenceRows
    labels: Labels
    device: str = "cpu"

    @classmethod
    def of(cls, evidence: Evidence) -> Analysis:
        """Begin with all reference rows."""
        labels = evidence.labels
        device = str(resolve_device(evidence.device))
        return cls(evidence.kit.plan, labels.reference, labels, device)

    def on(self, reference: ReferenceRows) -> Analysis:
        """Return the same with other labelled rows; those of `reference` are scored."""
        return Analysis(self.plan, reference, self.labels, self.device)

    def rng(self, *path: str | int) -> torch.Generator:
        """Return a generator for one use."""
        return generator(self.plan.seed, "finish", *path)

    @property
    def scored_rows(self) -> slice:
        """Reference rows that are scored."""
        reference = self.reference
        return reference.evaluate if reference.num_evaluate else reference.labelled

    @property
    def scored_targets(self) -> Tensor:
        """Their labels."""
        reference = self.reference
        return self.labels.evaluate_targets if reference.num_evaluate else reference.targets

    def score(self, predictive: Predictive) -> Scores | None:
        """Score predictions for the scored rows; None without labels."""
        return score(self.plan, predictive, self.scored_targets)

    def own_model(self) -> Predictive | None:
        """The coordinator's own model on all reference rows, honest on the labelled ones."""
        reference, name = self.reference, self.plan.pool.own
        if name == "none" or why_untunable(reference.targets):
            return None
        tell_step("fit the coordinator's own model of the labelled rows")
        try:
            learner = make_learner(self.plan, self.own_learner, self.device)
            return cross_fitted(
                learner, reference.inputs, reference.targets, rng=self.rng("own model")
            )
        except TrainingError as error:
            _log.warning("the pool is without a model of the labelled rows: %s", error)
            return None

    @cached_property
    def own_learner(self) -> str:
        """The name of the coordinator's own model; `auto` is what serves the labelled rows best.

        All of them choose one of three once: that they are then predicted by it as if they had not
        chosen flatters it by less than they can tell.
        """
        reference, name = self.reference, self.plan.pool.own
        if name != AUTO:
            return name
        rows = reference.inputs[reference.labelled], reference.targets
        return choose_learner(
            self.plan, rows, device=self.device, rng=self.rng("own model", "choice")
        ).name

    def chosen_own(self, own: Predictive | None) -> str:
        """Return what the coordinator's own model is, if the labelled rows chose it."""
        return "" if own is None or self.plan.pool.own != AUTO else self.own_learner

    def conclusion(
        self,
        evidence: Evidence,
        *,
        model: NetworkPredictor,
        predicted: Predictive,
        own: Predictive | None,
        student: StudentResult,
        pool: PoolResult,
        sites: Iterable[SiteResult],
        cautions: tuple[str, ...],
        pooled: Scores | None = None,
        mixture: Scores | None = None,
    ) -> Conclusion:
        """Judge the common model, and put everything that is known of it into a result.

        Args:
            evidence: What the result is made of.
            model: The common model.
            predicted: What it says of the scored rows, made without their labels.
            own: The coordinator's own model on all reference rows.
            student: How the common model came about.
            pool: How the sites were pooled.
            sites: The sites, in any order.
            cautions: What a reader should know first.
            pooled: Scores of the pool.
            mixture: Scores of the mixture of the sites.
        """
        tell_step("score the model")
        plan, meta = self.plan, evidence.meta
        targets, rows = self.scored_targets, self.scored_rows
        task, shown = task_of(plan), None
        if len(targets):
            shown = task.calibration(plan, predicted, targets, rng=self.rng("reliability"))
        shown_as = {task.shown_as: shown}
        groups, group_words = group_scores(plan, self.reference.inputs[rows], predicted, targets)
        risks = task.risks(plan, predicted, targets, rng=self.rng("risks"))
        can_judge, words = verdict(plan, len(targets), shown, cautions, risks)
        in_order = tuple(sorted(sites, key=lambda site: site.site))
        result = Result(
            number=meta.number,
            finished=meta.finished,
            study=plan.name,
            plan_digest=evidence.kit.digest,
            ledger_digest=meta.ledger_digest,
            withdrawn=meta.withdrawn,
            sites=in_order,
            scored_on=self._scored_on,
            num_scored=len(targets),
            can_judge=can_judge,
            cautions=cautions,
            verdict=words,
            pool=pool,
            pooled=pooled,
            mixture=mixture,
            server_only=None if own is None else self.score(own[rows]),
            student=student,
            paid=self._paid(own, predicted),
            class_shares=task.class_shares(plan, targets),
            risks=risks,
            groups=groups,
            group_words=group_words,
            importances=importances(
                plan, model, self.reference.inputs, rng=self.rng("importances")
            ),
            curves=shown_as.get("curves"),
            reliability=shown_as.get("reliability"),
            coverage=shown_as.get("coverage"),
            bytes_in=sum(site.num_bytes for site in in_order),
            bytes_out=evidence.kit.num_bytes * len(in_order),
            versions=versions(),
        )
        return Conclusion(CalibratedModel(plan, model, meta.number), result)

    @property
    def _scored_on(self) -> Literal["evaluate", "cross-fitted", "nothing"]:
        if not len(self.scored_targets):
            return "nothing"
        return "evaluate" if self.reference.num_evaluate else "cross-fitted"

    def _paid(self, own: Predictive | None, predicted: Predictive) -> Estimate | None:
        """What sites gained over the coordinator's labels alone, in nats per row."""
        targets = self.scored_targets
        if own is None or not len(targets):
            return None
        alone = nll_rows(own[self.scored_rows], targets)
        return mean_estimate(alone - nll_rows(predicted, targets))


def versions() -> dict[str, str]:
    """Return what the bits of a result depend on beside plan and uploads."""
    return {
        "predbayes": predbayes.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
