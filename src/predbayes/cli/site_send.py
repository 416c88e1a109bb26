"""`predbayes site send`: a signed file, to a storage from which the coordinator takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predbayes.cli.show import SiteOption, say
from predbayes.cli.site_check import DEFAULT_SITE, site_log
from predbayes.cli.site_train import read_site


def send_command(
    file: Annotated[Path, typer.Argument(help="What `train` said to hand over.")],
    address: Annotated[
        str,
        typer.Argument(
            help="A folder such as s3://bucket/folder; or the pre-signed https address that the "
            "coordinator gave you."
        ),
    ],
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Send a signed file to a storage."""
    from predbayes.exchange.storage import shown
    from predbayes.study.site.release import Approvals
    from predbayes.study.site.sending import send

    with site_log(site).during("send", file=file.name, to=shown(address)) as what:
        what["digest"] = digest = send(file, address, Approvals.of(read_site(site)))
    say(f"{file.name} is sent to {shown(address)}")
    say(f"for the coordinator, if he asks: SHA-256 {digest}")
