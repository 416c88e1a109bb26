"""`predbayes site`: a site's commands; those that use a model are in `cli.model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import predbayes_study
from predbayes.errors import DataError
from predbayes.system import quoted
from predbayes_study.cli import model
from predbayes_study.cli.group import Group
from predbayes_study.cli.show import (
    DEFAULT_SITE,
    DataArgument,
    KitArgument,
    PassphraseOption,
    SiteOption,
    new_passphrase,
    read_out,
    say,
    say_held_back,
    show_findings,
    stoppable,
)
from predbayes_study.wording import counted

if TYPE_CHECKING:
    from predbayes_study.plan.schema import Plan
    from predbayes_study.site.site import Site
    from predbayes_study.trust.statement import StudyStatement

app = typer.Typer(
    cls=Group,
    help="Take part: check, approve, train, verify, adopt.",
    no_args_is_help=True,
    suggest_commands=False,
)

NameOption = Annotated[
    str | None, typer.Option(help="With --suggest: the site's name in the study.")
]
SuggestOption = Annotated[
    bool, typer.Option("--suggest", help="Draft site.toml from the site's table.")
]
LearnerOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The learner, if the plan lets you choose; see `check`."),
]
DeviceOption = Annotated[
    str, typer.Option(metavar="D", help="Where a network trains, such as cuda.")
]
WhatArgument = Annotated[
    Path,
    typer.Argument(metavar="KIT|FILE", help="A kit, for its plan; or a file to send."),
]
ByOption = Annotated[str, typer.Option(metavar="NAME", help="Who says so: name and office.")]
OfficerOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Sign it with the officer's own key.")
]


@app.command("key")
def key_command(
    name: Annotated[str, typer.Argument(help="The site's name in the study.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the two files.")] = Path(),
    passphrase: PassphraseOption = False,
) -> None:
    """Make NAME.key, which stays here, and NAME.pub to send."""
    from predbayes.exchange.strict import require_site_name
    from predbayes_study.store.audit import AuditLog
    from predbayes_study.trust.signing import SigningKey

    require_site_name(name)
    key = SigningKey.generate()
    key.save(out / f"{name}.key", new_passphrase() if passphrase else None)
    key.public.save(out / f"{name}.pub", name)
    AuditLog.at(out).note("key", site=name, key=key.public.fingerprint)
    say(f"{out / f'{name}.key'}: keep it here; whoever has it can sign for {name}")
    say(f"{out / f'{name}.pub'}: for the coordinator")
    say(f"read out when you telephone: {key.public.fingerprint}")


@app.command("check")
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
    from predbayes_study.plan.schema import PLAN_FILE, Plan
    from predbayes_study.site.site import Site, asked

    site = Site(site_file)
    # A slip in plan or site.toml is refused at once: to read the kit imports arrays.
    if (kit / PLAN_FILE).exists():
        Plan.load(kit / PLAN_FILE)
    if site_file.exists() and not suggest:
        _ = site.file
    loaded = predbayes_study.Kit.load(kit)
    say(*asked(loaded.plan))
    arguments = f"{quoted(kit)} {quoted(data)}"
    again = f"predbayes site check {arguments}{site.option}"
    try:
        if suggest:
            show_draft(site, loaded.plan, data, name, again)
            return
        if not site_file.exists():
            say(f"there is no {site_file}, so your table must have the plan's names and units")
            say(f"to have one drafted: {again} --suggest --name NAME")
        checked = site.check(loaded, data, show_values=show_values)
        say(*checked.summary)
        show_findings(checked.findings, show_values=show_values)
        warnings = counted(len(checked.warnings), "warning")
        if checked.errors:
            errors = counted(len(checked.errors), "error")
            raise DataError(f"{data.name} does not fit yet: {errors}, {warnings}")
        say(f"{data.name} fits the plan: no errors, {warnings}")
        if site_file.exists():
            train = f"train {arguments} --out out"
            may_train = site.approvals.may_train(loaded)
            command = train if may_train else f"approve {quoted(kit)} --by NAME"
            say(f"next: predbayes site {command}{site.option}")
        else:
            say(f"train needs {site_file} and a key as well, with your name in the study:")
            say(f"next: {again} --suggest --name NAME; predbayes site key NAME")
    finally:
        read_out(loaded)


def show_draft(site: Site, plan: Plan, data: Path, name: str | None, again: str) -> None:
    """Draft or complete site.toml, and say what to look at."""
    what = "wrote {}: a draft"
    if site.path.exists():
        what = "completed {}: what was there is as it was"
    drafted = site.draft(plan, data, name)
    look = "look at" if drafted.notes else "nothing in it is a guess"
    say(f"{what.format(site.path)}; {look}")
    for note, line in zip(drafted.notes, drafted.lines, strict=True):
        say(f"  - line {line}: {note}" if line else f"  - {note}")
    say(f"next: {'edit it, then ' if drafted.notes else ''}{again}")


@app.command("approve")
def approve_command(
    what: WhatArgument,
    by: ByOption,
    key: OfficerOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Record that somebody approved a plan, or one file that would leave."""
    from predbayes_study.site.site import Site
    from predbayes_study.trust.signing import fingerprint

    new, thing = Site(site).approve(what, by, key)
    say(f"{'approved' if new else 'was approved before'}: {thing.kind} {thing.digest}")
    say(*(f"this allows it {allowed}" for allowed in thing.allows))
    say(f"in words: {fingerprint(thing.digest)}")
    if thing.made_by:
        say(f"next: the same predbayes site {thing.made_by} again; it signs what was approved")


