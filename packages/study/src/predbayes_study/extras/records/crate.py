"""The list of an exported study: an RO-Crate 1.1, which says of itself what is in it.

`ro-crate-metadata.json` is JSON-LD in the words of schema.org: the study, its licence, and every
file with its size and SHA-256.

https://www.researchobject.org/ro-crate/specification/1.1/
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pydantic import TypeAdapter, ValidationError

from predbayes.errors import StudyError
from predbayes.files import file_digest
from predbayes_study.plan.schema import Plan
from predbayes_study.store.ledger import Entry

CRATE_FILE = "ro-crate-metadata.json"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_CONTEXT = [f"{_SPECIFICATION}/context", {"sha256": "https://schema.org/sha256"}]
_MAX_BYTES = 100_000_000
_Listing = TypeAdapter(dict[str, Any])


def listed_digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file that a crate lists, by its path; none may be there twice."""
    path = folder / CRATE_FILE
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError
        graph = _Listing.validate_json(path.read_bytes())["@graph"]
        files = [entity for entity in graph if entity["@type"] == "File"]
        found = {unquote(entity["@id"]): str(entity["sha256"]) for entity in files}
        if len(found) < len(files):
            raise ValueError
    except (OSError, ValueError, ValidationError, KeyError, TypeError, AttributeError) as error:
        raise StudyError(f"{CRATE_FILE} is not as predbayes writes it") from error
    return found


def crate_metadata(
    folder: Path, names: Sequence[str], plan: Plan, entries: Sequence[Entry], licence: str
) -> bytes:
    """Return the list of a crate.

    Args:
        folder: Folder with the files of the crate.
        names: Paths of the files in it.
        plan: The study's plan.
        entries: Entries of its ledger.
        licence: Licence under which the crate is given out, an address or words.
    """
    licence_id = licence if licence.startswith(("https://", "http://")) else "#licence"
    graph = [
        {
            "@id": CRATE_FILE,
            "@type": "CreativeWork",
            "conformsTo": {"@id": _SPECIFICATION},
            "about": {"@id": "./"},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            "name": f"The study {plan.name}",
            "description": plan.description
            or f"A federated study that predicts {plan.target.name}.",
            "identifier": entries[0].digest,
            "datePublished": entries[-1].at,
            "license": {"@id": licence_id},
            "hasPart": [{"@id": quote(name)} for name in names],
        },
        {"@id": licence_id, "@type": "CreativeWork", "name": licence or "Not stated"},
        *(
            {
                "@id": quote(name),
                "@type": "File",
                "name": name.rpartition("/")[2],
                "contentSize": str((folder / name).stat().st_size),
                "sha256": file_digest(folder / name),
            }
            for name in names
        ),
    ]
    text = json.dumps({"@context": _CONTEXT, "@graph": graph}, indent=1, ensure_ascii=False)
    return text.encode() + b"\n"
