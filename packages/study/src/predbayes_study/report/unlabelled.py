"""What a report says where no reference row has a label.

Then nothing was tuned, and the coordinator has nothing to score with. Sites have: each can try the
model on held-out rows of its own and send sums over them (`predbayes site evaluate`), which add up
to how good and how calibrated the model is for all their rows together. They also set how sure it
is (`predbayes_study.tasks.echo`).
"""

from __future__ import annotations

import math

from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import AtSites, FoundLevel, Result
from predbayes_study.result.statistics.disclosure import FEWEST_COUNTED
from predbayes_study.tasks import task_of
from predbayes_study.tasks.echo import TIMES
from predbayes_study.wording import counted, plain

_MOST_BY_ONE = 1.5  # times, by which one site may change how sure the model is

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
    lines = [] if public or result.at_sites is None else _one_site(result.at_sites)
    why = "No reference row has a label: nothing was tuned, and nothing"
    if result.pool.method == "moments":
        why = "There is no label of a reference row: nothing"
    first = (
        f"{why} was scored by the coordinator. How good and how calibrated the model is comes from "
        f"sites’ evaluations on held-out rows of their own. {told}."
    )
    return [first, *lines]


def trusted(plan: Plan, result: Result) -> str:
    """Say what may be said about calibration: first whether sites differ."""
    return f"{between_words(result.at_sites)}{_trusted(plan, result)}"


def between_words(found: AtSites | None) -> str:
    """Say in what sites differ, before anything is said of their mean; nothing if they don't."""
    if found is None or not found.between:
        return ""
    named = sorted({site for one in found.between for site in one.sites})
    parts = []
    for one in found.between:
        what = f"the calibration {one.measure}"
        if len({other.of for other in found.between}) > 1:
            what += f" of “{one.of}”"
        if one.lowest is not None and one.highest is not None:
            what += (
                f" runs from {plain(one.lowest[1], 2)} ({one.lowest[0]}) to "
                f"{plain(one.highest[1], 2)} ({one.highest[0]})"
            )
        parts.append(what)
    text = (
        "The sites differ by more than chance in how right the risks are, so don’t go by their "
        f"mean: {', and '.join(parts)}. "
    )
    if named:
        verb = "stands" if len(named) == 1 else "stand"
        text += (
            f"{' and '.join(named)} {verb} out: let them adopt the model (`predbayes site adopt`), "
            "or do not use it there. "
        )
    return text


def _trusted(plan: Plan, result: Result) -> str:
    if not is_unlabelled(result):
        return result.verdict
    if result.at_sites is None:
        return (
            "That cannot be said yet: no reference row has a label, and no figures of sites are "
            "here. Sites can try the model on held-out rows of their own. Until they have, nobody "
            "knows whether it is as sure as it should be."
        )
    found = task_of(plan).at_sites(result.at_sites, FEWEST_COUNTED)
    rows = counted(result.at_sites.pooled.num_rows, "held-out row")
    told = f"what {_num_sites(result.at_sites)} found on {rows} of their own: {found}"
    level = result.at_sites.level
    if level is None and not result.at_sites.sites:  # in public it may be hidden
        return f"By {told}"
    if level is None:
        return f"By {told} These rows could not set how sure the model is: it is as its pool."
    return f"{level_words(plan, level)} Before that, by {told}"


def level_words(plan: Plan, level: FoundLevel) -> str:
    """Say what sites' held-out rows changed of the model."""
    rows = counted(level.num_rows, "held-out row")
    end = {TIMES[0]: "at most ", TIMES[-1]: "at least "}.get(level.inverse_temperature, "")
    text = (
        f"Sites set how sure the model is, by {rows}: {end}{plain(level.inverse_temperature, 2)} "
        "times as sure as their pool"
    )
    if level.without is not None:
        text += f" ({plain(level.without, 2)} without {level.decided_by}, which changes it most)"
    if level.shifts:
        second, times = (plan.target.classes or ())[1], plain(math.exp(level.shift), 2)
        text += f", with the odds of “{second}” multiplied by {times}"
    return f"{text}."


def _one_site(found: AtSites) -> list[str]:
    """Warn of a level that one site decides."""
    level = found.level
    if level is None or level.without is None:
        return []
    times = abs(math.log(level.inverse_temperature / level.without))
    if max(times, abs(level.shift - level.shift_without)) <= math.log(_MOST_BY_ONE):
        return []
    text = (
        f"How sure the model is depends on what {level.decided_by} says: it is "
        f"{plain(level.inverse_temperature, 2)} times as sure as the pool, and would be "
        f"{plain(level.without, 2)} times without that site"
    )
    if level.shifts:
        text += (
            f"; odds are multiplied by {plain(math.exp(level.shift), 2)}, and would be by "
            f"{plain(math.exp(level.shift_without), 2)}"
        )
    return [f"{text}."]


def in_short(plan: Plan, result: Result) -> str:
    """Return the verdict for a terminal: without labels what sites found, or how to ask them."""
    if is_unlabelled(result) and result.at_sites is None:
        return (
            "No reference row has a label, so how good and how calibrated the model is comes from "
            f"sites' evaluations. {ASK}."
        )
    return trusted(plan, result)


def _num_sites(found: AtSites) -> str:
    return counted(len(found.sites), "site") if found.sites else "sites"
