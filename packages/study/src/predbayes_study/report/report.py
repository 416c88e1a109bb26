"""What a study found, for people: a report, a public report and a model card.

Each is one HTML file made from the plan and the result alone. It holds everything that it shows,
its figures included; it has no script, and a policy that forbids the browser any request. Templates
have the words, `report.figures` has the pictures, and this module the numbers: which, in which
order, with how many digits.

    report.html          for members: every site by name, or of many the outstanding ones
    report-public.html   without site names and without figures of single sites
    card.html            about the model: what it is for, what goes in and out, how good it is

What the public may not see is taken out of the data before a template gets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from predbayes.errors import StudyError
from predbayes.learning.gate import MIN_ROWS
from predbayes.learning.named import AUTO
from predbayes.pools.auto import site_component
from predbayes.predictive.measures import MEASURES, Measure
from predbayes.predictive.selection import MARGINAL, MIN_LABELS, OWN
from predbayes_study.extra import added
from predbayes_study.payload import payload_of
from predbayes_study.plan.schema import Category, Column, Plan, Vector
from predbayes_study.report import figures
from predbayes_study.report.clinical import (
    OF_CLASSES,
    curve_words,
    event_of,
    group_measures,
    lines_of,
    most_frequent,
    paid_words,
    threshold_measures,
)
from predbayes_study.report.figures import Role, Whisker
from predbayes_study.report.outstanding import SITES_FILE, is_listed, outstanding
from predbayes_study.report.pages import MOST_NAMES, listed, render_page, with_interval
from predbayes_study.report.unlabelled import opening, trusted
from predbayes_study.result.schema import (
    FEWEST_TO_POOL,
    AtSites,
    Evaluated,
    PoolResult,
    Result,
    Scores,
    SiteResult,
)
from predbayes_study.tables.vectors import vector_words
from predbayes_study.tasks import task_of
from predbayes_study.tasks.classes import risk_words
from predbayes_study.wording import counted, decimals, plain

MOST_SITES = 20  # in one figure
_MOST_CLASSES = 12  # side by side in a table
_MOST_LINES = 5  # of one kind, that a reader must see first, where sites are many
_AT_SITES = ("auroc", "slope", "observed_expected")


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the predictors that are compared."""

    label: str
    role: Role
    scores: Scores


