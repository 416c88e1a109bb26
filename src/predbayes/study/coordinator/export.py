"""A study for the record: what was agreed, done and found, without any data.

    kit/                the plan and its words; not the reference rows
    ledger.jsonl        every step
    results/N/          reports, card, figures and model of each result
    receipts/           what the coordinator states of each site, signed; if his key is at hand
    sites/NAME/         what a site handed over: approvals, the egress page, its own receipts
    ro-crate-metadata.json    every file by digest, and what is withheld (`coordinator.crate`)

Files are where a study has them and have the same bytes, so whoever has the folder checks ledger
and signatures with `predbayes study verify`. Withheld are reference rows, labels, uploads and
evaluations, whose digests stand in the ledger, and the audit log, which is the institution's own.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from predbayes.errors import StudyError, no_such
from predbayes.exchange.statement import DELETION, KIT_SIGNATURE, RECEIPT
from predbayes.files import make_folder, write_bytes, write_whole
from predbayes.study.coordinator.crate import (
    COORDINATOR,
    CRATE_FILE,
    CrateFile,
    crate_metadata,
    is_crate,
    site_id,
)
from predbayes.study.coordinator.folder import StudyFolder
from predbayes.study.coordinator.record import KIT, LEDGER, RESULTS
from predbayes.study.coordinator.signer import key_path
from predbayes.study.coordinator.state import State
from predbayes.study.coordinator.step import begin_step
from predbayes.study.coordinator.verify import recorded, verify, withheld
from predbayes.study.store.ledger import Ledger

RECEIPTS, SITES = "receipts", "sites"
_ABOUT = {
    "plan.toml": "the plan, frozen",
    "result.json": "a result’s figures, for programs",
    "report.html": "the members’ report",
    "sites.csv": "a line for each site, where they are many",
    "report-public.html": "the public report",
    "model-card.html": "the model card",
    "model-card.json": "the model card by the items of TRIPOD+AI",
    "model.safetensors": "the model’s weights",
    "model.json": "the model’s plan and temperature",
}
_OF_SITES = {"approvals.jsonl": "who approved what, when", "egress.html": "what left the site"}
_YEAR_ZERO = (1980, 1, 1, 0, 0, 0)  # of a ZIP archive; the crate has the times that count


def export(
    study: StudyFolder, out: Path, sites: Mapping[str, Path], licence: str = ""
) -> list[CrateFile]:
    """Write a crate: see `Study.export`."""
    _require_possible(study, out, sites)
    if out.suffix != ".zip":
        with make_folder(out) as scratch:
            return _fill(study, scratch, sites, licence)
    with tempfile.TemporaryDirectory() as private:
        files = _fill(study, Path(private), sites, licence)
        write_whole(out, lambda partial: _zip(Path(private), partial))
    return files


def _require_possible(study: StudyFolder, out: Path, sites: Mapping[str, Path]) -> None:
    if out.exists():
        raise StudyError(f"{out} exists already; choose another name, or remove it first")
    if is_crate(study.folder):
        raise StudyError(f"{study.folder} is an export; export the study itself")
    steps = (leaf for entry in study.ledger.read() for leaf in entry.steps)
    known = {leaf.data["site"] for leaf in steps if leaf.step == "admit"}
    for site, folder in sites.items():
        if site not in known:
            raise StudyError(no_such("admitted site", site, known))
        if not folder.is_dir():
            raise StudyError(f"there is no folder {folder} with files of {site}")
    if problems := verify(study):
        raise StudyError(f"{problems[0]}; run `predbayes study verify`")


def _fill(
    study: StudyFolder, folder: Path, sites: Mapping[str, Path], licence: str
) -> list[CrateFile]:
    """Copy what may be seen, describe it, and check the whole."""
    (folder / LEDGER).write_bytes((study.folder / LEDGER).read_bytes())
    entries = Ledger(folder / LEDGER).entries()
    state = State.of(entries)
    hidden = withheld(study, state)
    own = list(_own_files(study, state, hidden))
    for file in own[1:]:  # the ledger is there
        _copy(study.folder / file.path, folder / file.path)
    files = [*own, *_receipts(study, state, folder), *_from_sites(sites, folder)]
    content = crate_metadata(
        folder,
        files,
        plan=study.plan,
        state=state,
        entries=entries,
        withheld={name: recorded(study, state)[name] for name in sorted(hidden)},
        licence=licence,
    )
    (folder / CRATE_FILE).write_bytes(content)
    if problems := verify(StudyFolder(folder)):
        raise StudyError(f"the study changed meanwhile; export it again ({problems[0]})")
    return files


def _own_files(study: StudyFolder, state: State, hidden: frozenset[str]) -> Iterator[CrateFile]:
    """Yield the ledger, and the files that it names and that may be seen."""
    entries = study.ledger.entries()
    yield CrateFile(LEDGER, "every step, each entry chained to the one before", at=entries[-1].at)
    finished = {f"{RESULTS}/{result.number}/": result.at for result in state.results}
    signature = [f"{KIT}/{KIT_SIGNATURE}"] if state.coordinator else []
    for name in sorted([*(recorded(study, state).keys() - hidden), *signature]):
        at = next((at for below, at in finished.items() if name.startswith(below)), entries[0].at)
        yield CrateFile(name, _about(name), at=at)


def _about(name: str) -> str:
    last = name.rpartition("/")[2]
    if last.endswith(".sig"):
        return "the coordinator’s signature of the files beside it"
    return _ABOUT.get(last, "part of the kit" if name.startswith(f"{KIT}/") else "part of a result")


def _receipts(study: StudyFolder, state: State, folder: Path) -> Iterator[CrateFile]:
    """Sign a receipt for every site that is in, if the coordinator's key is at hand."""
    if not state.coordinator or key_path(study.folder) is None:
        return
    with begin_step(study) as step:
        for site in sorted(step.state.keys.keys() & step.state.uploads.keys()):
            path = f"{RECEIPTS}/{site}{RECEIPT}"
            (folder / RECEIPTS).mkdir(exist_ok=True)
            write_bytes(folder / path, step.receipt(site))
            yield CrateFile(path, f"what the study has of {site}, signed")


