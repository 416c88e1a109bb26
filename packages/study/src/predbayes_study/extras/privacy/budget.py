"""The book of budgets: what a site has promised of each table, over all studies.

Differential privacy adds up. Two studies of one table, each of epsilon 4, are together more than
4, whoever runs them. So before an upload under such a promise is made, the site writes what it
spends into `budget.jsonl` beside its key, a hash-chained ledger like `approvals.jsonl`. The same
release again (`extras.privacy.secret`) is in the book already, and spends nothing.

A table is known by the name that the data manager gives it: `table` in `site.toml`. A digest of
rows or of patients would not do: one patient more is another digest, and the budget would begin
anew while nearly everybody is in both. Without a name all tables of the folder are one, which is
the safe side. People who are in two tables of different names have both budgets spent on them; the
book cannot know.

`max_epsilon` of the site's policy, with `max_delta`, bounds the total of a table, counted as
`extras.privacy.accounting.total` does. A spending that would exceed it is refused before anything
is trained. What was spent stays spent, even if training failed or the upload was never sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from predbayes.errors import StudyError
from predbayes.exchange.strict import Strict
from predbayes.learning.guarantee import Guarantee
from predbayes_study.extras.privacy.accounting import total
from predbayes_study.site.policy import SitePolicy
from predbayes_study.store.journal import Journal

FILE = "budget.jsonl"


class Spent(Strict):
    """What one release of a table has spent."""

    table: str
    release: str  # its digest; the same one is not counted twice
    plan: str  # digest
    study: str
    site: str
    guarantee: Guarantee


@dataclass(frozen=True, slots=True)
class Book:
    """The book of one site."""

    folder: Path

    def of_table(self, table: str) -> list[Spent]:
        """Return what was spent of a table, in order."""
        return [spent for _, spent in self._journal.read() if spent.table == table]

    def spend(self, spent: Spent, policy: SitePolicy) -> bool:
        """Write a spending down, if the policy allows it; False if it is in the book already."""
        with self._journal.writing() as note:
            before = self.of_table(spent.table)
            if any(spent.release == one.release for one in before):
                return False
            require_budget(policy, spent, [one.guarantee for one in before])
            note("spend", spent)
        return True

    @property
    def _journal(self) -> Journal[Spent]:
        return Journal(self.folder / FILE, {"spend": Spent})


def require_budget(policy: SitePolicy, spent: Spent, before: list[Guarantee]) -> None:
    """Refuse a spending with which a table would have more than a policy allows."""
    for where, own in policy.holding:
        if own.max_epsilon is None:
            continue
        after = total([*before, spent.guarantee], own.max_delta)
        if after.epsilon > own.max_epsilon:
            named = f"table {spent.table!r}" if spent.table else "tables of this folder"
            raise StudyError(
                f"the site's policy forbids it: with {len(before)} releases before, {named} would "
                f"have {after.text}, above max_epsilon = {own.max_epsilon:g} at max_delta = "
                f"{own.max_delta:g} of {where}"
            )
