"""`predbayes site audit`: attack what would leave, here, before it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import predbayes_study
from predbayes.errors import PlanError
from predbayes.system import quoted
from predbayes_study.cli.show import DEFAULT_SITE, DataArgument, KitArgument, SiteOption, say
from predbayes_study.cli.site import DeviceOption, LearnerOption

if TYPE_CHECKING:
    from predbayes_study.extras.audit.leakage import AttackResult


def audit_command(
    kit: KitArgument,
    data: DataArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder that `train` writes, or will write.")
    ],
    learner: LearnerOption = None,
    device: DeviceOption = "cpu",
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Measure how well what would leave tells who was trained on."""
    from predbayes.files import PRIVATE, own_folder, write_bytes
    from predbayes.progress import at, listening
    from predbayes_study.extras.audit.attack import audit
    from predbayes_study.extras.audit.leakage import FILE
    from predbayes_study.payload import payload_of
    from predbayes_study.site.policy import Asked
    from predbayes_study.site.rows import SiteRows
    from predbayes_study.site.site import Site
    from predbayes_study.site.training import HOME
    from predbayes_study.store.files import RUN_LOCK, locked
    from predbayes_study.tables.mapping import read_site_table

    here = Site(site)
    with here.log.during("audit", long=True, table=data.name) as what:
        loaded, own = predbayes_study.Kit.load(kit), here.file
        plan, _ = loaded.plan, loaded.signed  # or it is refused
        what |= {"site": own.name, "plan": loaded.digest}
        approvals = here.approvals
        name = plan.learner_or(learner)
        approvals.require_plan(loaded, here.option, name)
        secret = payload_of(plan).secret(own)
        with listening([], bar=None):
            rows = SiteRows.of(plan, read_site_table(plan, own, data), secret=secret)
        own_folder(out / HOME, 0o700)
        with locked(out, RUN_LOCK), at(own.name), listening([], bar=None):
            found = audit(
                loaded,
                own.name,
                rows,
                name,
                policy=approvals.policy,
                device=device,
                allow_networks=own.allow_networks,
            )
            write_bytes(
                out / HOME / FILE, (found.model_dump_json(indent=1) + "\n").encode(), PRIVATE
            )
    _tell(found)
    say("nothing has left this computer; line numbers are for you alone")
    try:
        approvals.policy.require(Asked(is_audited=True, outcome=found))
    except PlanError as refused:
        say(f"`site train` will refuse: {refused}")
    say(
        f"next: predbayes site train {quoted(kit)} {quoted(data)} --out {quoted(out)}"
        f"{here.option}; its egress page has these figures"
    )


def _tell(found: AttackResult) -> None:
    short = f", with {found.shortened}" if found.shortened else ""
    say(f"{found.learner}{short}: {found.runs} fits to halves of {found.people:,} people")
    say("AUC of guessing who was trained on, with its 95 % interval; 0.5 is guessing:")
    say(f"  by what leaves        {found.reference.in_words()}: {found.reference.word}")
    say(f"  by the model itself   {found.target.in_words()}: {found.target.word}")
    best = found.reference
    say(
        f"epsilon is at least {best.epsilon:.2f} (95 % confidence): of the {best.guesses:,} surest "
        f"guesses {best.right:,} were right"
    )
    if found.lines:
        from predbayes_study.tables.problem import listed

        say(f"most exposed: {listed(found.lines)} of the table")
    if not found.sound:
        say("warning: shuffled membership is not near 0.5: do not trust these figures")
