"""`predbayes site key`, `approve` and `train`: from a key to the one file that leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from predbayes.study.site import Trained

SiteOption = Annotated[Path, typer.Option("--site", metavar="FILE", help="The site's own file.")]
DEFAULT_SITE = Path("site.toml")


def key_command(
    name: Annotated[str, typer.Argument(help="The site's name, as in the study.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the two files go.")] = Path(),
) -> None:
    """Make the site's key: NAME.key stays here, NAME.pub goes to the coordinator."""
    from predbayes.exchange.signing import SigningKey
    from predbayes.exchange.upload import require_site_name

    require_site_name(name)
    key = SigningKey.generate()
    key.save(out / f"{name}.key")
    key.public.save(out / f"{name}.pub")
    typer.echo(f"{out / f'{name}.key'}: keep it here; whoever has it can sign for {name}")
    typer.echo(f"{out / f'{name}.pub'}: for the coordinator")
    typer.echo(f"read out when you telephone: {key.public.fingerprint}")


def approve_command(
    what: Annotated[Path, typer.Argument(metavar="KIT|UPLOAD", help="What is approved.")],
    by: Annotated[str, typer.Option(help="Who says yes.")],
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Record the yes of the data-protection officer for a plan, or for one upload."""
    from predbayes.exchange.signing import fingerprint
    from predbayes.exchange.upload import Upload
    from predbayes.study.approvals import Approvals
    from predbayes.study.kit import Kit

    approvals = Approvals(site.parent)
    if what.is_dir():
        digest = Kit.load(what).digest
        new = approvals.record("plan", digest, by)
    else:
        digest = Upload.load(what).digest()
        new = approvals.record("upload", digest, by)
    kind = "plan" if what.is_dir() else "upload"
    typer.echo(f"{'approved' if new else 'was approved before'}: {kind} {digest}")
    typer.echo(f"in words: {fingerprint(digest)}")
    if kind == "upload":
        typer.echo("next: predbayes site train, again; it signs and writes what was approved")


def train_command(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The coordinator's folder.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The site's rows.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the upload goes.")],
    learner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where the plan leaves it to the site.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="D", help="For a network, such as cuda.")] = "cpu",
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Train once and write the upload; if it was stopped, go on."""
    import torch

    from predbayes.exchange.signing import SigningKey
    from predbayes.study.approvals import Approvals
    from predbayes.study.kit import Kit
    from predbayes.study.site import SiteRows, Training
    from predbayes.study.sitefile import SiteFile, read_site_table

    loaded = Kit.load(kit)
    plan, own = loaded.plan, SiteFile.load(site)
    torch.set_num_threads(plan.learner.threads)
    rows = SiteRows.of(plan, read_site_table(plan, own, data))
    training = Training(
        loaded,
        own.name,
        SigningKey.load(own.key_path),
        Approvals(own.folder),
        out,
        learner or "network",
        device,
    )
    typer.echo(f"{own.name}: {len(rows.targets):,} rows, learner {training.learner}")
    with _progress() as tell:
        trained = training.run(rows, tell)
    _say(trained)


def _say(trained: Trained) -> None:
    if trained.again:
        typer.echo("this was trained before; nothing was trained again")
    typer.echo(f"read and sign: {trained.egress}")
    if trained.released:
        typer.echo(f"hand over: {trained.path}")
    else:
        typer.echo(f"held back until it is approved: predbayes site approve '{trained.path}'")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar with an estimate of the time left, on a terminal; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("training"), BarColumn(), TimeRemainingColumn()
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("training", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
