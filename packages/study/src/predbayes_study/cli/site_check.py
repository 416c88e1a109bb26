"""`predbayes site check`: say what the plan asks of a site, and check its table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import predbayes_study
from predbayes.errors import DataError, PlanError, StudyError
from predbayes.system import quoted
from predbayes_study.cli.show import (
    DataArgument,
    KitArgument,
    SiteOption,
    read_out,
    say,
    show_findings,
)
from predbayes_study.wording import bytes_readable, counted

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from predbayes_study.kit.kit import Kit
    from predbayes_study.plan.schema import Plan
    from predbayes_study.rules import Finding
    from predbayes_study.store.audit import AuditLog
    from predbayes_study.tables.check import SiteCheck
    from predbayes_study.tables.coding import Examined
    from predbayes_study.tables.sitefile import SiteFile

DEFAULT_SITE = Path("site.toml")

NameOption = Annotated[
    str | None, typer.Option(help="With --suggest: the site's name in the study.")
]
SuggestOption = Annotated[
    bool, typer.Option("--suggest", help="Draft site.toml from the site's table.")
]

_WIDTH = 13  # of the words before what the plan asks


def check_command(
    kit: KitArgument,
    data: DataArgument,
    site_file: SiteOption = DEFAULT_SITE,
    name: NameOption = None,
    suggest: SuggestOption = False,
    show_values: Annotated[
        bool,
        typer.Option(
            "--show-values", help="Show values, lines and counts. Do not mail this output."
        ),
    ] = False,
) -> None:
    """Say what the plan asks, and what in the table does not fit."""
    act = "suggest" if suggest else "check"
    with site_log(site_file).during(act, table=data.name, values_shown=show_values) as what:
        _require_readable(kit, site_file)
        loaded = predbayes_study.Kit.load(kit)
        what["plan"] = loaded.digest
        for line in _asked(loaded):
            say(line)
        arguments = f"{quoted(kit)} {quoted(data)}"
        again = f"predbayes site check {arguments}{site_option(site_file)}"
        try:
            if suggest:
                draft_site(loaded.plan, data, site_file, name, again)
            else:
                from predbayes.progress import listening
                from predbayes_study.site.policy import SitePolicy
                from predbayes_study.tables.check import site_problems

                own = _site(site_file, again)
                least = 0 if show_values else SitePolicy.of(own).least_cell(loaded.plan)
                rows = _Rows(loaded, own)
                with listening([], bar=None):
                    checked = site_problems(loaded.plan, own, data, least, rows.count_held_out)
                checked = _with_policy(checked, loaded, own, rows, least)
                _tell(checked, data, show_values=show_values)
                if site_file.exists():
                    _show_next(loaded, f"train {arguments} --out out", site_file)
                else:
                    say(f"train needs {site_file} and a key as well, with your name in the study:")
                    say(f"next: {again} --suggest --name NAME; predbayes site key NAME")
        finally:
            read_out(loaded)


def _require_readable(kit: Path, site_file: Path) -> None:
    """Refuse a slip in plan or site.toml at once: what reads tables and kits imports arrays."""
    from predbayes_study.plan.schema import PLAN_FILE, Plan
    from predbayes_study.tables.sitefile import SiteFile

    if (kit / PLAN_FILE).exists():
        Plan.load(kit / PLAN_FILE)
    if site_file.exists():
        SiteFile.load(site_file)


def site_log(site_file: Path) -> AuditLog:
    """Return the site's audit log: where its site.toml says, or beside it."""
    from predbayes_study.store.audit import AuditLog
    from predbayes_study.tables.sitefile import SiteFile

    named = ""
    with suppress(PlanError):  # a file that cannot be read is for the command to refuse
        named = SiteFile.load(site_file).audit
    return AuditLog.at(site_file.parent, named)