@dataclass(frozen=True, slots=True)
class Tally:
    """What is said of all sites together."""

    num_sites: int  # whose uploads count
    num_left_out: int
    num_rows: int | None  # of the sites whose uploads count; None where it must not be said


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Contenders and their measures."""

    measures: list[Measure]
    table: list[tuple[Contender, list[Any]]]  # a line, and its measures as value and interval


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """Columns that differ in nothing but their names."""

    names: tuple[str, ...]
    kind: str
    unit: str
    values: str
    missing: str

    @property
    def is_large(self) -> bool:
        """True if there are too many names for one cell."""
        return len(self.names) > MOST_NAMES

    @property
    def title(self) -> str:
        """The names, or of many the first and the last."""
        if not self.is_large:
            return ", ".join(self.names)
        return f"{self.names[0]} to {self.names[-1]} ({len(self.names):,} columns)"


def render_report(plan: Plan, result: Result, *, public: bool) -> str:
    """Render the report of a result as an HTML page; in public without what single sites have."""
    require_same_plan(plan, result)
    tally = tally_of(result, public=public)
    shown = without_sites(result) if public else outstanding(result)
    numbers = {site.site: number for number, site in enumerate(result.sites, 1)}
    drawn = _drawn_sites(shown.sites)
    contenders = compared(shown, numbers)
    return _render(
        "report.html.j2",
        plan,
        shown,
        public=public,
        tally=tally,
        numbers=numbers,
        num_all=len(result.sites),
        is_listed=is_listed(result),
        num_found=sum(bool(site.findings) for site in result.sites),
        sites_file=SITES_FILE,
        contenders=contenders,
        paid=paid_words(result.paid, alone=_without_sites(result.pool)),
        figures=_figures(shown, contenders, drawn, plan.target.unit, numbers)
        | ({} if public or is_listed(result) else {"spread": _spread(result)}),
        num_drawn=len(drawn),
        num_most=MOST_SITES,
        class_table=plan.num_outputs <= _MOST_CLASSES,
        num_evaluated=0 if result.at_sites is None else len(result.at_sites.sites),
        sites_table=_sites_table(shown, numbers),
        sections=[
            extra.load(reference)(plan, result, public=public)
            for page, extra, reference in added("pages")
            if page == "report"
        ],
        fewest_sites=FEWEST_TO_POOL,
        first=first_lines(plan, result, public=public),
        trusted=trusted(plan, shown),
        promises=_promises(plan, shown.at_sites),
        unpromised=_unpromised(plan, shown.at_sites),
        min_labels=MIN_LABELS,
        fewest_of_gate=MIN_ROWS,
        fitted=fitted_words(plan),
    )


def _without_sites(pool: PoolResult) -> bool:
    """Whether all that has weight was made of the labelled rows."""
    used = {name for name, weight in pool.weights.items() if weight}
    return bool(used) and used <= {OWN, MARGINAL}


def render_card(plan: Plan, result: Result) -> str:
    """Render the model card of a result, of about two printed pages; it names no site."""
    require_same_plan(plan, result)
    return _render(
        "card.html.j2",
        plan,
        without_sites(result),
        tally=tally_of(result, public=True),
        contenders=compared(without_sites(result)),
        columns=column_groups(plan.columns),
        trusted=trusted(plan, without_sites(result)),
    )


def require_same_plan(plan: Plan, result: Result) -> None:
    """Refuse a result of another plan: its numbers would be in other units."""
    if plan.digest() != result.plan_digest:
        raise StudyError(f"result {result.number} is not of the plan {plan.name!r}")


def without_sites(result: Result) -> Result:
    """Return the result without what belongs to single sites."""
    of_sites = {site_component(site.site) for site in result.sites}
    weights = {name: w for name, w in result.pool.weights.items() if name not in of_sites}
    pool = result.pool.model_copy(update={"weights": weights})
    at_sites = result.at_sites
    if at_sites is not None:
        pooled = at_sites.pooled
        few = sum(bool(site.risks) for site in at_sites.sites) < FEWEST_TO_POOL
        risks = () if few else tuple(r.model_copy(update={"bins": ()}) for r in pooled.risks)
        # Not its bins: perhaps one site alone sent some, and a bin may have few wrong answers.
        bare = pooled.model_copy(update={"bins": (), "risks": risks, "groups": ()})
        few = pooled.scores is None or pooled.scores.num_sites < FEWEST_TO_POOL
        coverages = () if few else at_sites.coverages
        level = at_sites.level
        if level is not None and level.num_sites < FEWEST_TO_POOL:
            level = None
        if level is not None:
            bare_level = {"decided_by": "", "without": None, "shift_without": 0.0}
            level = level.model_copy(update=bare_level)
        unnamed = {"lowest": None, "highest": None, "sites": ()}
        between = tuple(
            one.model_copy(update=unnamed)
            for one in at_sites.between
            if one.num_sites >= FEWEST_TO_POOL
        )
        change = {"sites": (), "pooled": bare, "group_words": "", "coverages": coverages}
        change |= {"level": level, "between": between}
        at_sites = at_sites.model_copy(update=change) if at_sites.public else None
    return result.model_copy(update={"sites": (), "pool": pool, "at_sites": at_sites, "extras": {}})


def _promises(plan: Plan, at_sites: AtSites | None) -> dict[str, Any] | None:
    """The table of promised coverage; None where nobody counted."""
    if at_sites is None or not at_sites.coverages or at_sites.pooled.scores is None:
        return None
    unit = f"widths in {plan.target.unit}" if plan.target.unit else "widths"
    sums, levels = at_sites.pooled.scores, at_sites.coverages
    return {
        "counted": f"{counted(sum(sums.counts), 'held-out row')} of "
        f"{counted(sums.num_sites, 'site')}",
        "size": "numbers of classes" if task_of(plan).by_class else unit,
        "places": decimals([one.size for one in levels if one.size is not None] or [1.0]),
        "levels": levels,
    }


def _unpromised(plan: Plan, at_sites: AtSites | None) -> list[str]:
    """Say where no coverage is promised."""
    if not task_of(plan).grid:
        return ["No coverage is promised for times to an event."]
    if at_sites is None or not at_sites.coverages or at_sites.pooled.scores is None:
        return [
            "No coverage is promised: no site has sent counts of scores with its evaluation, or "
            "they may not be shown here."
        ]
    rows = counted(sum(at_sites.pooled.scores.counts), "row")
    return [
        f"No coverage is promised at {plain(100 * one.level)} %: {rows}, in bins of which none is "
        "small, are too few."
        for one in at_sites.coverages
        if one.size is None
    ]


def first_lines(plan: Plan, result: Result, *, public: bool) -> list[str]:
    """List what a reader must know before anything else; in public no site is named."""
    lines = [
        *opening(result, public=public),
        *plan.cautions,
        *result.cautions,
    ]
    found = [site for site in result.sites if site.findings]
    limited = [s for s in result.sites if not s.left_out and s.counted_rows < s.num_rows]
    if public:
        if found:
            lines.append(f"Screening found against {counted(len(found), 'site')}.")
        if limited:
            lines.append(f"Limited in weight: {counted(len(limited), 'site')}.")
    else:
        lines += _by_name(result, found, _found_line, "Screening found against")
        lines += _by_name(result, limited, _limited_line, "Limited in weight:")
    if plan.rules.max_weight is None and not plan.opening:
        lines.append("The plan puts no limit on what a site weighs: it counts for its stated rows.")
    return lines


def _by_name(
    result: Result, sites: Sequence[SiteResult], line: Callable[[SiteResult], str], what: str
) -> list[str]:
    """A line for each site, or where they are many one for all."""
    if is_listed(result) or len(sites) <= _MOST_LINES:
        return [line(site) for site in sites]
    num_out = sum(site.left_out for site in sites)
    return [f"{what} {counted(len(sites), 'site')}, {num_out:,} of which are left out; see below."]


def _found_line(site: SiteResult) -> str:
    kept = "left out" if site.left_out else "kept"
    return f"{site.site} ({kept}): {' '.join(finding.text for finding in site.findings)}"


def _limited_line(site: SiteResult) -> str:
    agreed = "" if site.agreed_rows is not None else ", not agreed at admission"
    return (
        f"{site.site} states {counted(site.num_rows, 'row')}{agreed}; it counts for "
        f"{plain(site.counted_rows, 0)}, the most that the rules allow."
    )


def tally_of(result: Result, *, public: bool) -> Tally:
    """Count over sites; in public make no sum that would tell what one site has."""
    counted = [site for site in result.sites if not site.left_out]
    num_left_out = len(result.sites) - len(counted)
    may_sum = not public or len(counted) >= FEWEST_TO_POOL
    num_rows = sum(site.num_rows for site in counted) if may_sum else None
    return Tally(len(counted), num_left_out, num_rows)


def compared(result: Result, numbers: Mapping[str, int] | None = None) -> list[Contender]:
    """List the student, what it was made from, and what there would be without the study."""
    scored: list[tuple[str, Role, Scores | None]] = [
        ("The model", "student", result.student.scores),
        ("The pool it imitates", "pool", result.pooled),
        ("Plain average of the sites", "mixture", result.mixture),
        ("Coordinator’s labels alone", "server", result.server_only),
    ]
    labels = _labels(result, numbers)
    scored += [(labels[site.site], _role(site), site.alone) for site in result.sites]
    return [Contender(label, role, s) for label, role, s in scored if s is not None]


def _labels(result: Result, numbers: Mapping[str, int] | None) -> dict[str, str]:
    """A site's number and name, as tables and figures have them."""
    if numbers is None:
        numbers = {site.site: number for number, site in enumerate(result.sites, 1)}
    return {site.site: f"{numbers[site.site]} {site.site}" for site in result.sites}


