"""The book of a site: what it has released of each table, over all studies.

Some releases of one table reveal more together than each alone. Before such a release is made, the
site writes it into `budget.jsonl` beside its key, a hash-chained ledger like `approvals.jsonl`:

    spend      a release under a promise of differential privacy. Promises add up, and the site's
               policy bounds the total (`extras.privacy.budget`)
    release    one without noise whose difference from the next reveals more than either: masked
               terms, or sums of moments
    ask        another such release was refused, until a person at the site allows it

The same release again is in the book already, and spends nothing.

A person is asked before more is revealed. After the refusal `predbayes site approve KIT` allows
this plan one further release of the table, beside those that the refusal counted. An approval of
the plan from before the refusal doesn't. Each release of this plan that is in the book counts, so
the next of changed rows is refused again. A release in the open of a table that was under masks
asks as well: it shows what they hid, and narrows the sum that was opened to the other sites.

A table is known by the name that the data manager gives it: `table` in `site.toml`. A digest of
rows or of patients would not do: one patient more is another digest, and the book would begin
anew while nearly everybody is in both. Without a name all tables of the folder are one, which is
the safe side. The book cannot know of people who are in two tables of different names, of another
folder or computer, nor of what left by other software.

What was written stays written, even if training failed or the upload was never sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from predbayes.errors import NotApprovedError
from predbayes.exchange.strict import Strict
from predbayes.learning.guarantee import Guarantee
from predbayes.system import quoted
from predbayes_study.site.release import Approvals
from predbayes_study.store.journal import Journal
from predbayes_study.trust.statement import Digest
from predbayes_study.wording import counted

FILE = "budget.jsonl"
FURTHER = "further release"
"""What an approval is of that a person gives after a refusal."""


class Release(Strict):
    """One release of a table."""

    table: str
    release: str  # its digest; the same one is not counted twice
    plan: str  # digest
    study: str
    site: str
    guarantee: Guarantee | None = None  # what it has spent
    kind: str = ""  # of upload, where nothing is promised
    masked: bool = False


class Ask(Strict):
    """A release that waits for a person."""

    table: str
    plan: Digest
    study: str
    before: tuple[str, ...]  # releases that it would be beside

    @property
    def digest(self) -> str:
        """What is approved: this plan, beside these releases and no later ones."""
        return hashlib.sha256(
            json.dumps([self.table, self.plan, *self.before]).encode()
        ).hexdigest()


@dataclass(frozen=True, slots=True)
class Book:
    """The book of one site."""

    folder: Path

    def of_table(self, table: str) -> list[Release]:
        """Return what was released of a table, in order."""
        found = (said for _, said in self._journal.read() if isinstance(said, Release))
        return [release for release in found if release.table == table]

    def asks(self, plan: str = "") -> list[Ask]:
        """Return what was refused until a person allows it, under one plan or any."""
        found = (said for _, said in self._journal.read() if isinstance(said, Ask))
        return [ask for ask in found if plan in ("", ask.plan)]

    def spend(self, spent: Release, require: Callable[[Sequence[Release]], None]) -> bool:
        """Write down what a release spends, if a rule allows it; False if it is in the book.

        Args:
            spent: The release.
            require: Refuses it, given all releases of the table that spent something.
        """
        with self._journal.writing() as note:
            before = self.of_table(spent.table)
            if any(spent.release == one.release for one in before):
                return False
            require([one for one in before if one.guarantee is not None])
            note("spend", spent)
        return True

    def release(self, made: Release, again: str, approvals: Approvals, kit: Path) -> None:
        """Write down a release without noise, if a person allowed it or need not be asked.

        Args:
            made: The release.
            again: What another one of nearly the same rows reveals; empty: nothing.
            approvals: The site's.
            kit: Folder of the plan, for the message.
        """
        with self._journal.writing() as note:
            before = self.of_table(made.table)
            beside = [
                one
                for one in before
                # Of its own plan too: an approval must not be good for a second release.
                if one.masked or one.plan == made.plan or (again and one.kind == made.kind)
            ]
            if any(made.release == one.release for one in before) or not (beside or again):
                return
            releases = tuple(one.release for one in beside)
            ask = Ask(table=made.table, plan=made.plan, study=made.study, before=releases)
            if beside and not approvals.given(FURTHER, ask.digest):
                if ask not in self.asks():
                    note("ask", ask)
                raise NotApprovedError(_why(made, beside, again, kit))
            note("release", made)

    @property
    def _journal(self) -> Journal[Release | Ask]:
        return Journal(self.folder / FILE, {"spend": Release, "release": Release, "ask": Ask})


def _why(made: Release, beside: Sequence[Release], again: str, kit: Path) -> str:
    """Say what a further release would reveal, and how to allow it."""
    plans = {one.plan: f"{one.study!r} ({one.plan[:16]})" for one in beside}
    opens = "It is in the open: it shows what the masks hid, and narrows that sum to other sites."
    return (
        f"another release of {named(made.table)}, after that for {', '.join(plans.values())}, may "
        "reveal more than both alone. "
        f"{again if made.masked or not any(one.masked for one in beside) else opens} If a person "
        f"at the site allows it: predbayes site approve {quoted(kit)} --by NAME, then the same "
        "command again"
    )


def told(ask: Ask) -> str:
    """Return what a person allows by approving a plan that was refused."""
    count = counted(len(ask.before), "release")
    return f"one more release of {named(ask.table)}, beside {count} before"


def named(table: str) -> str:
    """Return how a message calls a table."""
    return f"table {table!r}" if table else "tables of this folder"
