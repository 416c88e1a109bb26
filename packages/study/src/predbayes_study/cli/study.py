"""`predbayes study`: the coordinator's steps, from a frozen plan to a result."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import predbayes_study
from predbayes.errors import PredbayesError, StudyError
from predbayes.system import quoted
from predbayes_study.cli.group import Group
from predbayes_study.cli.show import (
    DEFAULT_STUDY,
    PassphraseOption,
    StudyOption,
    read_out,
    save_key_pair,
    say,
    say_taken_in,
    show_table,
    watched,
)
from predbayes_study.wording import counted

if TYPE_CHECKING:
    from predbayes_study.coordinator.status import Status
    from predbayes_study.store.audit import Outcome

app = typer.Typer(
    cls=Group,
    help="Run a study: admit sites, add their uploads, finish, verify.",
    no_args_is_help=True,
    suggest_commands=False,
)


@app.command("key")
def make_key(
    out: Annotated[
        Path, typer.Option(metavar="NAME", help="Where the two files go: NAME.key, NAME.pub.")
    ] = Path("coordinator"),
    passphrase: PassphraseOption = False,
) -> None:
    """Make your key, which stays here, and its public half for plans."""
    from predbayes_study.trust.coordinator import CoordinatorKey

    key = CoordinatorKey.generate()
    private, public = save_key_pair(key, out, passphrase=passphrase)
    say(f"{private}: keep it here; whoever has it can sign as the coordinator")
    say(f"{public}: for predbayes plan freeze --key")
    say(f"read out with the plan's fingerprint: {key.public.fingerprint}")


@app.command("init")
def init(
    kit: Annotated[Path, typer.Argument(help="The kit that `plan freeze` wrote.")],
    labels: Annotated[Path, typer.Option(help="The labels that `plan freeze` wrote.")],
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your coordinator.key; the study notes its path."),
    ] = None,
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Begin a study of a frozen plan."""
    begun = predbayes_study.Study.init(study, kit, labels, key)
    say(f"{study}: a study of plan {begun.kit.plan.name!r}")
    if begun.kit.signed is not None:
        say(f"{study / 'kit'}: the signed kit, for the sites")
    say("next: predbayes study admit NAME KEY.pub, for each site")
    read_out(begun.kit)


