"""What a report says where no reference row has a label.

Then nothing was tuned, and the coordinator has nothing to score with. Sites have: each can try the
model on held-out rows of its own and send sums over them (`predbayes site evaluate`), which add up
to how good and how calibrated the model is for all their rows together.
"""

from __future__ import annotations

from collections.abc import Sequence

from predbayes.predictive.estimate import share
from predbayes.predictive.measures import MEASURES
from predbayes_study.plan.schema import Plan
from predbayes_study.report.clinical import risk_words
from predbayes_study.result.schema import AtSites, ClassRisk, Result
from predbayes_study.result.statistics.disclosure import FEWEST_COUNTED
from predbayes_study.wording import counted, plain

ASK = (
    "No site has sent one yet; each can with `predbayes site evaluate MODEL TABLE --home DIR --out "
    "FILE`"
)


def is_unlabelled(result: Result) -> bool:
    """Return whether there was no label at all, to tune on or to score with."""
    return not result.pool.num_labels and not result.num_scored


def opening(result: Result, *, public: bool) -> list[str]:
    """List what a reader must know first of a study without labels; nothing of others."""
    if not is_unlabelled(result):
        return []
    told = ASK if result.at_sites is None else f"{_num_sites(result.at_sites)} sent theirs"
    if public and result.at_sites is not None and not result.at_sites.public:
        told = f"{told}, too few sites or rows to be shown in public"
    why = "No reference row has a label: nothing was tuned, and nothing"
    if result.pool.method == "moments":
        why = "There is no label of a reference row: nothing"
    return [
        f"{why} was scored by the "
        f"coordinator. How good and how calibrated the model is comes from sites’ evaluations on "
        f"held-out rows of their own. {told}."
    ]


def trusted(plan: Plan, result: Result) -> str:
    """Say what may be said about calibration: by the sites, if there are no labels."""
    if not is_unlabelled(result):
        return result.verdict
    if result.at_sites is None:
        return (
            "That cannot be said yet: no reference row has a label, and no figures of sites are "
            "here. Sites can try the model on held-out rows of their own."
        )
    found = _OF_TASK[plan.target.task](result.at_sites)
    rows = counted(result.at_sites.pooled.num_rows, "held-out row")
    return f"By what {_num_sites(result.at_sites)} found on {rows} of their own: {found}"


def in_short(plan: Plan, result: Result) -> str:
    """Return the verdict for a terminal: without labels what sites found, or how to ask them."""
    if not is_unlabelled(result):
        return result.verdict
    if result.at_sites is None:
        return (
            "No reference row has a label, so how good and how calibrated the model is comes from "
            f"sites' evaluations. {ASK}."
        )
    return trusted(plan, result)


def _num_sites(found: AtSites) -> str:
    return counted(len(found.sites), "site") if found.sites else "sites"


def _of_classes(found: AtSites) -> str:
    metrics = found.pooled.metrics
    words = (
        f"{_percent(metrics['accuracy'].value)} of cases are right; NLL "
        f"{plain(metrics['nll'].value, 3)}."
    )
    if len(found.pooled.risks) == 1:
        return f"{words} {_of_risk(found.pooled.risks[0], found.pooled.num_rows)}"
    inside = [bin.null_low <= bin.observed <= bin.null_high for bin in found.pooled.bins]
    if len(inside) >= _FEWEST_GROUPS:
        num_rows = sum(bin.count for bin in found.pooled.bins)
        return f"{words} {_of_groups(inside, _part(num_rows, found.pooled.num_rows))}"
    if not found.sites:  # what the public sees
        return f"{words} What shows calibration, if sites sent it, is in the members’ report."
    return (
        f"{words} Too little of a reliability diagram came with them, so calibration is not "
        f"judged: a site sends one from {FEWEST_COUNTED} held-out rows on, if its groups "
        "are not too small."
    )


def _of_risk(risk: ClassRisk, num_rows: int) -> str:
    """Of two classes: level and spread need no groups that all sites have in common."""
    words = f"By counts{_part(risk.num_rows, num_rows)}: {risk_words(risk)}"
    inside = [bin.null_low <= bin.observed <= bin.null_high for bin in risk.bins]
    return f"{words} {_of_groups(inside)}" if len(inside) >= _FEWEST_GROUPS else words


def _of_groups(inside: Sequence[bool], part: str = "") -> str:
    return (
        f"Of {len(inside)} groups of about equal probability{part} {sum(inside)} are as often so "
        "as chance would let them be if the model were calibrated."
    )


def _part(num_rows: int, every: int) -> str:
    """Of how many rows a figure is, where it is not of all."""
    return "" if num_rows == every else f" of {num_rows:,} of these rows"


_FEWEST_GROUPS = 3  # one or two hold rows of every probability, and agree with any flat model


def _of_numbers(found: AtSites) -> str:
    name = "coverage_95"
    share = found.pooled.metrics[name]
    assert MEASURES[name].is_share
    fits = "as many as they should" if share.low <= 0.95 <= share.high else _unclipped(found)
    return (
        f"intervals of 95 % hold {_percent(share.value)} of true values (95 % interval "
        f"{_percent(share.low)} to {_percent(share.high)}): {fits}."
    )


def _unclipped(found: AtSites) -> str:
    """What is left of a coverage that is not 95 %: sites clip predictions, which widens misses."""
    counts = [one.credible_covered for one in found.coverages if one.level == 0.95]
    if not counts or counts[0] is None or found.pooled.scores is None:
        return "not 95 %, where predictions are clipped as they leave a site"
    (low, high), num_rows = counts[0], sum(found.pooled.scores.counts)
    ends = [share(round(end * num_rows), num_rows) for end in (low, high)]
    if ends[0].low <= 0.95 <= ends[1].high:
        return (
            "not 95 %, but predictions are clipped before they leave a site; of unclipped ones, by "
            f"counts, it is {_percent(low)} to {_percent(high)}, which does not speak against 95 %"
        )
    return "not 95 %"


def _of_times(found: AtSites) -> str:
    metrics = found.pooled.metrics
    index = metrics.get("c_index")
    told = f"; C-index {plain(index.value, 3)}" if index else ""
    if "risk_gap" not in metrics:
        return f"NLL {plain(metrics['nll'].value, 3)}{told}. {_NOT_SEEN}"
    gap = metrics["risk_gap"]
    fits = "no more than chance would give" if gap.low <= 0 <= gap.high else "more than by chance"
    return (
        f"by the horizon the observed risk less the stated one is {100 * gap.value:+.1f} points "
        f"(95 % interval {100 * gap.low:+.1f} to {100 * gap.high:+.1f}), {fits}{told}."
    )


_NOT_SEEN = (
    "At some site hardly a row was seen to the horizon, so risks are not compared with what "
    "happened."
)


_OF_TASK = {"classification": _of_classes, "regression": _of_numbers, "survival": _of_times}
"""What is said of each task."""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