def _show_next(kit: Kit, train: str, site_file: Path) -> None:
    """Name the next command: training, or the approval that it waits for."""
    from predbayes_study.site.release import Approvals
    from predbayes_study.tables.sitefile import SiteFile

    may_train = Approvals.of(SiteFile.load(site_file)).may_train(kit)
    command = train if may_train else f"approve {quoted(kit.folder)} --by NAME"
    say(f"next: predbayes site {command}{site_option(site_file)}")


def draft_site(plan: Plan, data: Path, site_file: Path, name: str | None, again: str) -> None:
    """Write a first site.toml, or complete the one that is there; say what to look at."""
    from predbayes.exchange.strict import require_site_name
    from predbayes.files import write_bytes
    from predbayes_study.plan.schema import read_text
    from predbayes_study.tables.suggest import complete, suggest

    if site_file.exists():
        drafted = complete(plan, data, read_text(site_file))
        what = f"completed {site_file}: what was there is as it was"
    else:
        if name is None:
            raise StudyError("say which site this is: --name NAME, as the study knows it")
        require_site_name(name)
        drafted = suggest(plan, data, name)
        what = f"wrote {site_file}: a draft"
    write_bytes(site_file, drafted.sitefile_text.encode())
    say(f"{what}; {'look at' if drafted.notes else 'nothing in it is a guess'}")
    for note, line in zip(drafted.notes, drafted.lines, strict=True):
        say(f"  - line {line}: {note}" if line else f"  - {note}")
    say(f"next: {'edit it, then ' if drafted.notes else ''}{again}")


@dataclass(slots=True)
class _Rows:
    """The rows that `site train` would see; encoded once, as large tables take a while."""

    kit: Kit
    own: SiteFile
    inputs: Tensor | None = None  # of a table that fits
    trained: tuple[Tensor, Tensor] | None = None  # inputs and targets that are not held out
    people: Tensor | None = None  # whose these are, where it is known

    @property
    def plan(self) -> Plan:
        """The plan of the kit."""
        return self.kit.plan

    def count_held_out(self, frame: pd.DataFrame, examined: Examined) -> int:
        """Return how many of them are held out."""
        from predbayes_study.site.rows import SiteRows
        from predbayes_study.site.secret import secret_if_any

        secret = secret_if_any(self.plan, self.own)
        rows = SiteRows.of(self.plan, frame, examined, secret=secret)
        # The blind spot changes which rows are trained on, not their number, and takes a while.
        trained, held_out = rows.split(self.plan, self.own.name)
        self.inputs, self.trained = rows.inputs, rows[trained]
        self.people = rows.patients_of(trained)
        return len(held_out)


def _with_policy(checked: SiteCheck, kit: Kit, own: SiteFile, rows: _Rows, least: int) -> SiteCheck:
    """Add what the site's policy says of the plan, its code and its reference rows."""
    from predbayes_study.plan.networks import network_problem
    from predbayes_study.plan.software import is_another_software, software_problem
    from predbayes_study.rules import error, warning
    from predbayes_study.site.overlap import near_findings
    from predbayes_study.site.policy import Asked, SitePolicy

    plan, policy, told = kit.plan, SitePolicy.of(own), ""
    near: list[Finding] = []
    problems = [network_problem(plan, own.allow_networks)]
    if not checked.errors and rows.inputs is not None:
        told, near = near_findings(policy, kit, rows.inputs, least)
        problems += policy.problems(Asked.of(plan, num_rows=len(rows.inputs)))
        problems.append(_sums_problem(rows, policy.least_cell(plan)))
    else:
        problems += policy.problems(Asked.of(plan))
    findings = [*map(error, filter(None, problems)), *near, *checked.findings]
    findings.sort(key=lambda finding: finding.severity)
    software = software_problem(plan)
    if is_another_software(plan):
        findings.append(warning(software))
        software = ""
    summary = (*checked.summary, *filter(None, (told, software)))
    return replace(checked, findings=tuple(findings), summary=summary)


