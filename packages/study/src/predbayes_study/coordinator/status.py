"""Where a study stands, as plain data for people and programs."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from predbayes.text import html_lines, html_table
from predbayes_study.coordinator.run_status import RunStatus
from predbayes_study.coordinator.state import FinishedResult, State
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.weight import RowCaps
from predbayes_study.result.schema import Result
from predbayes_study.store.ledger import now
from predbayes_study.trust.signing import PublicKey

if TYPE_CHECKING:
    from predbayes_study.coordinator.study import Study

COLUMNS = ("site", "state", "rows", "bytes", "since", "key")
"""What a table of sites says of each."""

MOST_SITES = 40
"""That are shown one by one."""


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """One site."""

    site: str
    state: Literal["admitted", "in", "deleted", "withdrawn"]
    key: str | None  # fingerprint; None after it withdrew
    num_rows: int | None  # that its upload states
    agreed_rows: int | None  # at admission; None where nothing was agreed
    num_bytes: int | None
    since: str | None  # when its upload came

    def cells(self) -> tuple[str, ...]:
        """Return its line in a table: see `COLUMNS`."""
        size = "" if self.num_bytes is None else f"{self.num_bytes:,}"
        words = "" if self.key is None else "-".join(self.key.split("-")[:3]) + "-…"
        day = (self.since or "")[:10]  # the whole time would not fit into 80 columns
        return self.site, self.state, self._rows(), size, day, words

    def _rows(self) -> str:
        """What it states, and whether that was agreed; before its upload what was agreed."""
        if self.num_rows is None:
            return "" if self.agreed_rows is None else f"{self.agreed_rows:,} agreed"
        return f"{self.num_rows:,} {'stated' if self.agreed_rows is None else 'agreed'}"


@dataclass(frozen=True, slots=True)
class ResultStatus:
    """One result."""

    number: int
    finished: str
    sites: int
    outcome: str
    current: bool  # whether it is of the uploads that are in now
    verdict: str
    nll: float | None  # of the student

    def __str__(self) -> str:
        score = "" if self.nll is None else f", NLL {self.nll:.3f}"
        note = "" if self.current else ", made before the last files came or went"
        return f"result {self.number}: {self.sites} sites{score}{note}"


@dataclass(frozen=True, slots=True)
class Status:
    """The whole study."""

    study: str
    plan_digest: str
    fingerprint: str
    sites: tuple[SiteStatus, ...]  # all, or the first that are awaited if there are many
    num_sites: int  # admitted or withdrawn
    num_awaited: int  # admitted, without an upload
    num_in: int
    quorum: int
    deadline: str | None
    late: bool
    limited: Mapping[str, tuple[int, float]]  # by site, rows stated and for how many they count
    due: tuple[str, ...]  # sites whose files have been kept as long as the plan says
    run: RunStatus | None  # over a network, if one is under way
    results: tuple[ResultStatus, ...]
    ledger_digest: str
    next: str  # what to do now

    @property
    def title(self) -> str:
        """What the first line says."""
        return f"{self.study}: {self.num_in} sites in, quorum {self.quorum}"

    @property
    def doubts(self) -> list[str]:
        """Who states more rows than count, a line each; of many sites the first."""
        lines = [
            f"{site} states {rows:,} rows, far more than the other sites; it counts for at most "
            f"{most:,.0f}"
            for site, (rows, most) in self.limited.items()
        ]
        more = len(lines) - MOST_SITES
        return lines if more <= 0 else [*lines[:MOST_SITES], f"and {more:,} more sites do so"]

    def _repr_html_(self) -> str:
        results = [line for made in self.results for line in (str(made), made.verdict)]
        hidden = self.num_sites - len(self.sites)
        more = [f"and {hidden:,} more sites"] if hidden else []
        return (
            html_lines([self.title, f"plan {self.fingerprint}"])
            + html_table([site.cells() for site in self.sites], COLUMNS)
            + html_lines([*more, *self.doubts, *results, f"next: {self.next}"])
        )


def status_of(study: Study, most: int | None = None) -> Status:
    """Read a study; nothing is changed, and no lock is needed.

    Args:
        study: The study.
        most: Sites that are told of one by one; of more than these, the first that are awaited.
    """
    state, plan = study.state(), study.plan
    deadline = plan.rules.deadline
    current = state.current
    results = tuple(
        _result(made, study.result(made.number, sites=False), current=made is current)
        for made in state.results
    )
    run = RunStatus.load(study.folder)
    stated = {site: upload.num_rows for site, upload in state.uploads.items()}
    counted = RowCaps.of(plan, [*stated.values()]).most
    return Status(
        study=plan.name,
        plan_digest=state.plan_digest,
        fingerprint=plan.fingerprint,
        sites=tuple(_site(state, name) for name in _shown(state, most)),
        num_sites=_num_sites(state),
        num_awaited=len(state.awaited),
        num_in=len(state.uploads),
        quorum=plan.rules.quorum,
        deadline=None if deadline is None else deadline.isoformat(),
        late=deadline is not None and datetime.datetime.now(datetime.UTC).date() > deadline,
        limited={site: (rows, counted) for site, rows in sorted(stated.items()) if rows > counted},
        due=_due(state, plan.rules.retention_days),
        run=run,
        results=results,
        ledger_digest=state.last,
        next=_next(state, plan, results, run),
    )


def _due(state: State, days: int | None) -> tuple[str, ...]:
    if days is None:
        return ()
    parsed = datetime.datetime.fromisoformat
    oldest = parsed(now()) - datetime.timedelta(days=days)
    due = {accepted.site for accepted in state.kept if parsed(accepted.at) < oldest}
    return tuple(sorted(due))


def _num_sites(state: State) -> int:
    return len(state.keys) + sum(site not in state.keys for site in state.gone)


def _shown(state: State, most: int | None) -> list[str]:
    if most is None or _num_sites(state) <= most:
        return sorted({*state.keys, *state.gone})
    return heapq.nsmallest(most, state.awaited)


def _site(state: State, site: str) -> SiteStatus:
    key = PublicKey(state.keys[site]).fingerprint if site in state.keys else None
    upload = state.uploads.get(site)
    if upload is None:
        agreed = state.agreed.get(site)
        return SiteStatus(site, "admitted" if key else "withdrawn", key, None, agreed, None, None)
    word: Literal["deleted", "in"] = "deleted" if upload.digest in state.deleted else "in"
    rows = upload.num_rows, upload.agreed_rows
    return SiteStatus(site, word, key, *rows, upload.num_bytes, upload.at)


def _result(recorded: FinishedResult, found: Result, *, current: bool) -> ResultStatus:
    """What is told of a result, which was read without its sites."""
    scores = found.student.scores
    return ResultStatus(
        number=recorded.number,
        finished=recorded.at,
        sites=len(recorded.uploads),
        outcome=recorded.outcome,
        current=current,
        verdict=found.verdict,
        nll=None if scores is None else scores.metrics["nll"].value,
    )


def _next(
    state: State, plan: Plan, results: tuple[ResultStatus, ...], run: RunStatus | None
) -> str:
    num_in, quorum = len(state.uploads), plan.rules.quorum
    if run is not None and run.finishing:
        return "wait: the run makes the result"
    if num_in < quorum:
        more = quorum - num_in
        sites = "site" if more == 1 else "sites"
        return f"{more} more {sites} for the quorum of {quorum}: predbayes study add FILE"
    if plan.opening and state.of_these_uploads is None:
        return "predbayes study request; then, with what the key holders return, study finish"
    if not results or not results[-1].current:
        return "predbayes study finish"
    return f"results/{results[-1].number}/report.html"