@app.command("admit")
def admit(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    key: Annotated[Path, typer.Argument(help="Its public key, NAME.pub.")],
    rows: Annotated[
        int | None,
        typer.Option(help="Rows that it trains on, as agreed; others in its upload are refused."),
    ] = None,
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Record a site's key and agreed rows; again replaces them."""
    from predbayes_study.trust.keyfiles import owner_of
    from predbayes_study.trust.signing import PublicKey

    public, owner = PublicKey.load(key), owner_of(key)
    new = predbayes_study.Study(study).admit(name, public, rows)
    agreed = "" if rows is None else f", {rows:,} rows agreed"
    known = "is admitted" if new else "was admitted with this key before"
    say(f"{name} {known}{agreed}")
    if owner not in ("", name):
        say(
            f"{key.name} says that it is the key of {owner}; if {name} is mistyped, admit the key "
            "under the right name, before anything of it is in"
        )
    say(f"compare by telephone: {public.fingerprint}")


@app.command("admit-all")
def admit_all(
    keys: Annotated[list[Path], typer.Argument(help="Public keys NAME.pub, or folders of them.")],
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Admit many sites, each under the name of its key's file."""
    from predbayes_study.coordinator.stored import read_keys

    refused: list[PredbayesError] = []
    found = read_keys(keys, refused)
    unread = len(refused)
    new = predbayes_study.Study(study).admit_all(found, refused)
    num_in = len(found) - (len(refused) - unread)
    say(f"{new:,} of {counted(num_in, 'site')} are new, the others were admitted before")
    say("compare by telephone: predbayes study status --all")
    for error in refused:
        say(f"refused: {error}", err=True)
    if refused:
        raise StudyError(f"{counted(len(refused), 'key')} refused; the others are admitted")


@app.command("add")
def add(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Files that sites sent; folders of them; or addresses that fsspec knows."
        ),
    ],
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Check files of sites and add them; refused ones change nothing."""
    from predbayes_study.coordinator.stored import take_in

    say_taken_in(take_in(predbayes_study.Study(study), files))


@app.command("receipt")
def receipt(
    name: Annotated[str, typer.Argument(help="The site that the receipt is for.")],
    study: StudyOption = DEFAULT_STUDY,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file. Default: NAME.receipt.")
    ] = None,
) -> None:
    """Write a signed receipt: a site's key and upload, the head."""
    from predbayes.files import write_bytes

    content = predbayes_study.Study(study).receipt(name)
    path = Path(f"{name}.receipt") if out is None else out
    write_bytes(path, content)
    say(f"{path}: for {name}, who checks it with predbayes site verify")


@app.command("delete")
def delete(
    name: Annotated[str | None, typer.Argument(help="The site whose files are deleted.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those of every site.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the receipts.")] = Path(),
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Delete uploads whose time is over; results stay."""
    from predbayes.files import write_bytes
    from predbayes_study.coordinator.study import REMAINS
    from predbayes_study.trust.statement import DELETION

    opened = predbayes_study.Study(study)
    if (name is None) != everything:
        raise StudyError("name the site whose files are deleted, or give --all")
    state = opened.state()
    for site in sorted(state.uploads) if name is None else [name]:
        receipt = opened.delete(site)
        count = counted(len(opened.state().removed(site)), "file")
        say(f"{site}: the bytes of {count} are deleted; digests and results stay")
        if receipt is not None:
            write_bytes(out / f"{site}{DELETION}", receipt)
            say(f"{out / f'{site}{DELETION}'}: for {site}")
    say("not deleted, and for you to see to:")
    for line in REMAINS:
        say(f"  - {line}")


@app.command("withdraw")
def withdraw(
    name: Annotated[str, typer.Argument(help="The site that withdraws.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    study: StudyOption = DEFAULT_STUDY,
) -> None:
    """Delete a site's upload; only its digest stays in the ledger."""
    opened = predbayes_study.Study(study)
    if not yes and (sent := opened.state().sent_by(name)):
        what = f"{counted(len(sent), 'file')} of {name}"
        _ask(f"delete {what} for good, and never take its key again?")
    digest = opened.withdraw(name)
    say(f"{name} has withdrawn; the bytes of its upload {digest[:12]} are deleted")
    say("earlier results contain it: tell everybody who has them, then run predbayes study finish")


def _ask(question: str) -> None:
    """Go on after a yes; where nobody answers, `--yes` is one."""
    try:
        if typer.confirm(question, err=True):
            return
    except typer.Abort:
        say("", err=True)
    raise StudyError("nothing was done; --yes does it without asking")


@app.command("status")
def status(
    study: StudyOption = DEFAULT_STUDY,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every site.")] = False,
) -> None:
    """Show the state of the study, and the next step."""
    from predbayes_study.coordinator.status import MOST_SITES, status_of

    found = status_of(predbayes_study.Study(study), None if as_json or everything else MOST_SITES)
    if as_json:
        say(*json.dumps(asdict(found), indent=1).split("\n"))
    else:
        _show(found)


@app.command("finish")
def finish(
    study: StudyOption = DEFAULT_STUDY,
    leave_out: Annotated[
        list[str] | None, typer.Option(help="A site to leave out; may be repeated.")
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx (needs the extra onnx).")
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="D", help="Where networks run: cpu, cuda, mps or auto.")
    ] = "cpu",
    opening: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Of a sealed plan: a key holder's file; one of each."),
    ] = None,
) -> None:
    """Pool, distil, score; write model, model card and report."""
    from predbayes_study.report.unlabelled import in_short

    opened = predbayes_study.Study(study)
    before = opened.told_apart(leave_out or ())
    say(*before)
    say("screening, pooling, distilling, scoring; it may take a minute or two")
    with watched():
        recorded, result = opened.finish(
            leave_out=leave_out or (),
            onnx=onnx,
            device=device,
            openings=opening or (),
        )
    folder = opened.result_folder(recorded.number)
    say(f"result {recorded.number} of {len(result.sites)} sites, outcome {recorded.outcome[:12]}")
    say(*(line for line in opened.told_apart(result.out) if line not in before))
    for caution in result.cautions:
        say(caution)
    for site in result.sites:
        for finding in site.findings:
            say(f"{site.site}{' (left out)' if site.left_out else ''}: {finding.text}")
    say(in_short(opened.plan, result))
    for name in ("report.html", "report-public.html", "model-card.html", "model"):
        say(str(folder / name))


