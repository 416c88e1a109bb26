"""`predbayes site key`, `approve` and `train`: from a key to the one upload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

import predbayes_study
from predbayes.errors import StudyError
from predbayes_study.cli.show import (
    DEFAULT_SITE,
    DataArgument,
    KitArgument,
    PassphraseOption,
    SiteOption,
    new_passphrase,
    say,
    say_held_back,
    stoppable,
)
from predbayes_study.cli.site_check import site_log

if TYPE_CHECKING:
    from predbayes_study.site.policy import Asked
    from predbayes_study.tables.sitefile import SiteFile
    from predbayes_study.trust.signing import SigningKey

LearnerOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The learner, if the plan lets you choose; see `check`."),
]
DeviceOption = Annotated[
    str, typer.Option(metavar="D", help="Where a network trains, such as cuda.")
]


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


WhatArgument = Annotated[
    Path,
    typer.Argument(metavar="KIT|FILE", help="A kit, for its plan; or a file to send."),
]
ByOption = Annotated[str, typer.Option(metavar="NAME", help="Who says so: name and office.")]
OfficerOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Sign it with the officer's own key.")
]


def approve_command(
    what: WhatArgument,
    by: ByOption,
    key: OfficerOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Record that somebody approved a plan, or one file that would leave."""
    new, thing = _record("approve", what, by, key, site)
    say(f"{'approved' if new else 'was approved before'}: {thing.kind} {thing.digest}")
    _say_words(thing.digest)
    if thing.made_by:
        say(f"next: the same predbayes site {thing.made_by} again; it signs what was approved")


def revoke_command(
    what: WhatArgument,
    by: ByOption,
    key: OfficerOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Take an approval back: nothing more is trained or released."""
    new, thing = _record("revoke", what, by, key, site)
    say(f"{'revoked' if new else 'was revoked before'}: {thing.kind} {thing.digest}")
    _say_words(thing.digest)
    say("what has left already stays with the coordinator: ask for its withdrawal")


class _Thing(NamedTuple):
    """What is approved or revoked."""

    kind: str
    digest: str
    about: dict[str, str]
    made_by: str  # the command that signs it; empty if nothing waits for that
    asked: Asked  # of the site's policy


def _thing(path: Path) -> _Thing:
    """Read what is to be approved: a kit, an upload or an attachment."""
    from predbayes.exchange.upload import Upload
    from predbayes_study.coordinator.attachments import kind_named, kind_of
    from predbayes_study.payloads.details import read_header
    from predbayes_study.site.policy import Asked

    if path.is_dir():
        kit = predbayes_study.Kit.load(path)
        plan, digest = kit.plan, kit.digest
        about = {"plan": digest, "leaves": plan.sent, "network": plan.model.module}
        return _Thing("plan", digest, about, "", Asked.of(plan))
    if attached := kind_of(path):
        sent = kind_named(attached).read(path)
        about = {"plan": sent.plan, "leaves": attached}
        made_by = "" if sent.is_signed else attached  # the command has the kind's name
        return _Thing(attached, sent.digest, about, made_by, Asked(leaving=(attached,)))
    header = read_header(path)
    kind = header.info.kind
    made_by = "evaluate" if kind == "evaluation" else "train"
    return _Thing(
        "upload",
        Upload.load(path, header).digest(),
        {"plan": header.info.plan, "leaves": kind},
        made_by if header.signature is None else "",
        Asked.of_file(kind),
    )


def _record(
    act: Literal["approve", "revoke"], what: Path, by: str, key: Path | None, site: Path
) -> tuple[bool, _Thing]:
    """Write down a yes or a no; whether it is new, and what it is of."""
    from predbayes_study.site.policy import SitePolicy
    from predbayes_study.site.release import Approvals
    from predbayes_study.trust.signing import SigningKey

    with site_log(site).during(act, by=by) as noted:
        thing = _thing(what)
        noted[thing.kind] = thing.digest
        signer = None if key is None else SigningKey.load(key)
        noted["key"] = None if signer is None else signer.public.fingerprint
        approvals = (
            Approvals.of(read_site(site))
            if site.exists()
            else Approvals(site.parent, policy=SitePolicy.of())
        )
        if act == "approve":
            approvals.policy.require(thing.asked)
        new = approvals.record(thing.kind, thing.digest, by, act=act, key=signer, about=thing.about)
    return new, thing


def _say_words(digest: str) -> None:
    from predbayes_study.trust.signing import fingerprint

    say(f"in words: {fingerprint(digest)}")


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


def delete_command(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `train` wrote.")],
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Delete what `train` left; sign a receipt of it."""
    from predbayes_study.site.deletion import delete_outputs
    from predbayes_study.store.files import RUN_LOCK, locked

    with site_log(site).during("delete", folder=out.name) as what:
        own = read_site(site)
        key = read_key(own)
        if not out.is_dir():
            raise StudyError(f"there is no folder {out}")
        with locked(out, RUN_LOCK):
            path, receipt = delete_outputs(out, own.name, key)
        what |= {"site": own.name, "files": len(receipt.removed), "key": key.public.fingerprint}
    for name in receipt.removed:
        say(f"deleted: {out / name}")
    say(f"receipt: {path}", "not deleted, and for you to see to:")
    for line in receipt.remains:
        say(f"  - {line}")


def read_site(path: Path) -> SiteFile:
    """Read site.toml; if there is none, say how to get one."""
    from predbayes_study.site.site import Site

    return Site(path).file


def read_key(own: SiteFile) -> SigningKey:
    """Read the site's private key; if there is none, say how to make one."""
    from predbayes_study.site.site import Site

    site = Site()
    site.file = own
    return site.key
