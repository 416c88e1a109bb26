"""What a finished study found, as plain data: report, model card and status are made from it.

Everything here is JSON (`result.json`); nothing is computed from it but its appearance. Scores are
of rows that did not take part: `evaluate` rows, or labelled rows cross-fitted, each row predicted
by a pool and a student that were made without its label. Every estimate has its number of rows and
an interval of 95 %: of a mean over rows Student's t, and of a share of rows Wilson's.

NLL is in nats per row; for a regression it is of the target in standard units, so that studies
compare, while RMSE, CRPS and widths are in the target's own unit.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from predbayes.exchange.strict import Finite, Json, Sparse
from predbayes.predictive.estimate import Estimate
from predbayes.text import html_lines, html_table
from predbayes_study.plan.schema import Section
from predbayes_study.result.accepted import AcceptedUpload

FEWEST_TO_POOL = 3
"""Sites; in public a sum over fewer would tell what each of them has."""


FindingKind = Literal[
    "constant", "copy", "contradicts", "uninformative", "harmful", "inconsistent", "opposed",
    "uncompared", "unusable",
]  # fmt: skip


class Scores(Section):
    """How good one predictor is on the scored rows.

    The metrics are those of the plan's task in `predbayes.predictive.measures`, by name.
    """

    num_rows: int
    metrics: dict[str, Estimate]


class Finding(Section):
    """What screening found about a site."""

    kind: FindingKind
    text: str  # one sentence for the report


class SiteResult(Section):
    """One site: what it sent, and what that is worth."""

    site: str
    digest: str  # of its upload
    kind: str  # of its upload
    num_rows: int  # as it states them
    agreed_rows: int | None = None  # at admission; None where nothing was agreed
    counted_rows: float  # that it counts for in the pool
    # Share of its rows that lie where reference rows do, by its gate; None without one.
    covered: Sparse[Finite | None] = None
    num_bytes: int
    class_rows: tuple[Finite, ...] | None = None  # None where some count is below min_cell
    alone: Scores | None = None  # its own predictions on the scored rows; None without labels
    influence: Estimate | None = None  # NLL without the site minus with it: positive if it helps
    findings: tuple[Finding, ...] = ()
    left_out: bool = False  # by the plan's screening rule, or by hand

    @classmethod
    def of(cls, accepted: AcceptedUpload, counted_rows: float, **found: Any) -> SiteResult:
        """Return what a result says of an upload: what the ledger has, and what was found."""
        return cls(
            site=accepted.site,
            digest=accepted.digest,
            kind=accepted.kind,
            num_rows=accepted.num_rows,
            agreed_rows=accepted.agreed_rows,
            counted_rows=counted_rows,
            num_bytes=accepted.num_bytes,
            **found,
        )


class CandidateResult(Section):
    """One of the pools that were compared."""

    name: str
    num_weights: int
    nll: Finite  # cross-validated on the labelled rows
    share: Finite  # in the pool that was taken


class PoolResult(Section):
    """The pool that was taken, and why."""

    method: str
    name: str
    reason: str
    weights: dict[str, Finite | tuple[Finite, ...]]
    candidates: tuple[CandidateResult, ...]
    curve: tuple[tuple[Finite, Finite], ...]  # beta from 0 (mixture) to 1 (product), and its NLL
    num_labels: int
    # What `auto` chose for the coordinator; left out where the plan says.
    own: Sparse[str] = ""


class Bin(Section):
    """Rows of about the same stated confidence, or risk."""

    count: int
    stated: Finite  # mean of what was stated
    observed: Finite  # share of right answers, or of events
    null_low: Finite  # where that is in 95% of cases if what is stated is right
    null_high: Finite


class Factor(Section):
    """By how much log odds of several classes would have to be multiplied to be right."""

    value: Finite
    p_value: Finite  # of a factor of 1, by a likelihood ratio
    power: Finite  # share of as large studies in which a factor of 1.3, either way, has p < 0.05


class Reliability(Section):
    """Calibration of a classification."""

    ece: Estimate
    factor: Sparse[Factor | None] = None  # None where predictions have no spread
    null: Finite  # the ECE of a perfectly calibrated model with as many rows
    bins: tuple[Bin, ...]


class RiskGroup(Section):
    """Predicted and observed curves of rows of about the same risk."""

    name: str
    num_rows: int
    stated: tuple[Finite, ...]  # mean probability to reach the end of each interval
    observed: tuple[Estimate, ...]  # by Kaplan and Meier, as far as rows were seen
    fits: bool  # whether the two agree at the last of these, as far as chance allows


class Curves(Section):
    """How predicted times to an event compare with observed ones."""

    times: tuple[Finite, ...]  # ends of the intervals, in the target's unit
    gap: Estimate | None  # observed less stated risk at the last, if rows were seen so long
    brier: tuple[Estimate, ...]  # at these ends, as far as rows were seen
    brier_of_all: tuple[Finite, ...]  # of the curve of all rows together
    groups: tuple[RiskGroup, ...]  # the lowest risks first
    unsure: str = ""  # why nothing may be concluded; empty: something may


class AtThreshold(Section):
    """What it would do to treat all rows of at least some risk."""

    threshold: Finite
    metrics: dict[str, Estimate]  # those that are defined
    treat_all: Finite  # the net benefit of treating everybody; of treating nobody it is 0


class ClassRisk(Section):
    """How well the risk of one class is told, against all others."""

    name: str  # of the class
    num_rows: int
    num_bins: Sparse[int | None] = None  # if counted
    prevalence: Estimate  # share of events
    metrics: dict[str, Estimate]  # those of `predbayes.predictive.risk` that are defined
    bins: tuple[Bin, ...] = ()  # that have rows
    at: tuple[AtThreshold, ...] = ()  # the plan's thresholds
    curve: tuple[tuple[Finite, Finite, Finite], ...] = ()  # threshold, net benefit, treating all


Risks = Sparse[tuple[ClassRisk, ...]]


class GroupScores(Section):
    """How the model does in a group of rows."""

    column: str
    name: str
    num_rows: int | None = None  # None: too small to be told of, or it would tell of one that is
    prevalence: Estimate | None = None  # share of events
    metrics: dict[str, Estimate] = Field(default_factory=dict)


Groups = Sparse[tuple[GroupScores, ...]]
Words = Sparse[str]


class Importance(Section):
    """How much the model's predictions depend on a column."""

    column: str
    change: Estimate  # mean KL divergence if the column's values are dealt out anew, in nats
    # Of an event, with a number at its lower and at its upper quartile.
    quartile_risks: tuple[Finite, Finite] | None = None


