"""Deleting what a study left at a site, with a signed receipt of what is gone and what is not.

The files of one `--out` folder go: upload, held-out predictions, notes and checkpoints. The egress
page stays, because people signed it; so do table, key, approvals and audit log, which have rules of
their own. What will be deleted is noted first: a deletion that was killed goes on, and its receipt
names all that was there.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Literal

from predbayes.errors import StudyError
from predbayes.exchange.strict import SiteName
from predbayes.files import TEMPORARY, digests, remove, write_bytes
from predbayes.system import sync_folder
from predbayes_study.site.training import HELD_BACK, HOME
from predbayes_study.store.ledger import now
from predbayes_study.trust.sealed import SUFFIX
from predbayes_study.trust.signing import SigningKey
from predbayes_study.trust.statement import DELETION, Digest, Signed, Statement, Time

_NOTED = ".deleting.json"
REMAINS = (
    "what was handed over: ask the coordinator for `predbayes study delete`",
    "the table, site.toml, the key, approvals and the audit log, which have rules of their own",
    "copies in backups, and blocks of a disk that the system has not written anew",
    "with Flower, what a SuperLink's database may still have",
)
"""What this does not delete."""


class SiteDeletion(Statement):
    """What a site signs after it has deleted files."""

    kind: Literal["deletion"] = "deletion"
    at: Time
    site: SiteName
    removed: dict[str, Digest]  # digest of the bytes by path
    remains: tuple[str, ...] = REMAINS


def delete_outputs(out: Path, site: str, key: SigningKey) -> tuple[Path, SiteDeletion]:
    """Delete what training left in a folder, and return the receipt and where it is."""
    if (out / HOME).is_symlink():  # or files elsewhere would be deleted
        raise StudyError(f"{out / HOME} is a link, which no training made: remove it")
    noted = out / _NOTED
    if not noted.exists():
        found = digests(out, _paths(out, site))
        if not found:
            raise StudyError(f"there is nothing of {site} to delete in {out}")
        write_bytes(noted, json.dumps(found).encode())
    begun = _begun(noted, site)
    for path in _paths(out, site):
        remove(path)
    for folder in (out / HOME, out):
        if folder.is_dir():
            sync_folder(folder)
    receipt = begun.model_copy(update={"at": now()})
    path = out / f"{site}{DELETION}"
    write_bytes(path, Signed.of(receipt, key).file())
    remove(noted)
    return path, receipt


def _begun(noted: Path, site: str) -> SiteDeletion:
    """Read what a deletion noted; what it would not delete makes the note somebody else's."""
    wrong = f"{noted} is not what a deletion for {site} notes; remove it, and delete again"
    try:
        begun = SiteDeletion(at=now(), site=site, removed=json.loads(noted.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise StudyError(wrong) from error
    if not all(_is_left(name, site) for name in begun.removed):
        raise StudyError(wrong)
    return begun


def _is_left(name: str, site: str) -> bool:
    """Return whether a file of this name is one that `_paths` finds."""
    path = PurePath(name)
    if path.anchor or ".." in path.parts:
        return False
    return name in _names(site) or path.parent == PurePath(HOME) or path.name.startswith(TEMPORARY)


def _names(site: str) -> tuple[str, ...]:
    return f"{site}.safetensors", f"{site}{SUFFIX}", HELD_BACK


def _paths(out: Path, site: str) -> list[Path]:
    """Return the files that training may have left."""
    partial = [path for path in out.rglob(f"{TEMPORARY}*") if not path.name.endswith(f"-{_NOTED}")]
    home = [path for path in (out / HOME).glob("*") if path.is_file()]
    return [
        path for path in (*(out / name for name in _names(site)), *home, *partial) if path.exists()
    ]