def _role(site: SiteResult) -> Role:
    return "left out" if site.left_out else "site"


def _sites_table(result: Result, numbers: Mapping[str, int]) -> ScoreTable | None:
    """What sites found with the model on rows of their own, all of them first."""
    if result.at_sites is None:
        return None
    labels, pooled = _labels(result, numbers), result.at_sites.pooled
    alone = [
        Contender(labels.get(site.site, site.site), "site", _with_risk(site))
        for site in result.at_sites.sites
    ]
    everybody = all(risk.num_rows == pooled.num_rows for risk in pooled.risks)
    first = Contender("All of them", "student", _with_risk(pooled) if everybody else pooled)
    return _score_table([first, *alone])


def _with_risk(scores: Evaluated) -> Scores:
    """Scores with what was found of the risk of an event."""
    if len(scores.risks) != 1:
        return scores
    found = scores.risks[0].metrics
    of_risk = {name: found[name] for name in _AT_SITES if name in found}
    return scores.model_copy(update={"metrics": {**scores.metrics, **of_risk}})


def fitted_words(plan: Plan) -> str:
    """Say what the plan has sites fit."""
    name = plan.learner.name
    if not payload_of(plan).predicts:
        return "nothing: they add up products of numbers of their rows"
    if name == AUTO:
        return f"one of {', '.join(plan.tried)}, which each site’s own rows chose"
    named = {"any": "a model of their choice", "network": "the plan’s network, by sampling"}
    return named.get(name, name)


