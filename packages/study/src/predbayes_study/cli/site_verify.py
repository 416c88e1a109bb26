"""`predbayes site verify`: is this the coordinator's, and as it was signed?"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predbayes.errors import StudyError
from predbayes_study.cli.show import DEFAULT_SITE, SiteOption, say
from predbayes_study.cli.site_check import site_log
from predbayes_study.wording import counted

if TYPE_CHECKING:
    from predbayes_study.store.audit import Fact
    from predbayes_study.tables.sitefile import SiteFile
    from predbayes_study.trust.signing import PublicKey
    from predbayes_study.trust.statement import StudyStatement


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
    from predbayes_study.site.witness import verify_files
    from predbayes_study.trust.coordinator import CoordinatorPublicKey
    from predbayes_study.trust.signing import fingerprint

    # Whoever is no site has no log, and is to have no new file.
    log: AbstractContextManager[dict[str, Fact]] = nullcontext({})
    if site.exists():
        log = site_log(site).during("verify", files=len(paths))
    with log as what:
        public = None if key is None else CoordinatorPublicKey.load(key)
        found = verify_files(paths, public, words.strip().lower())
        what["problems"] = len(found.problems)
        for problem in found.problems:
            say(problem, err=True)
        if found.problems:
            raise StudyError(
                f"not as the coordinator signed it ({counted(len(found.problems), 'problem')})"
            )
        for statement in found.statements:
            say(_line(statement))
        what["plan"] = found.statements[0].plan
        assert found.key is not None  # there was no problem
        if site.exists():
            _note(found.statements, site, found.key.signing)
    if not words and key is None:
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


def _note(statements: tuple[StudyStatement, ...], site: Path, key: PublicKey) -> None:
    """Remember the heads, and make sure that receipts are this site's."""
    from predbayes_study.cli.site_train import read_site
    from predbayes_study.site.witness import Heads
    from predbayes_study.trust.statement import Deletion, Receipt

    own = read_site(site)
    for statement in statements:
        if isinstance(statement, Receipt | Deletion) and statement.site != own.name:
            raise StudyError(f"the receipt is for {statement.site}, and this site is {own.name}")
        if isinstance(statement, Receipt):
            _require_own_key(statement.key, own)
        Heads(own.folder).note(statement, key)


def _require_own_key(admitted: str, own: SiteFile) -> None:
    """Refuse a receipt for somebody else who was admitted in this site's name."""
    from predbayes_study.cli.site_train import read_key
    from predbayes_study.trust.signing import PublicKey

    public = own.key_path.with_suffix(".pub")  # which needs no passphrase
    if not public.exists() and not own.key_path.exists():
        say(f"there is no {public}: compare the receipt's key with the words of your own")
        return
    key = PublicKey.load(public) if public.exists() else read_key(own).public
    if key.hex != admitted:
        raise StudyError(
            f"the receipt names the key {PublicKey(admitted).fingerprint}, and this site's is "
            f"{key.fingerprint}: another was admitted as {own.name}; call the coordinator"
        )