@app.command("revoke")
def revoke_command(
    what: WhatArgument,
    by: ByOption,
    key: OfficerOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Take an approval back: nothing more is trained or released."""
    from predbayes_study.site.site import Site
    from predbayes_study.trust.signing import fingerprint

    new, thing = Site(site).approve(what, by, key, revoke=True)
    say(f"{'revoked' if new else 'was revoked before'}: {thing.kind} {thing.digest}")
    say(f"in words: {fingerprint(thing.digest)}")
    say(*(f"taken back, no longer signed: {path}" for path in thing.taken_back))
    say("what has left already stays with the coordinator: ask for its withdrawal")
    say("copies of signed files that you made elsewhere stay: delete them")


@app.command("train")
def train_command(
    kit: KitArgument,
    data: DataArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the upload and the egress page.")
    ],
    learner: LearnerOption = None,
    device: DeviceOption = "cpu",
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Train once and write the upload; continue if it was stopped."""
    from predbayes_study.site.site import Site

    own = Site(site)
    with stoppable():
        trained = own.train(kit, data, out, learner, device, say)
    if trained.choice is not None:
        say(f"learner: {trained.choice.sentence()}")
    if trained.again:
        say("this was trained before; nothing was trained again")
    say(f"read and sign the egress page: {trained.egress}")
    if trained.released:
        say(f"hand over: {trained.path}")
    else:
        say_held_back(trained.path, own.option)


@app.command("delete")
def delete_command(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `train` wrote.")],
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Delete what `train` left; sign a receipt of it."""
    from predbayes_study.site.site import Site

    path, receipt = Site(site).delete(out)
    say(*(f"deleted: {out / name}" for name in receipt.removed))
    say(f"receipt: {path}", "not deleted, and for you to see to:")
    say(*(f"  - {line}" for line in receipt.remains))


@app.command("verify")
def verify_command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Kit, receipt, result, model; your own upload."),
    ],
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The coordinator's .pub, from himself.")
    ] = None,
    words: Annotated[
        str, typer.Option("--fingerprint", metavar="WORDS", help="The plan's, as read out to you.")
    ] = "",
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Check what the coordinator signed, offline."""
    from predbayes_study.site.site import Site, VerificationError
    from predbayes_study.trust.signing import fingerprint
    from predbayes_study.trust.statement import Receipt

    own = Site(site)
    try:
        found = own.verify(paths, key, words)
    except VerificationError as refused:
        for problem in refused.problems:
            say(problem, err=True)
        raise
    for statement in found.statements:
        say(_line(statement))
        if isinstance(statement, Receipt) and statement.upload is not None:
            entry = min(statement.heads)
            say(
                f"it says that entry {entry} took the upload in; whether the ledger has it, the "
                f"ledger tells: predbayes study verify --contains {statement.heads[entry]}"
            )
    for path in found.unproven:
        say(
            f"{path} names evaluations or deletions, of which it has no entry; whether the ledger "
            f"has them, the ledger tells: predbayes study verify --contains {quoted(path)}"
        )
    if not words and key is None and found.key is not None:
        say(f"coordinator's key: {found.key.fingerprint}")
        say(f"compare by telephone: {fingerprint(found.statements[0].plan)}")


def _line(statement: StudyStatement) -> str:
    from predbayes_study.trust.signing import PublicKey
    from predbayes_study.trust.statement import Deletion, Receipt

    what: str = statement.kind
    if isinstance(statement, Deletion):
        count = counted(len(statement.removed), "file")
        what = f"deletion for {statement.site} of {statement.at[:10]}, {count}"
    if isinstance(statement, Receipt):
        took = "no upload" if statement.upload is None else f"upload {statement.upload[:12]}"
        words = PublicKey(statement.key).fingerprint
        what = f"receipt for {statement.site} of {statement.at[:10]}, {took}, key {words}"
    return f"{what}: signed; the ledger's entry {statement.number} is {statement.head}"


app.command("evaluate")(model.evaluate_command)
app.command("adopt")(model.adopt_command)