def _sums_problem(rows: _Rows, least: int) -> str:
    """Say why sums over a site's rows would tell of single rows, if the plan asks for sums."""
    from predbayes_study.site.sums import require_many

    if not rows.plan.sums_alone or rows.trained is None:
        return ""
    try:
        require_many(rows.plan, *rows.trained, least, rows.people)
    except DataError as refused:
        return str(refused)
    return ""


def _tell(checked: SiteCheck, data: Path, *, show_values: bool) -> None:
    for line in checked.summary:
        say(line)
    show_findings(checked.findings, show_values=show_values)
    num_errors = len(checked.errors)
    warnings = counted(len(checked.warnings), "warning")
    if num_errors:
        raise DataError(f"{data.name} does not fit yet: {counted(num_errors, 'error')}, {warnings}")
    say(f"{data.name} fits the plan: no errors, {warnings}")


def _site(site_file: Path, again: str) -> SiteFile:
    """Read site.toml, or return None: then the table must have the plan's names and units."""
    from predbayes_study.tables.sitefile import SiteFile

    if site_file.exists():
        return SiteFile.load(site_file)
    say(f"there is no {site_file}, so your table must have the plan's names and units")
    say(f"to have one drafted: {again} --suggest --name NAME")
    return SiteFile(format=1, name="site")


def _asked(kit: Kit) -> Iterator[str]:
    """Return what the plan asks of the site, in a few lines."""
    from predbayes.learning.named import AUTO
    from predbayes_study.plan.models import sampler_settings
    from predbayes_study.plan.sizes import upload_bytes
    from predbayes_study.tasks.choice import MOST_ROWS

    plan = kit.plan
    rows = f"{plan.reference.num_rows:,} reference rows"
    gate = "" if plan.gate is None else " and where your rows lie (the gate)"
    counts = "your number of rows" if plan.promise is None else "your number of rows with noise"
    if plan.classification and plan.promise is None:
        counts += " by class"
    what = {
        "predictions": f"predictions{gate} on {rows}, {counts}",
        "moments": f"sums over your rows of products of {plan.num_summed:,} features",
        "masked": f"predictions on {rows} under masks, opened only in a sum of many sites",
    }[plan.sent]
    epochs = f"{sampler_settings(plan).num_epochs} times over your rows"
    learner = plan.learner.name
    if learner == "network":
        learner = f"the plan's network, {epochs}, or more often if they are few"
    elif learner == "any":
        learner = f"a model of your choice: auto, {', '.join(plan.learner_names)}"
    elif learner == AUTO:
        learner = (
            f"what serves your rows best of {', '.join(plan.tried)}: each is tried five times on "
            f"at most {MOST_ROWS:,} of them"
        )
    size = bytes_readable(upload_bytes(plan), places=0)
    release = "after somebody here approves it" if plan.upload.release == "manual" else "at once"
    asked = {
        "leaves": f"{what}, about {size}, in one signed file, {release}",
        "stays": "your table; every row of it",
        "trained": learner,
        "network": _network(plan),
        "promised": "" if plan.promise is None else plan.promise.text,
        "held out": f"{plan.learner.holdout:.0%} of your rows, never trained on",
    }
    yield f"the study {plan.name!r} asks of this site:"
    for key, value in asked.items():
        if value:
            yield f"  {key:<{_WIDTH}}{value}"


def _network(plan: Plan) -> str:
    """Name a network of the consortium's own, because it is code that is to run here."""
    if plan.frozen is None or plan.frozen.network is None:
        return ""
    agreed = plan.frozen.network
    return (
        f"{plan.model.module}: code of {agreed.distribution} {agreed.version}, files "
        f"{agreed.digest[:16]}, {agreed.parameters:,} parameters"
    )


def site_option(site_file: Path) -> str:
    """Return the option that a further command needs to find site.toml."""
    return "" if site_file == DEFAULT_SITE else f" --site {quoted(site_file)}"
