"""Deleting what a study left at a site, with a signed receipt of what is gone and what is not.

The files of one `--out` folder go: upload, held-out predictions, notes and checkpoints. The egress
page stays, because people signed it; so do table, key, approvals and audit log, which have rules of
their own. What will be deleted is noted first: a deletion that was killed goes on, and its receipt
names all that was there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from predbayes.errors import StudyError
from predbayes.exchange.sealed import SUFFIX
from predbayes.exchange.signing import SigningKey
from predbayes.exchange.statement import DELETION, Digest, Time
from predbayes.exchange.strict import SiteName, Strict
from predbayes.files import TEMPORARY, digests, remove, sync_folder, write_bytes
from predbayes.study.site.training import HELD_BACK, HOME
from predbayes.study.store.ledger import now

_NOTED = ".deleting.json"
REMAINS = (
    "what was handed over: ask the coordinator for `predbayes study delete`",
    "the table, site.toml, the key, approvals and the audit log, which have rules of their own",
    "copies in backups, and blocks of a disk that the system has not written anew",
    "with Flower, what a SuperLink's database may still have",
)
"""What this does not delete."""


class SiteDeletion(Strict):
    """What a site signs after it has deleted files."""

    format: Literal[1] = 1
    kind: Literal["deletion"] = "deletion"
    at: Time
    site: SiteName
    removed: dict[str, Digest]  # digest of the bytes by path
    remains: tuple[str, ...] = REMAINS


def delete_outputs(out: Path, site: str, key: SigningKey) -> tuple[Path, SiteDeletion]:
    """Delete what training left in a folder, and return the receipt and where it is."""
    noted = out / _NOTED
    if not noted.exists():
        found = digests(out, _paths(out, site))
        if not found:
            raise StudyError(f"there is nothing of {site} to delete in {out}")
        write_bytes(noted, json.dumps(found).encode())
    removed = json.loads(noted.read_bytes())
    for path in (*(out / name for name in removed), *_paths(out, site)):
        remove(path)
    for folder in (out / HOME, out):
        if folder.is_dir():
            sync_folder(folder)
    receipt = SiteDeletion(at=now(), site=site, removed=removed)
    content = receipt.model_dump_json().encode()
    signature = key.sign("deletion", content)
    path = out / f"{site}{DELETION}"
    write_bytes(path, content + f"\n{signature}\n".encode())
    remove(noted)
    return path, receipt


def _paths(out: Path, site: str) -> list[Path]:
    """Return the files that training may have left."""
    names = (f"{site}.safetensors", f"{site}{SUFFIX}", HELD_BACK)
    partial = [path for path in out.rglob(f"{TEMPORARY}*") if path.name != TEMPORARY + _NOTED]
    home = [path for path in (out / HOME).glob("*") if path.is_file()]
    return [path for path in (*(out / name for name in names), *home, *partial) if path.exists()]