class Level(Section):
    """How many targets lie in the central interval of one level."""

    level: Finite
    coverage: Estimate


class IntervalCalibration(Section):
    """Calibration of a regression."""

    pit: tuple[int, ...]  # targets by decile of their predictive; equally many if calibrated
    null_low: int  # of one decile's count, in 95 % of cases if calibrated
    null_high: int
    levels: tuple[Level, ...]


class StudentResult(Section):
    """The network that everybody gets back."""

    scores: Scores | None
    gap: Finite  # mean KL(pool || student) on the rows distilled on, in nats
    temperature: Finite
    num_parameters: int


class ScoreSums(Section):
    """Rows of sites by bins of their scores, each at the upper end of its bin."""

    num_sites: int  # that counted
    edges: tuple[Finite, ...]
    counts: tuple[int, ...]


class Coverage(Section):
    """What sets or intervals of one promised coverage are like."""

    level: Finite
    # Mean number of classes, or width in the target's unit, over the reference rows; None: nothing
    # is promised at this level.
    size: Finite | None
    # The least and the greatest share of counted rows that the model's own interval of this level
    # can hold, as far as counts tell; None of classes.
    credible_covered: tuple[Finite, Finite] | None


class Evaluated(Scores):
    """The model on held-out rows of one site, or of several together, from what they sent."""

    site: Sparse[str] = ""  # empty: several
    bins: Sparse[tuple[Bin, ...]] = ()  # that have rows
    risks: Risks = ()  # from counts
    groups: Groups = ()  # over the sites that tell of each
    scores: Sparse[ScoreSums | None] = None


