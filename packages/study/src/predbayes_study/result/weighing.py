"""What uploads count for: the rule of `predbayes_study.plan.weight` on every word of a site.

Rows are one number for each site. Gates r(x) and precisions are one for each reference row x, and
are capped there. For a gate the median is taken for no less than 1, which is what a site has
without a gate: if one site alone has rows of some kind it may say so, up to three times as dense as
the reference rows. A site counts for no more rows than

    max_weight m    by the plan, with m the rows of the median site
    m               if something was found against it and it stays, if some site lies and it
                    cannot be told which, or if labels are too few to judge any site by
    the fewest      that any site has, if it could not be compared with the others

and its gate is at most 1 if it could not be compared, or says the opposite of the others. A plan
that was frozen before there was a limit has none: that is what its sites agreed on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from predbayes.predictive.families import Gaussian
from predbayes.predictive.pooling import Contribution
from predbayes.predictive.selection import MIN_LABELS
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.weight import RowCaps, most
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.comparison import SiteComparison
from predbayes_study.result.copies import ALL_PAIRS
from predbayes_study.result.schema import Finding
from predbayes_study.result.screening import Screening

GATE, PRECISION, CERTAINTY = "gate", "precision", "certainty"


@dataclass(frozen=True, slots=True)
class Caps:
    """What a site counts for at most."""

    rows: RowCaps = field(default_factory=RowCaps)
    words: Mapping[str, Tensor] = field(default_factory=dict)  # by reference row, (B,)

    @classmethod
    def of(cls, plan: Plan, rows: Sequence[int]) -> Caps:
        """Return the plan's limits for sites of these rows."""
        return cls(RowCaps.of(plan, rows, judged=plan.reference.labelled >= MIN_LABELS))

    def of_rows(self, times: float | None, sites: Iterable[Contribution]) -> Caps:
        """Return these with limits to what sites say of each reference row."""
        if times is None:
            return self
        words: dict[str, list[Tensor]] = {}
        for site in sites:
            for name, word in _words(site).items():
                words.setdefault(name, []).append(word.float())
        usual = {GATE: 1.0}
        found = {n: most(torch.stack(w), times, usual.get(n, 0.0)) for n, w in words.items()}
        return replace(self, words={n: torch.from_numpy(limit) for n, limit in found.items()})

    def applied(self, site: Contribution, rows: float | None = None) -> Contribution:
        """Return what a site sent, within the limits, and for no more than some rows."""
        site, words = site.limited(self.rows.most if rows is None else rows), self.words
        if site.gate is not None and GATE in words:
            site = replace(site, gate=site.gate.minimum(words[GATE].log().to(site.gate.dtype)))
        said = site.predictive
        if isinstance(said, Gaussian) and PRECISION in words:
            var, known = said.var.maximum(words[PRECISION].reciprocal()), said.epistemic_var
            if known is not None and CERTAINTY in words:
                known = known.maximum(words[CERTAINTY].reciprocal()).minimum(var)
            site = replace(site, predictive=Gaussian(said.mean, var, known))
        return site


def _words(site: Contribution) -> dict[str, Tensor]:
    """What a site says of each reference row that it counts by, (B,)."""
    found = {} if site.gate is None else {GATE: site.gate.exp()}
    if isinstance(site.predictive, Gaussian):
        found[PRECISION] = site.predictive.var.reciprocal()
        if site.predictive.epistemic_var is not None:
            found[CERTAINTY] = site.predictive.epistemic_var.clamp_min(1e-12).reciprocal()
    return found


def some_of(uploads: Sequence[AcceptedUpload]) -> Sequence[AcceptedUpload]:
    """Return uploads that stand for all: of many sites some, evenly spread."""
    return uploads[:: max(1, math.ceil(len(uploads) / ALL_PAIRS))]


_DOUBTED = ("uncompared", "opposed")


@dataclass(frozen=True, slots=True)
class Screened:
    """What screening and comparison found, and what follows from it."""

    sites: Mapping[str, Screening]
    dropped: frozenset[str]
    suspect: frozenset[str]  # that stay, and count for no more than the median site
    doubted: frozenset[str]  # of these, who could not be compared, or is against the others
    limits: Caps
    compared: tuple[str, ...]  # cautions

    @classmethod
    def of(
        cls,
        screened: Mapping[str, Screening],
        compared: SiteComparison,
        leave_out: frozenset[str],
        limits: Caps,
    ) -> Screened:
        """Return who is left out, with those that are by hand, and who is bounded."""
        dropped = leave_out | {site for site, found in screened.items() if found.leave_out}
        suspect = {site for site, found in screened.items() if found.findings or compared.unclear}
        doubted = {site for site, found in compared.findings.items() if found.kind in _DOUBTED}
        return cls(
            screened,
            dropped,
            frozenset(suspect - dropped),
            frozenset(doubted - dropped),
            limits,
            compared.cautions,
        )

    def findings(self, site: str) -> tuple[Finding, ...]:
        """Return what was found against a site."""
        found = self.sites.get(site)
        return () if found is None else found.findings

    def most(self, site: str) -> float:
        """Return the most rows that a site counts for."""
        if any(finding.kind == "uncompared" for finding in self.findings(site)):
            return self.limits.rows.least
        return self.limits.rows.median if site in self.suspect else self.limits.rows.most

    def applied(self, site: Contribution) -> Contribution:
        """Return what a site that stays counts for."""
        found = self.limits.applied(site, self.most(site.site))
        if found.gate is not None and site.site in self.doubted:
            found = replace(found, gate=found.gate.clamp_max(0.0))
        return found

    def changed(
        self, uploads: Sequence[AcceptedUpload], leave_out: frozenset[str]
    ) -> list[AcceptedUpload]:
        """Those, but for who is left out by hand, that go or count for less than by the plan."""
        gone = (self.dropped - leave_out) | self.doubted
        return [
            u
            for u in uploads
            if u.site in gone or min(u.num_rows, self.limits.rows.most) > self.most(u.site)
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
