"""Budgets of privacy: what a site has promised of each table, over all studies.

Differential privacy adds up. Two studies of one table, each of epsilon 4, are together more than
4, whoever runs them. So before an upload under such a promise is made, the site writes what it
spends into its book (`predbayes_study.site.book`). The same release again
(`extras.privacy.secret`) is in the book already, and spends nothing.

`max_epsilon` of the site's policy, with `max_delta`, bounds the total of a table, counted as
`extras.privacy.accounting.total` does. A spending that would exceed it is refused before anything
is trained.
"""

from __future__ import annotations

from collections.abc import Sequence

from predbayes.errors import StudyError
from predbayes_study.extras.privacy.accounting import total
from predbayes_study.site.book import Release, named
from predbayes_study.site.policy import SitePolicy


def require_budget(policy: SitePolicy, spent: Release, before: Sequence[Release]) -> None:
    """Refuse a spending with which a table would have more than a policy allows."""
    promises = [one.guarantee for one in (*before, spent) if one.guarantee is not None]
    for where, own in policy.holding:
        if own.max_epsilon is None:
            continue
        after = total(promises, own.max_delta)
        if after.epsilon > own.max_epsilon:
            raise StudyError(
                f"the site's policy forbids it: with {len(before)} releases before, "
                f"{named(spent.table)} would have {after.text}, above max_epsilon = "
                f"{own.max_epsilon:g} at max_delta = {own.max_delta:g} of {where}"
            )
