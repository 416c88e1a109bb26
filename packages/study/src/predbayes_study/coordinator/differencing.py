"""Results that differ by one site.

Whoever has two models, one with a site and one without it, sees what that site changed: the
difference of two sums is the summand. With few sites that is much of what the site sent. Such pairs
come of a withdrawal, of a late site, of a corrected upload, of `--leave-out`, and of screening that
leaves out a site which an earlier result had, or the other way round. Whom screening leaves out is
known only after it: what is said before a result is made is said again of the sites that are in it.

What sites say beside their uploads changes no model, but two public reports of other sites'
evaluations or attachments have such a difference, too. So where the plan forbids differences, the
public pages lack the figures of a set that differs by fewer than `FEWEST_TO_POOL` sites from one
that an earlier public page shows.

The results compared are those of this study. Another study of the same sites has a ledger of its
own, and may have a result that differs from one here by one site.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from predbayes.errors import StudyError
from predbayes_study.coordinator.state import FinishedResult, State
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import FEWEST_TO_POOL, Result


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


def in_public(plan: Plan, state: State, result: Result, model: str) -> Result:
    """Return a new result with those figures alone that its public pages may have.

    Args:
        plan: Of the study.
        state: Before the result is in the ledger.
        result: The result.
        model: Digest of its model's weights.
    """
    if not is_forbidden(plan):
        return result
    tried = [accepted.digest for accepted in state.evaluations_of(model)]
    counted = {site.site for site in result.sites} - result.out
    made = [
        (one.at, one.evaluations, one.attachments, one.uploads.keys() - one.out)
        for one in state.results
    ]
    made.append((result.finished, tuple(tried), state.attachment_digests, counted))
    sites = {sent.digest: sent.site for sent in state.accepted} | state.replaced
    change: dict[str, object] = {}
    if result.at_sites is not None and not _may_follow(
        [_there(state, sites, at, digests) for at, digests, _, _ in made]
    ):
        change["at_sites"] = result.at_sites.model_copy(update={"public": False})
    if not _may_follow([_there(state, sites, at, digests, who) for at, _, digests, who in made]):
        change["extras"] = {}
    return result.model_copy(update=change)


def _there(
    state: State,
    sites: Mapping[str, str],
    at: str,
    digests: Iterable[str],
    counted: Collection[str] | None = None,
) -> dict[str, str]:
    """The files that a result shows, by digest with their sites: not those deleted before."""
    kept = {one: sites[one] for one in digests if state.deleted.get(one, at) >= at}
    return {d: site for d, site in kept.items() if counted is None or site in counted}


def _may_follow(sets: Sequence[Mapping[str, str]]) -> bool:
    """Whether the last set of files may be shown after those of the others that were shown."""
    shown: list[Mapping[str, str]] = []
    may = True
    for files in sets:
        apart = [{site for _, site in files.items() ^ other.items()} for other in shown]
        may = all(not sites or len(sites) >= FEWEST_TO_POOL for sites in apart)
        if may and len({*files.values()}) >= FEWEST_TO_POOL:  # or no public page has them
            shown.append(files)
    return may


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
