"""Sums of moments: of agreed features of all rows, which add up to those of all sites.

    make      the sums over the rows trained on; the model that was fitted stays, to compare with
    check     sums of the rows that the upload states, of which a model can be fitted
    conclude  add up, fit the head of the total (`predbayes.learning.moments`), which is the model:
              nothing is tuned and nothing is distilled; judge it if there are labels

Sums are exact, so that neither the order nor the number of sites changes a bit of the total. A site
of more rows than the plan's `max_weight` allows has its sums scaled down to so many
(`predbayes_study.plan.weight`). No label has a part in the model, so all are there to score it.
The model of each site's sums is held against the sums of the others, and theirs against its own. A
site that agrees far less than the usual one (`predbayes_study.result.comparison.isolated`) is
named, and counts for no more rows than the median site, as do all if labels are too few to judge
anybody by. Who lies so that its sums look like those of other patients cannot be told from them.

A sum tells of a person if few rows are in it. Three things are refused before anything is fitted:

    rows per feature    fewer than the plan's `moments.rows_per_feature`: by their leverage it could
                        be told who is in the sum (`predbayes.learning.leverage`)
    small groups        an input, class or target that is the same in all rows but a few, fewer than
                        `min_cell`: from the sums of its products those of the few follow, and of
                        one row they are that row
    few kinds of rows   columns of so few values that all kinds of rows can be listed: sums of W
                        features are W (W + 1) / 2 equations on each scale for how many rows there
                        are of each kind, and what their targets are. These are whole numbers, so
                        that a tenth as many equations as kinds can be enough. Then no kind may have
                        1 to `min_cell` - 1

Groups and kinds are looked for among numbers as they are summed: what lies far out is the same
there. If it is known whose each row is, people are counted and not rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from predbayes.errors import PlanError, UploadError
from predbayes.exchange.header import SUMS, Spec, UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.learning.leverage import ENOUGH_ROWS
from predbayes.learning.local import Network, NetworkPredictor, Predictor
from predbayes.learning.moments import (
    MOST_TARGET,
    Moments,
    MomentsHead,
    RandomFeatures,
    inputs_on_grid,
    targets_on_grid,
)
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Predictive
from predbayes.predictive.measures import mean_estimate
from predbayes.predictive.metrics import nll_rows
from predbayes_study.extras.moments.network import as_predictor, head_network
from predbayes_study.extras.moments.section import Moments as Section
from predbayes_study.payload import ModelPayload
from predbayes_study.payloads.predictions import check_counts
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.weight import RowCaps
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.analysis import Analysis, Conclusion, Evidence, naming
from predbayes_study.result.comparison import against_others, isolated
from predbayes_study.result.schema import Finding, PoolResult, SiteResult, StudentResult
from predbayes_study.result.weighing import Caps
from predbayes_study.tasks import task_of
from predbayes_study.wording import counted

if TYPE_CHECKING:
    from predbayes_study.site.fitting import Job

MOST_LISTED = 10**6
"""Kinds of rows up to which somebody could list them all, and solve for how many rows each has."""

KINDS_PER_SUM = 10
"""Counts of kinds that one sum can tell: it has some 34 bits, and a small count some three."""

_LEAST_COMPARED = 3  # sites: of two nobody can say which is against the other

_HARM = 0.025  # probability that some harmless site of all is called harmful


@dataclass(frozen=True, slots=True)
class SummedRows:
    """How many rows sums are of, and what that means."""

    rows_per_feature: float
    enough: int  # rows per feature from which on a sum hardly tells who is in it
    small_pairs: int  # pairs of groups that fewer rows share than `min_cell`


class MomentSums(ModelPayload):
    """Sums over the rows of a site."""

    kind = "moments"
    permission = "moments"
    words = "moments.html.j2"
    predicts = False
    again = "The difference of two files of sums is exactly the rows that changed."

    def arrays(self, plan: Plan) -> Mapping[str, Spec]:
        """Return one array: by scale, products of each two of a row's numbers."""
        asked = asked_of(plan)
        size = asked.num_summed(plan) + plan.num_outputs
        return {SUMS: Spec("int64", (len(asked.scales), size * (size + 1) // 2))}

    def in_words(self, plan: Plan) -> str:
        """Return of how many features sums leave."""
        num = asked_of(plan).num_summed(plan)
        return f"sums over your rows of products of {num:,} features"

    def meanings(self, plan: Plan, num_trained: int) -> Mapping[str, str]:
        """Return what is summed."""
        asked = asked_of(plan)
        scales = counted(len(asked.scales), "scale")
        return {
            SUMS: f"sums over the {num_trained:,} rows trained on: of each two of "
            f"{asked.num_summed(plan):,} features (1, the plan’s {plan.num_inputs:,} inputs, "
            f"{asked.features:,} random waves of them) and the target one product, on each "
            f"of {scales}; whole numbers, in steps of 1/4,096 squared",
        }

    def shown(self, plan: Plan, upload: Upload, num_trained: int) -> Mapping[str, Any]:
        """Return how many rows there are for each feature, and how many pairs of groups are few."""
        moments = Moments.from_arrays(summed_features(plan), summed_classes(plan), upload.arrays)
        num = asked_of(plan).num_summed(plan)
        few = moments.num_small_pairs(plan.rules.min_cell)
        return {"sums": SummedRows(num_trained / num, ENOUGH_ROWS, few)}

    def why_refused(
        self, plan: Plan, rows: tuple[Tensor, Tensor], least: int, people: Tensor | None = None
    ) -> str:
        """Return why sums of these rows would tell of single rows, or cannot be made."""
        inputs, targets = rows
        section = asked_of(plan)
        asked, width = section.rows_per_feature, section.num_summed(plan)
        whose = torch.arange(len(inputs)) if people is None else people
        units = "rows" if people is None else "people"
        if _num(whose) < asked * width:
            return (
                f"{units} to train on are fewer than {asked * width:,}, which are "
                f"moments.rows_per_feature = {asked} for each of {width:,} features: their sums "
                "could tell who is in them. Ask the coordinator for fewer features"
            )
        if task_of(plan).is_scaled and not bool(targets.abs().max() <= MOST_TARGET):
            return (
                f"{plan.target.name} has values beyond {MOST_TARGET:g} scales of the plan, which "
                "cannot be summed. Ask the coordinator for another scale, or leave the rows out"
            )
        if small := list(_small_groups(plan, inputs, targets, least, whose)):
            more = f" and {len(small) - 3} more" if len(small) > 3 else ""
            return (
                f"a group of fewer than {least} {units} is told apart by "
                f"{', '.join(small[:3])}{more}: its sums would be of these rows alone. Join "
                "categories, or leave the rows out"
            )
        if _are_listed(plan, inputs, least, whose):
            return (
                "its columns have so few values that all kinds of rows can be listed, and some "
                f"are of fewer than {least} {units}: of each kind the sums would tell how many "
                "there are and their targets. Ask the coordinator for fewer features, or for "
                "predictions"
            )
        return ""

    def make(self, job: Job) -> tuple[Upload, Predictor]:
        """Add up the rows; the site's own model stays."""
        own, plan = job.fit(), job.kit.plan
        moments = Moments.of(summed_features(plan), *job.trained, summed_classes(plan))
        counts = moments.class_rows
        info = UploadInfo(
            kind=self.kind,
            num_rows=len(job.trained[0]),
            class_rows=None if counts is None else tuple(map(float, counts)),
        )
        return Upload(info, moments.arrays()).named(job.site).for_plan(job.kit.digest), own

    def check(self, plan: Plan, upload: Upload, key: str) -> None:
        """Refuse sums of other rows than are stated, or without a model."""
        del key
        check_counts(plan, upload.info)
        fitted(self.lift(plan, upload))

    def lift(self, plan: Plan, upload: Upload) -> Moments:
        """Return the sums of an upload; refuse those that are not of the rows that it states."""
        section = asked_of(plan)
        found = Moments.from_arrays(summed_features(plan), summed_classes(plan), upload.arrays)
        if found.num_rows != upload.info.num_rows:
            raise UploadError(
                f"its sums are over {found.num_rows:,} rows, and it states {upload.info.num_rows:,}"
            )
        if found.class_rows != upload.info.class_rows:
            raise UploadError("its sums are over other rows of each class than it states")
        asked = section.rows_per_feature * section.num_summed(plan)
        if found.num_rows < asked:
            raise UploadError(
                f"its sums are over {found.num_rows:,} rows; moments.rows_per_feature of the plan "
                f"asks for {asked:,}, because fewer tell who is in them"
            )
        return found

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Add up the sums that count, fit their head, and judge it if there are labels."""
        return _Summed(evidence, Analysis.of(evidence), self).conclusion()

    def network(self, plan: Plan) -> Network:
        """Return the network of heads of the plan's features."""
        return head_network(summed_features(plan), summed_classes(plan))


def asked_of(plan: Plan) -> Section:
    """Return what a plan says of sums of moments."""
    section = plan.section(Section)
    if section is None:
        raise PlanError("the plan asks for no sums of moments")
    return section


def summed_features(plan: Plan) -> RandomFeatures:
    """Return the features of which sites send sums."""
    agreed = asked_of(plan)
    return RandomFeatures(plan.num_inputs, agreed.features, agreed.scales, agreed.seed)


def summed_classes(plan: Plan) -> int | None:
    """Return the number of classes, or None for a number, as moments are told."""
    return plan.num_outputs if task_of(plan).by_class else None


def _small_groups(
    plan: Plan, inputs: Tensor, targets: Tensor, least: int, whose: Tensor
) -> Iterator[str]:
    """Name the columns by which a few rows differ from all others."""
    numbers = inputs_on_grid(inputs)
    for name, block in plan.blocks.items():
        if any(_are_few(values, least, whose) for values in numbers[:, block].T):
            yield name
    if not task_of(plan).by_class:
        if _are_few(targets_on_grid(targets), least, whose):
            yield plan.target.name
        return
    for number, name in enumerate(plan.target.classes or ()):
        if 0 < _num(whose[targets == number]) < least:
            yield f"{plan.target.name} = {name}"


def _are_few(values: Tensor, least: int, whose: Tensor) -> bool:
    """Whether all rows but those of a few have one value."""
    found, counts = torch.unique(values, return_counts=True)
    return 0 < _num(whose[values != found[counts.argmax()]]) < least


def _num(whose: Tensor) -> int:
    return len(torch.unique(whose))


def _are_listed(plan: Plan, inputs: Tensor, least: int, whose: Tensor) -> bool:
    """Whether kinds of rows can be listed, sums are enough to tell of each, and one has few."""
    if plan.vectors:
        return False  # nobody can list all vectors
    numbers, kinds = inputs_on_grid(inputs), 1
    for block in plan.blocks.values():
        kinds *= len(torch.unique(numbers[:, block], dim=0))
        if kinds > MOST_LISTED:
            return False
    _, kind = torch.unique(numbers, dim=0, return_inverse=True)
    asked = asked_of(plan)
    width, scales = asked.num_summed(plan), len(asked.scales)
    sums = width * (width + 1) // 2
    # If it is not known which of those listed are there, two sums are needed for each that is.
    present = int(kind.max()) + 1
    if present > sums * max(1.0, scales / 2) and kinds > KINDS_PER_SUM * sums * scales:
        return False
    of_people = torch.unique(torch.stack([kind, whose]), dim=1)[0]
    return int(torch.bincount(of_people).min()) < least


def fitted(total: Moments) -> MomentsHead:
    """Return the model of some sums; refuse one that has no finite weights."""
    try:
        head = total.head()
    except RuntimeError as error:  # of which torch makes those of linear algebra
        raise UploadError("no model can be fitted to its sums") from error
    found = (head.weights, head.spread, head.centre)
    if not all(bool(array.isfinite().all()) for array in found):
        raise UploadError("the model of its sums is not finite")
    return head


@dataclass(frozen=True)  # without slots, where what is made once is kept
class _Summed:
    """A study's sums, their model and what is known of it."""

    evidence: Evidence
    analysis: Analysis
    payload: MomentSums

    def conclusion(self) -> Conclusion:
        """Judge the head of the total."""
        analysis, arrays = self.analysis, self.model.samples.parameters.values()
        own = analysis.own_model()
        return analysis.conclusion(
            self.evidence,
            model=self.model,
            predicted=self.predicted,
            own=own,
            student=StudentResult(
                scores=analysis.score(self.predicted),
                gap=0.0,
                temperature=1.0,
                num_parameters=sum(math.prod(array.shape[1:]) for array in arrays),
            ),
            pool=PoolResult(
                method="moments",
                name="sum of moments",
                reason="the plan asks for sums, which add up to those of all rows in one place",
                weights={},
                candidates=(),
                curve=(),
                num_labels=len(analysis.reference.targets),
                own=analysis.chosen_own(own),
            ),
            sites=list(self._sites()),
            cautions=tuple(self._cautions()),
        )

    def _added(self, most: Callable[[str], float]) -> Moments:
        """The sums of the sites that are not left out by hand, each of so many rows at most."""
        uploads = self.evidence.uploads
        largest = max(uploads, key=lambda accepted: accepted.num_rows).site
        found: Moments | None = None
        for accepted in uploads:
            if accepted.site in self.evidence.leave_out:
                continue
            moments = self._moments(accepted).limited(most(accepted.site))
            with naming(largest, "has the most of more rows than can be added"):
                found = moments if found is None else found.add_(moments)
        assert found is not None  # as a quorum is at least one
        return found

    @cached_property
    def total(self) -> Moments:
        """The sums over all rows of the sites that count, each for as many rows as it may."""
        return self._added(self._most_rows)

    @cached_property
    def _limits(self) -> RowCaps:
        counted = [u for u in self.evidence.uploads if u.site not in self.evidence.leave_out]
        return Caps.of(self.analysis.plan, [u.num_rows for u in counted]).rows

    def _most_rows(self, site: str) -> float:
        return self._limits.median if site in self.opposed else self._limits.most

    @cached_property
    def opposed(self) -> dict[str, tuple[float, float]]:
        """Sites that do not agree with the others, with their and the median correlation.

        Two are taken, and the larger counts: of a site's model with the sums of the others, and of
        their model with its sums. Honest sites of other patients seldom have neither.
        """
        counted = [u for u in self.evidence.uploads if u.site not in self.evidence.leave_out]
        if len(counted) < _LEAST_COMPARED:
            return {}
        total = self._added(lambda _: self._limits.median)  # nobody speaks louder here
        found = {}
        for accepted in counted:
            part = self._moments(accepted).limited(self._limits.median)
            others = Moments(total.features, total.num_classes, total.sums - part.sums)
            theirs = part.agreement(fitted(others))
            found[accepted.site] = max(others.agreement(fitted(part)), theirs)
        return against_others(found) | isolated(found)

    @cached_property
    def model(self) -> NetworkPredictor:
        """The head of the total."""
        return as_predictor(fitted(self.total))

    @cached_property
    def predicted(self) -> Predictive:
        """What it predicts for the scored rows."""
        return self.model.predict(self._scored_inputs)

    @property
    def _scored_inputs(self) -> Tensor:
        return self.analysis.reference.inputs[self.analysis.scored_rows]

    def _moments(self, accepted: AcceptedUpload) -> Moments:
        with naming(accepted.site):
            return self.payload.lift(self.analysis.plan, self.evidence.read(accepted))

    def _cautions(self) -> Iterator[str]:
        if not len(self.analysis.scored_targets):
            yield (
                "Nobody could check what a single site sent against labels: sums were held against "
                "those of the other sites alone."
            )

    def _sites(self) -> Iterator[SiteResult]:
        seen: dict[bytes, str] = {}
        for accepted in self.evidence.uploads:
            moments = self._moments(accepted)
            copied = seen.setdefault(moments.sums.numpy().tobytes(), accepted.site)
            with naming(accepted.site):
                yield self._site(accepted, moments, "" if copied == accepted.site else copied)

    def _site(self, accepted: AcceptedUpload, moments: Moments, copied: str) -> SiteResult:
        is_out = accepted.site in self.evidence.leave_out
        alone = changed = None
        if len(self.analysis.scored_targets):
            head = as_predictor(fitted(moments))
            alone = self.analysis.score(head.predict(self._scored_inputs))
            counted = moments.limited(self._most_rows(accepted.site))
            changed = None if is_out else self._influence(counted)
        return SiteResult.of(
            accepted,
            min(float(accepted.num_rows), self._most_rows(accepted.site)),
            class_rows=moments.class_rows,
            alone=alone,
            influence=changed,
            findings=tuple(self._findings(accepted.site, changed, copied)),
            left_out=is_out,
        )

    def _influence(self, part: Moments) -> Estimate | None:
        """What the model loses without a site's sums, in NLL; None if there are no others."""
        total, targets = self.total, self.analysis.scored_targets
        if part.num_rows == total.num_rows:
            return None
        others = fitted(Moments(total.features, total.num_classes, total.sums - part.sums))
        predicted = others.predict(self._scored_inputs)
        return mean_estimate(nll_rows(predicted, targets) - nll_rows(self.predicted, targets))

    def _findings(self, site: str, changed: Estimate | None, copied: str) -> Iterator[Finding]:
        if site in self.opposed:
            yield Finding(
                kind="opposed",
                text="Its sums do not agree with those of the other sites: correlation at most "
                f"{self.opposed[site][0]:+.2f}, where the median site has "
                f"{self.opposed[site][1]:+.2f}.",
            )
        if copied:
            yield Finding(kind="copy", text=f"Its sums are those of {copied}: one is a copy.")
        if changed is not None and _is_harm(changed, len(self.evidence.uploads)):
            yield Finding(
                kind="harmful",
                text=f"Without it the model is better by {-changed.value:.3f} nats per row.",
            )


def _is_harm(found: Estimate, num_sites: int) -> bool:
    """Say whether it is below 0 by more than chance would give one of so many sites."""
    clearly = -NormalDist().inv_cdf(_HARM / num_sites)
    error = (found.high - found.low) / (2 * 1.96)
    return found.value < -clearly * error