def column_groups(columns: Mapping[str, Column]) -> list[ColumnGroup]:
    """Group columns by what may stand in them, in the order in which they first occur."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for name, column in columns.items():
        groups.setdefault(_described(column), []).append(name)
    return [ColumnGroup(tuple(names), *described) for described, names in groups.items()]


def _described(column: Column) -> tuple[str, str, str, str]:
    missing = {
        "refuse": "must not be missing",
        "impute": "if missing: taken as typical",
        "flag": "if missing: taken as typical, and flagged",
    }[column.missing]
    if column.optional:
        missing += "; a site may lack the column"
    if isinstance(column, Vector):
        return column.type, column.unit, vector_words(column), missing
    if column.words:
        other = isinstance(column, Category) and column.other
        values = listed(column.words) + ("; other words count as “other”" if other else "")
    else:
        values = "any" if column.range is None else " to ".join(map(plain, column.range))
    return column.type, column.unit, values, missing


# Figures


def _figures(
    result: Result,
    contenders: Sequence[Contender],
    drawn: Sequence[SiteResult],
    unit: str,
    numbers: Mapping[str, int],
) -> dict[str, str]:
    """The figures that there are data for, by name."""
    drawings: dict[str, str] = {}
    if contenders:
        drawings["comparison"] = _comparison(contenders)
    if drawn:
        drawings["influence"] = _influence(result, drawn, numbers)
    if any(math.isfinite(nll) for _, nll in result.pool.curve):
        drawings["curve"] = figures.pool_curve(result.pool.curve)
    event = event_of(result)
    if event is not None and event.bins:
        drawings["risk"] = figures.calibration_diagram(event.bins, event.name)
    elif result.reliability is not None:
        drawings["reliability"] = figures.calibration_diagram(result.reliability.bins)
    if event is not None and event.curve:
        thresholds = [one.threshold for one in event.at]
        drawings["decisions"] = figures.decision_curve(
            event.curve, thresholds, event.prevalence.value
        )
    if result.importances:
        drawings["importance"] = _importance(result)
    if result.curves is not None:
        drawings["survival"] = figures.survival_curves(result.curves, unit)
    if result.curves is not None and result.curves.brier:
        drawings["brier"] = figures.brier_over_time(result.curves, unit)
    if result.coverage is not None:
        drawings["pit"] = figures.pit(result.coverage)
        drawings["levels"] = figures.levels(result.coverage)
    return drawings


def _comparison(contenders: Sequence[Contender]) -> str:
    """NLL of each, the best of the sites where they are many."""
    common = [c for c in contenders if c.role not in ("site", "left out")]
    sites = [c for c in contenders if c.role in ("site", "left out")]
    if len(sites) > MOST_SITES:
        sites = sorted(sites, key=lambda c: c.scores.metrics["nll"].value)[:MOST_SITES]
    entries = [Whisker(c.label, c.scores.metrics["nll"], c.role) for c in (*common, *sites)]
    description = "NLL of each predictor with its interval; the table has the numbers"
    axis = "NLL (nats per row; lower is better)"
    return figures.whiskers("comparison", entries, axis, description)


def _importance(result: Result) -> str:
    entries = [
        Whisker(one.column, one.change, "student") for one in result.importances[:MOST_SITES]
    ]
    description = "How far predictions move if a column is dealt out anew, by column"
    axis = "change of predictions (nats per row)"
    return figures.whiskers("importance", entries, axis, description)


def _influence(result: Result, drawn: Sequence[SiteResult], numbers: Mapping[str, int]) -> str:
    labels = _labels(result, numbers)
    entries = [
        Whisker(labels[site.site], site.influence, _role(site))
        for site in drawn
        if site.influence is not None
    ]
    description = "NLL without each site minus NLL with it; the table has the numbers"
    axis = "NLL without the site minus NLL with it"
    return figures.whiskers("influence", entries, axis, description, zero=True)


def _spread(result: Result) -> str:
    """Distributions over all sites: influence, NLL alone and rows."""
    influences = [site.influence.value for site in result.sites if site.influence is not None]
    alone = [site.alone.metrics["nll"].value for site in result.sites if site.alone is not None]
    rows = [float(site.num_rows) for site in result.sites]
    return figures.distributions(
        {
            "NLL without the site minus NLL with it": influences,
            "NLL of the site’s own model, alone (nats per row)": alone,
            "rows, as stated": rows,
        }
    )


def _drawn_sites(sites: Sequence[SiteResult]) -> list[SiteResult]:
    """The sites whose influence is drawn: the largest, in the order of their names."""
    sizes = {site.site: abs(site.influence.value) for site in sites if site.influence is not None}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:MOST_SITES]
    return [site for site in sites if site.site in largest]


# Numbers


def _weight(weight: float | tuple[float, ...]) -> str:
    if isinstance(weight, tuple):
        return " / ".join(plain(part, 3) for part in weight)
    return plain(weight, 3)


def _cells(contenders: Sequence[Contender], measure: Measure) -> list[tuple[str, str] | None]:
    """A column of the comparison, in one number of decimals."""
    estimates = [contender.scores.metrics.get(measure.name) for contender in contenders]
    places = decimals([estimate.value for estimate in estimates if estimate is not None])
    return [
        None if estimate is None else with_interval(estimate, places, percent=measure.is_share)
        for estimate in estimates
    ]


def _score_table(contenders: Sequence[Contender]) -> ScoreTable:
    measured = {name for contender in contenders for name in contender.scores.metrics}
    measures = [measure for name, measure in MEASURES.items() if name in measured]
    columns = [_cells(contenders, measure) for measure in measures]
    lines = [(c, [column[row] for column in columns]) for row, c in enumerate(contenders)]
    return ScoreTable(measures, lines)


def _influences(sites: Sequence[SiteResult]) -> dict[str, tuple[str, str]]:
    """Influence by site, in one number of decimals."""
    known = {site.site: site.influence for site in sites if site.influence is not None}
    places = min(4, decimals([estimate.value for estimate in known.values()]))
    return {name: with_interval(estimate, places) for name, estimate in known.items()}


# Pages


def _render(template: str, plan: Plan, result: Result, **more: Any) -> str:
    scores = _score_table(more["contenders"])
    return render_page(
        template,
        {
            "weight": _weight,
            "lines": lines_of,
            "group_measures": group_measures,
            "risk_words": risk_words,
            "curve_words": curve_words,
            "threshold_measures": threshold_measures,
        },
        payload_of(plan).words,
        plan=plan,
        task=task_of(plan),
        result=result,
        measures=scores.measures,
        score_table=scores.table,
        influences=_influences(result.sites),
        nll_note=task_of(plan).nll_note(plan),
        event=event_of(result),
        most_frequent=most_frequent(plan, result),
        named=MEASURES,
        of_classes=[MEASURES[name] for name in OF_CLASSES],
        finished=f"{result.finished[:16].replace('T', ' ')} UTC",
        **more,
    )