@app.command("verify")
def verify(
    study: StudyOption = DEFAULT_STUDY,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Also make the last result again and compare.")
    ] = False,
    contains: Annotated[
        list[str] | None,
        typer.Option(metavar="HEAD|FILE", help="A noted head, or a receipt; may be repeated."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The coordinator's .pub, from himself.")
    ] = None,
) -> None:
    """Compare every byte with the ledger, and check every signature."""
    from predbayes_study.coordinator.verify import listed
    from predbayes_study.trust.coordinator import CoordinatorPublicKey

    opened = predbayes_study.Study(study)
    public = None if key is None else CoordinatorPublicKey.load(key)
    problems = opened.verify(rebuild=rebuild, contains=contains or (), key=public)
    exported = listed(study) is not None
    with suppress(PermissionError):  # somebody else's copy can be verified, too
        if not exported:
            outcome: Outcome = "refused" if problems else "done"
            opened.audit.note("verify", outcome, problems=len(problems))
    for problem in problems:
        say(problem, err=True)
    if problems:
        count = counted(len(problems), "problem")
        raise StudyError(f"{study} is not as its ledger says ({count})")
    state = opened.state()
    say(f"{study} is as its ledger says, up to {state.last}")
    if exported:
        say("it is an export: rows, labels and what sites sent are not in it, their digests are")
    if state.deleted:
        count = counted(len(state.deleted), "file")
        say(f"the bytes of {count} were deleted, as it says; their digests are there")
    coordinator = opened.plan.coordinator
    if coordinator is None:
        say("nothing of the coordinator's is signed: the plan names no key")
    else:
        say(f"all of it is signed with the coordinator's key {coordinator.fingerprint}")
    for head in contains or ():
        say(f"the ledger contains {head}")
    if rebuild:
        say("the last result was made again from the files, the same to the bit")


def _show(found: Status) -> None:
    from predbayes_study.coordinator.status import COLUMNS, MOST_SITES

    say(found.title)
    say(f"plan {found.fingerprint}")
    if found.deadline is not None:
        say(f"deadline {found.deadline}{', which has passed' if found.late else ''}")
    if found.sites:
        show_table(COLUMNS, [site.cells() for site in found.sites])
        if any(site.num_rows is not None and site.agreed_rows is None for site in found.sites):
            say("stated: by the site, not agreed with it (predbayes study admit --rows)")
    if len(found.sites) < found.num_sites:
        count = f"{found.num_awaited:,} of {found.num_sites:,} sites are awaited"
        say(f"{count}, the first {len(found.sites)} shown; --all shows every site")
    for doubt in found.doubts:
        say(doubt)
    for site in found.due[:MOST_SITES]:
        say(f"kept as long as the plan says: predbayes study delete {quoted(Path(site))}")
    if more := found.due[MOST_SITES:]:
        say(f"and {len(more):,} more sites")
    if found.run is not None:
        awaited = [f"{site} ({state})" for site, state in found.run.sites.items() if state != "in"]
        names = ", ".join(awaited[:MOST_SITES]) or "nobody"
        names += f" and {len(awaited) - MOST_SITES:,} more" if awaited[MOST_SITES:] else ""
        left = f"{found.run.seconds_left:.0f} s to its deadline"
        stage = "its result is being made" if found.run.finishing else left
        say(f"a run is under way, {stage}; not in: {names}")
    for result in found.results:
        say(str(result))
    say(f"next: {found.next}")