class FoundLevel(Section):
    """How sure the model is, where sites' held-out rows set it."""

    inverse_temperature: Finite
    shifts: tuple[Finite, ...]  # of the classes' log-probabilities; empty: none
    num_rows: int  # held out, of all these sites
    num_sites: int
    # The site without which it would change most, and what it would be; of one site none.
    decided_by: Sparse[str] = ""
    without: Sparse[Finite | None] = None
    shift_without: Sparse[Finite] = 0.0

    @property
    def shift(self) -> float:
        """Of the second class's log odds, for two classes."""
        return self.shifts[1] - self.shifts[0] if self.shifts else 0.0


class Between(Section):
    """A figure in which sites differ by more than chance."""

    measure: str  # of `predbayes.predictive.risk`
    of: str  # the class whose risks it is of
    p_value: Finite  # by itself
    num_sites: int
    lowest: tuple[str, Finite] | None  # the site, and what it found; None where no site is named
    highest: tuple[str, Finite] | None
    sites: tuple[str, ...]  # that stand out


class AtSites(Section):
    """How the model does at the sites, from what they sent about it."""

    sites: tuple[Evaluated, ...]  # in the order of their names
    pooled: Evaluated  # of all their rows
    group_words: Words = ""  # which differences are larger than chance
    coverages: Sparse[tuple[Coverage, ...]] = ()
    # In what sites differ, the surest first.
    between: Sparse[tuple[Between, ...]] = ()
    # What these figures changed of the model; they are of the model before that.
    level: Sparse[FoundLevel | None] = None
    public: bool  # whether what is pooled tells of no single site and of no few rows


class Result(Section):
    """A numbered result of a study."""

    format: Literal[1] = 1
    number: int
    finished: str  # ISO 8601, UTC
    study: str
    plan_digest: str
    ledger_digest: str  # of the last entry before this result
    sites: tuple[SiteResult, ...]  # in the order of their names
    withdrawn: int  # how many sites took their upload back
    scored_on: Literal["evaluate", "cross-fitted", "nothing"]
    num_scored: int
    can_judge: bool  # whether rows are enough to judge calibration
    cautions: tuple[str, ...] = ()  # what could not be checked or was found; no site is named
    verdict: str  # what may be said about calibration, in words
    pool: PoolResult
    pooled: Scores | None
    mixture: Scores | None
    server_only: Scores | None  # the coordinator's own model of the labelled rows, alone
    student: StudentResult
    # NLL of the coordinator's labels alone minus the model's, row by row: positive if sites helped.
    paid: Sparse[Estimate | None] = None
    # Of the scored rows, by class.
    class_shares: Sparse[tuple[Finite, ...]] = ()
    risks: Risks = ()  # of the model: the event's, or each class's
    groups: Groups = ()  # of the scored rows, by the plan's groups
    group_words: Words = ""  # which differences are larger than chance
    # Of columns for the model, the greatest first.
    importances: Sparse[tuple[Importance, ...]] = ()
    # Of a survival.
    curves: Sparse[Curves | None] = None
    reliability: Reliability | None = None
    coverage: IntervalCalibration | None = None
    at_sites: AtSites | None = None  # None until some site has sent an evaluation
    # What extras add, by their names of it, such as the ledger's step of an attachment.
    extras: Sparse[dict[str, Json]] = Field(default_factory=dict)
    bytes_in: int  # of all uploads
    bytes_out: int  # of the kit, once for each site
    versions: dict[str, str]

    @property
    def out(self) -> frozenset[str]:
        """Sites whose uploads are not in it, left out by hand or by screening."""
        return frozenset(site.site for site in self.sites if site.left_out)

    def _repr_html_(self) -> str:
        # Imported here: whoever only reads the status of a study does without torch.
        from predbayes.predictive.measures import MEASURES

        compared = {
            "model": self.student.scores,
            "pool": self.pooled,
            "mixture": self.mixture,
            "labels alone": self.server_only,
        }
        scored = {who: scores.metrics for who, scores in compared.items() if scores is not None}
        names = list(scored.get("model", {}))
        rows = [(who, *(_told(found.get(name)) for name in names)) for who, found in scored.items()]
        title = f"{self.study}, result {self.number}: {len(self.sites)} sites"
        labels = [MEASURES[name].label if name in MEASURES else name for name in names]
        table = html_table(rows, ("", *labels)) if names else ""
        return html_lines([title, self.verdict]) + table + html_lines(self.cautions)


def _told(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    return f"{estimate.value:,.3f} ({estimate.low:,.3f} to {estimate.high:,.3f})"
