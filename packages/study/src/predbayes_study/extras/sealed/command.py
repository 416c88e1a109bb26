"""`predbayes holder`: the steps of a key holder, without whom no sealed sum is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import predbayes_study
from predbayes_study.cli.show import (
    DEFAULT_STUDY,
    KitArgument,
    PassphraseOption,
    StudyOption,
    save_key_pair,
    say,
)
from predbayes_study.wording import counted

app = typer.Typer(
    help="Hold a key of sealed sums: open those of many sites only.",
    no_args_is_help=True,
    suggest_commands=False,
)

Folder = Annotated[
    Path,
    typer.Option("--holder", metavar="DIR", help="Where the holder's own ledger is."),
]
_DEFAULT = Path("holder")
KeyOption = Annotated[Path, typer.Option(metavar="FILE", help="Your private key.")]


@app.command("keys")
def keys(
    out: Annotated[
        Path, typer.Option(metavar="NAME", help="Where the two files go: NAME.key, NAME.pub.")
    ] = Path("holder"),
    passphrase: PassphraseOption = False,
) -> None:
    """Make your keys, which stay here, and their public half."""
    from predbayes_study.trust.coordinator import CoordinatorKey

    key = CoordinatorKey.generate()
    private, _ = save_key_pair(key, out, passphrase=passphrase)
    say(f"{private}: keep it here, and never where the coordinator is")
    say("for the coordinator, who writes it into holders of [sealed] of the plan:")
    say(f'  "{key.public.signing.hex}{key.public.encryption}"')
    say(f"read out to the sites: {key.public.fingerprint}")


@app.command("admit")
def admit(
    name: Annotated[str, typer.Argument(help="The site's name in the study.")],
    key: Annotated[Path, typer.Argument(help="Its public key NAME.pub, from the site itself.")],
    same_site: Annotated[
        bool, typer.Option("--same-site", help="It has a new key, and is the same site.")
    ] = False,
    holder: Folder = _DEFAULT,
) -> None:
    """Record a site's key; no sum of another is opened."""
    from predbayes_study.extras.sealed.holder import Holder
    from predbayes_study.trust.signing import PublicKey

    public = PublicKey.load(key)
    known = Holder(holder)
    others = sorted(known.keys().keys() - {name})
    new = known.admit(name, public, same_site=same_site)
    say(f"{name} {'is admitted' if new else 'was admitted with this key before'}")
    if new and others:
        say(f"make sure that it is none of those admitted before: {', '.join(others)}")
    say(f"compare by telephone, with the site: {public.fingerprint}")


RequestArgument = Annotated[Path, typer.Argument(help="What `study request` wrote for you.")]


@app.command("check")
def check_sum(
    kit: KitArgument,
    request: RequestArgument,
    key: KeyOption = Path("holder.key"),
    holder: Folder = _DEFAULT,
) -> None:
    """Check that you can open a sum, before any holder does."""
    from predbayes_study.extras.sealed.holder import Holder
    from predbayes_study.extras.sealed.masking import read_request
    from predbayes_study.trust.coordinator import CoordinatorKey

    loaded, asked = predbayes_study.Kit.load(kit), read_request(request)
    _ = loaded.signed  # or it is refused
    Holder(holder).check(loaded.plan, asked, CoordinatorKey.load(key))
    say(f"all seals can be opened: {', '.join(sorted(asked.sites))}")
    say("nothing was opened or noted; open it once every key holder of the plan has checked")


@app.command("open")
def open_sum(
    kit: KitArgument,
    request: RequestArgument,
    key: KeyOption = Path("holder.key"),
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: REQUEST with .opening.")
    ] = None,
    holder: Folder = _DEFAULT,
) -> None:
    """Sum up the masks of many admitted sites, for the coordinator."""
    from predbayes.files import write_bytes
    from predbayes_study.extras.sealed.holder import Holder
    from predbayes_study.extras.sealed.masking import read_request
    from predbayes_study.extras.sealed.section import Sealed
    from predbayes_study.trust.coordinator import CoordinatorKey

    loaded, asked = predbayes_study.Kit.load(kit), read_request(request)
    _ = loaded.signed  # or it is refused
    before = Holder(holder).opened(asked.sites)
    content = Holder(holder).open(loaded.plan, asked, CoordinatorKey.load(key))
    path = request.with_suffix(Sealed.opening) if out is None else out
    write_bytes(path, content)
    say(f"{path}: the summed masks of {counted(len(asked.sites), 'site')}, for the coordinator")
    say(f"opened: {', '.join(sorted(asked.sites))}")
    plans = list(dict.fromkeys((*(told.plan for told in before), asked.plan)))
    say(
        f"this is plan number {plans.index(asked.plan) + 1} of these sites; opened of them before: "
        f"{counted(len(before), 'sum')}, under {counted(len({b.plan for b in before}), 'plan')}"
    )


def request_command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the requests.")] = Path(),
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Ask the key holders for a sum."""
    from predbayes.files import write_bytes
    from predbayes_study.extras.sealed.masking import REQUEST
    from predbayes_study.extras.sealed.request import request_sums
    from predbayes_study.extras.sealed.section import Sealed

    opened = predbayes_study.Study(study)
    asked, sealing = request_sums(opened), opened.plan.section(Sealed)
    assert sealing is not None  # or it would have been refused
    out.mkdir(parents=True, exist_ok=True)
    for number, (one, key) in enumerate(zip(asked, sealing.public_keys, strict=True), 1):
        path = out / f"holder-{number}{REQUEST}"
        write_bytes(path, one.model_dump_json().encode())
        say(f"{path}: {counted(len(one.sites), 'site')}, for the key holder {key.fingerprint}")
    say("once it is opened, sites that come or go later must be at least the plan's minimum")
    if len(asked) > 1:
        say("first: each holder runs predbayes holder check; let none open before all have checked")
    say("next: each holder runs predbayes holder open; then study finish --opening FILE")
