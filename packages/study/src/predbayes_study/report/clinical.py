"""What somebody who treats people asks first: how common is it, and is its risk told rightly?

An accuracy alone misleads where an outcome is rare: always to say "no" may be right as often. So
the report leads with the base rate, with how well the model tells apart who has the event and who
has not, with stated against observed risk, and with what decisions gain by it. Accuracy stands
beside that of the most frequent answer, and what sites added is a paired difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from predbayes.predictive.estimate import Estimate
from predbayes.predictive.measures import MEASURES, Measure
from predbayes.predictive.risk import AT_THRESHOLD
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import AtThreshold, ClassRisk, GroupScores, Result
from predbayes_study.tasks.classes import OF_RISK
from predbayes_study.wording import plain

OF_CLASSES = ("auroc", "average_precision", "slope", "observed_expected")
"""What is told of each of several classes."""


def event_of(result: Result) -> ClassRisk | None:
    """Return the risk of the event, if there are two classes."""
    return result.risks[0] if len(result.risks) == 1 else None


def lines_of(risk: ClassRisk) -> list[tuple[Measure, Estimate]]:
    """List the figures of a risk and what they mean, in the order in which a page has them."""
    return [(MEASURES[name], risk.metrics[name]) for name in OF_RISK if name in risk.metrics]


def most_frequent(plan: Plan, result: Result) -> tuple[str, str] | None:
    """Return the most frequent class of the scored rows, and its share in words."""
    if not result.class_shares:
        return None
    share = max(result.class_shares)
    assert plan.target.classes is not None
    return plan.target.classes[result.class_shares.index(share)], f"{100 * share:.1f} %"


def useful_range(curve: Sequence[tuple[float, float, float]]) -> tuple[float, float] | None:
    """Return the thresholds from which to which the model is better than treating all or nobody.

    None if there is none; of several such ranges the longest.
    """
    best: list[float] = []
    now: list[float] = []
    for threshold, gained, everybody in curve:
        now = [*now, threshold] if gained > max(everybody, 0.0) + 1e-12 else []
        best = max(best, now, key=len)
    return (best[0], best[-1]) if len(best) > 1 else None


def curve_words(risk: ClassRisk) -> str:
    """Say where the decision curve is above treating everybody and treating nobody."""
    found = useful_range(risk.curve)
    if found is None:
        return "At no threshold is it better to follow the model than to treat everybody or nobody."
    low, high = (plain(100 * end, 0) for end in found)
    return (
        f"From a threshold of {low} % to {high} % following the model is better than treating "
        "everybody or nobody, as far as these rows tell."
    )


def threshold_measures(at: Sequence[AtThreshold]) -> list[Measure]:
    """List the measures that some threshold has."""
    return [MEASURES[name] for name in AT_THRESHOLD if any(name in one.metrics for one in at)]


def group_measures(groups: Sequence[GroupScores]) -> list[Measure]:
    """List the measures that some group has, in the order of the table."""
    named = {name for group in groups for name in group.metrics}
    return [measure for name, measure in MEASURES.items() if name in named]


def paid_words(paid: Estimate | None, *, alone: bool = False) -> tuple[str, str] | None:
    """Return a verdict on what sites added, and the difference that it rests on, in words.

    Where no site has a part in the pool the difference would be that of a student and its teacher.
    """
    if alone:
        return (
            "Working together added nothing.",
            "The labelled rows chose the coordinator’s own model alone: no site has a part in it.",
        )
    if paid is None:
        return None
    figure = (
        f"{plain(paid.value, 3)} nats per row, 95 % interval {plain(paid.low, 3)} to "
        f"{plain(paid.high, 3)}"
    )
    why = (
        "Row by row, the NLL of a model of the coordinator’s labelled rows alone, without any "
        f"site, minus that of this model is {figure}"
    )
    if paid.low > 0:
        return "Working together paid.", f"{why}: above 0 in the whole interval."
    if paid.high < 0:
        return "Working together did not pay.", f"{why}: below 0 in the whole interval."
    return "Whether working together paid is not clear from these rows.", f"{why}: it holds 0."
