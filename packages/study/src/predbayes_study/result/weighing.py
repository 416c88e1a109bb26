"""For how many rows a site counts in the pool.

Rows are weight, and a site may claim any number. With m the median of the rows of all sites, of two
medians the lower, a site that states n rows counts for

    min(n, max_weight m)    by the plan
    min(n, m)               if something was found against it and it stays, if some site lies and it
                            cannot be told which, or if labels are too few to judge any site by

A plan that was frozen before there was a limit has none: that is what its sites agreed on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from predbayes.predictive.selection import MIN_LABELS
from predbayes_study.plan.schema import Plan
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.comparison import SiteComparison
from predbayes_study.result.schema import Finding
from predbayes_study.result.screening import Screening


@dataclass(frozen=True, slots=True)
class RowCaps:
    """How many rows a site counts for at most, and how many if something speaks against it."""

    most: float = math.inf
    median: float = math.inf

    @classmethod
    def of(cls, plan: Plan, rows: Sequence[int]) -> RowCaps:
        """Return the plan's limits for sites of these rows."""
        if plan.rules.max_weight is None or not rows:
            return cls()
        median = float(median_low(rows))
        few = plan.reference.labelled < MIN_LABELS
        return cls(median * (1.0 if few else plan.rules.max_weight), median)


UNLIMITED = RowCaps()


@dataclass(frozen=True, slots=True)
class Screened:
    """What screening and comparison found, and what follows from it."""

    sites: Mapping[str, Screening]
    dropped: frozenset[str]
    suspect: frozenset[str]  # that stay, and count for no more than the median site
    limits: RowCaps
    compared: tuple[str, ...]  # cautions

    @classmethod
    def of(
        cls,
        screened: Mapping[str, Screening],
        compared: SiteComparison,
        leave_out: frozenset[str],
        limits: RowCaps,
    ) -> Screened:
        """Return who is left out, with those that are by hand, and who is bounded."""
        dropped = leave_out | {site for site, found in screened.items() if found.leave_out}
        suspect = {site for site, found in screened.items() if found.findings or compared.unclear}
        return cls(screened, dropped, frozenset(suspect - dropped), limits, compared.cautions)

    def findings(self, site: str) -> tuple[Finding, ...]:
        """Return what was found against a site."""
        found = self.sites.get(site)
        return () if found is None else found.findings

    def most(self, site: str) -> float:
        """Return the most rows that a site counts for."""
        return self.limits.median if site in self.suspect else self.limits.most

    def changed(
        self, uploads: Sequence[AcceptedUpload], leave_out: frozenset[str]
    ) -> list[AcceptedUpload]:
        """Those, but for who is left out by hand, that go or count for less than by the plan."""
        gone, most = self.dropped - leave_out, self.limits.median
        return [
            u for u in uploads if u.site in gone or (u.site in self.suspect and u.num_rows > most)
        ]

    def same(self, other: Screened) -> bool:
        """Say whether it leaves the same sites, each for as many rows."""
        return (self.dropped, self.suspect) == (other.dropped, other.suspect)

    def cautions(self) -> tuple[str, ...]:
        """What a reader should know first; no site is named."""
        found = {name for name in self.suspect if self._lies(name)}
        if not found:
            return self.compared
        told = f"Sites that are kept, though they are other where labels are missing: {len(found)}."
        return *self.compared, told

    def _lies(self, site: str) -> bool:
        return any(finding.kind == "inconsistent" for finding in self.sites[site].findings)
