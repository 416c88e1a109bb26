"""Results that differ by one site.

Whoever has two models, one with a site and one without it, sees what that site changed: the
difference of two sums is the summand. With few sites that is much of what the site sent. Such pairs
come of a withdrawal, of a late site, of a corrected upload, of `--leave-out`, and of screening that
leaves out a site which an earlier result had, or the other way round. Whom screening leaves out is
known only after it: what is said before a result is made is said again of the sites that are in it.

The results compared are those of this study. Another study of the same sites has a ledger of its
own, and may have a result that differs from one here by one site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from predbayes.errors import StudyError
from predbayes_study.coordinator.state import FinishedResult, State
from predbayes_study.plan.schema import Plan


def told_apart(state: State, leave_out: Iterable[str]) -> list[str]:
    """Return a line for each earlier result from which one of the other sites differs by one."""
    now_in = {site: accepted.digest for site, accepted in state.uploads.items()}
    counted = _without(now_in, leave_out)
    lines = []
    for result in state.results:
        site = _only_difference(counted, _without(result.uploads, result.out))
        if site:
            lines.append(_line(result, site))
    return lines


def is_forbidden(plan: Plan) -> bool:
    """Whether the plan forbids a result that differs from an earlier one by one site."""
    return plan.rules.differences == "forbid"


def require_apart(plan: Plan, state: State, leave_out: Iterable[str]) -> None:
    """Refuse a result that differs from an earlier one by one site, if the plan forbids it."""
    if is_forbidden(plan):
        for line in told_apart(state, leave_out):
            raise StudyError(f"the plan's rules.differences forbids it: {line}")


def _line(result: FinishedResult, site: str) -> str:
    return (
        f"this result and result {result.number} differ by {site} alone: whoever has both models "
        f"can tell what {site} changed; give the new one only to people who lack the old one, or "
        "wait for a second site"
    )


def _only_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The site by which two sets of uploads differ; empty if that is none or several."""
    sites = {site for site, _ in one.items() ^ other.items()}
    return sites.pop() if len(sites) == 1 else ""


def _without(uploads: Mapping[str, str], leave_out: Iterable[str]) -> dict[str, str]:
    gone = set(leave_out)
    return {site: digest for site, digest in uploads.items() if site not in gone}
