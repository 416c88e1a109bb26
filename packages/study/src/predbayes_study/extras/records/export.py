"""A study for the record: what was agreed, done and found, without any data.

    kit/                the plan and its words; not the reference rows
    ledger.jsonl        every step
    results/N/          reports, card, figures and model of each result
    receipts/           what the coordinator states of each site, signed; if the key is at hand
    sites/NAME/         what a site handed over: approvals, the egress page, its own receipts
    ro-crate-metadata.json    every file by digest (`crate`)

It is one ZIP archive. Files are where a study has them and have the same bytes, so anyone who
unpacks it checks ledger and signatures with `predbayes study verify`. Withheld are reference rows,
labels, uploads and evaluations, whose digests are in the ledger, and the institution's audit log.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from predbayes.errors import StudyError, no_such
from predbayes.files import write_bytes, write_whole
from predbayes_study.coordinator.signer import key_path
from predbayes_study.coordinator.state import KIT, LEDGER, State
from predbayes_study.coordinator.step import begin_step
from predbayes_study.coordinator.study import Study
from predbayes_study.coordinator.verify import recorded, verify, withheld
from predbayes_study.extras.records.crate import CRATE_FILE, crate_metadata
from predbayes_study.store.ledger import Ledger
from predbayes_study.trust.statement import DELETION, KIT_SIGNATURE, RECEIPT

RECEIPTS, SITES = "receipts", "sites"
_APPROVALS = "approvals.jsonl"
_YEAR_ZERO = (1980, 1, 1, 0, 0, 0)  # of a ZIP archive, so that the same files give the same bytes


def export(
    study: Study,
    out: str | Path,
    sites: Mapping[str, Path] | None = None,
    licence: str = "",
) -> list[str]:
    """Write plan, ledger, results and receipts as an archive, and return the names of its files.

    Args:
        study: The study.
        out: A new file .zip.
        sites: Folders with what sites handed over, by site: of each `approvals.jsonl`,
            `egress.html`, `NAME.receipt` and `NAME.deletion` are taken, and nothing else.
        licence: Licence under which the archive is given out, an address or words.
    """
    with study.audit.during("export", out=str(out)):
        return _export(study, Path(out), sites or {}, licence)


def _export(study: Study, out: Path, sites: Mapping[str, Path], licence: str) -> list[str]:
    _require_possible(study, out, sites)
    with tempfile.TemporaryDirectory() as private:
        folder = Path(private)
        entries = study.ledger.entries()
        state = State.of(entries)
        (folder / LEDGER).write_bytes((study.folder / LEDGER).read_bytes())
        signature = [f"{KIT}/{KIT_SIGNATURE}"] if state.coordinator else []
        files = recorded(study, state).keys()
        for name in (*(files - withheld(files)), *signature):
            _copy(study.folder / name, folder / name)
        if state.coordinator and key_path(study.folder) is not None:
            (folder / RECEIPTS).mkdir()
            with begin_step(study) as step:
                for site in step.state.keys.keys() & step.state.uploads.keys():
                    write_bytes(folder / RECEIPTS / f"{site}{RECEIPT}", step.receipt(site))
        for site, source in sites.items():
            for name in (_APPROVALS, "egress.html", f"{site}{RECEIPT}", f"{site}{DELETION}"):
                if (source / name).is_file():
                    _require_unaltered(source, name)
                    _copy(source / name, folder / SITES / site / name)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in paths]
        content = crate_metadata(folder, names, study.plan, entries, licence)
        (folder / CRATE_FILE).write_bytes(content)
        if problems := verify(Study(folder)):
            raise StudyError(f"the study changed meanwhile; export it again ({problems[0]})")
        write_whole(out, lambda partial: _zip(folder, [*names, CRATE_FILE], partial))
    return names


def _require_possible(study: Study, out: Path, sites: Mapping[str, Path]) -> None:
    if out.suffix != ".zip":
        raise StudyError(f"{out}: an export is one archive; give it a name that ends with .zip")
    if out.exists():
        raise StudyError(f"{out} exists already; choose another name, or remove it first")
    if (study.folder / CRATE_FILE).is_file():
        raise StudyError(f"{study.folder} is an export; export the study itself")
    known = {entry.data["site"] for entry in study.ledger.read() if entry.step == "admit"}
    for site, folder in sites.items():
        if site not in known:
            raise StudyError(no_such("admitted site", site, known))
        if not folder.is_dir():
            raise StudyError(f"there is no folder {folder} with files of {site}")
    if problems := verify(study):
        raise StudyError(f"{problems[0]}; run `predbayes study verify`")


def _require_unaltered(source: Path, name: str) -> None:
    """Refuse altered approvals, and a link, which would bring in whatever it leads to."""
    if (source / name).resolve() != source.resolve() / name:
        raise StudyError(f"{source / name} is a link; give a folder with the file itself")
    if name == _APPROVALS:
        Ledger(source / name).entries()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _zip(folder: Path, names: list[str], target: Path) -> None:
    """Pack a crate; the same files give the same bytes."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(name, _YEAR_ZERO)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, (folder / name).read_bytes())
