"""What a report says where no reference row has a label.

Then nothing was tuned, and the coordinator has nothing to score with. Sites have: each can try the
model on held-out rows of its own and send sums over them (`predbayes site evaluate`), which add up
to how good and how calibrated the model is for all their rows together.
"""

from __future__ import annotations

from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import AtSites, Result
from predbayes_study.result.statistics.disclosure import FEWEST_COUNTED
from predbayes_study.tasks import task_of
from predbayes_study.wording import counted

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
    found = task_of(plan).at_sites(result.at_sites, FEWEST_COUNTED)
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