def _from_sites(sites: Mapping[str, Path], folder: Path) -> Iterator[CrateFile]:
    """Copy what sites handed over: files of known names, and nothing else that lies there."""
    for site, source in sorted(sites.items()):
        signed = {f"{site}{end}": "a receipt of the coordinator’s" for end in (RECEIPT, DELETION)}
        for name, about in (_OF_SITES | signed).items():
            if not (source / name).is_file():
                continue
            _require_own(source, name)
            path = f"{SITES}/{site}/{name}"
            _copy(source / name, folder / path)
            maker = COORDINATOR if name in signed else site_id(site)
            yield CrateFile(path, about, maker, _time_of(source / name))


def _require_own(source: Path, name: str) -> None:
    """Refuse a link, which would bring whatever it leads to into the crate."""
    if (source / name).resolve() != source.resolve() / name:
        raise StudyError(f"{source / name} is a link; give a folder with the file itself")


def _time_of(path: Path) -> str:
    """When a site last approved something; nothing else says when it was made."""
    entries = Ledger(path).entries() if path.suffix == ".jsonl" else []
    return entries[-1].at if entries else ""


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _zip(folder: Path, target: Path) -> None:
    """Pack a crate; the same files give the same bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _YEAR_ZERO)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())


def told(files: Sequence[CrateFile]) -> str:
    """Say what kinds of files a crate has from whom."""
    handed = sum(file.path.startswith(f"{SITES}/") for file in files)
    receipts = sum(file.path.startswith(f"{RECEIPTS}/") for file in files)
    return f"{len(files)} files, of them {receipts} receipts and {handed} from sites"
