"""An exported study as an RO-Crate 1.1: a folder that says of itself what is in it.

`ro-crate-metadata.json` is JSON-LD in the words of schema.org. It has every file with its SHA-256,
size and type, who made it and when as far as the ledger knows, and every entry of the ledger as an
action. What is withheld, because it holds rows or what sites sent, stands there by digest alone.

https://www.researchobject.org/ro-crate/specification/1.1/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

from pydantic import TypeAdapter, ValidationError

from predbayes.errors import StudyError
from predbayes.exchange.signing import fingerprint
from predbayes.files import file_digest
from predbayes.study.coordinator.state import State
from predbayes.study.plan.schema import Plan
from predbayes.study.store.ledger import Entry

CRATE_FILE = "ro-crate-metadata.json"
COORDINATOR = "#coordinator"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_CONTEXT = [f"{_SPECIFICATION}/context", {"sha256": "https://schema.org/sha256"}]
_TYPES = {
    ".html": "text/html",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".onnx": "application/onnx",
    ".toml": "application/toml",
    ".txt": "text/plain",
}
_ANY_TYPE = "application/octet-stream"
_NO_LICENCE = "Not stated. Whoever publishes this must state it."
_MAX_BYTES = 100_000_000
_WITHHELD = "#withheld-"  # begins the names of what is not in the crate
_STEPS = {
    "init": "the study was begun",
    "admit": "a site was admitted",
    "add": "a site’s upload was taken in",
    "survey": "a site’s survey was taken in",
    "evaluate": "a site’s evaluation was taken in",
    "batch": "sites were admitted, or their files taken in",
    "withdraw": "a site took back what it had sent",
    "delete": "the bytes of files were deleted",
    "finish": "a result was made",
}

Entity = dict[str, Any]
_Listing = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, slots=True)
class CrateFile:
    """A file of a crate, and what is known of how it came to be."""

    path: str  # from the crate's folder
    about: str  # what it is
    made_by: str = COORDINATOR  # a site, or the coordinator
    at: str = ""  # when; empty: nobody knows


def is_crate(folder: Path) -> bool:
    """Return whether a folder is an export, from which files are withheld."""
    return (folder / CRATE_FILE).is_file()


def listed_digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file that a crate lists, by its path."""
    return _digests(folder, lambda entity: entity["@type"] == "File")


def withheld_digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file that a crate says is withheld, by its path in the study."""
    return _digests(folder, lambda entity: entity["@id"].startswith(_WITHHELD))


def _digests(folder: Path, is_meant: Callable[[Entity], bool]) -> dict[str, str]:
    """Digests of some entities, by path; none may stand there twice."""
    path = folder / CRATE_FILE
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError
        graph = _Listing.validate_json(path.read_bytes())["@graph"]
        meant = [entity for entity in graph if is_meant(entity)]
        paths = (unquote(one["@id"].removeprefix(_WITHHELD)) for one in meant)
        found = dict(zip(paths, (str(one["sha256"]) for one in meant), strict=True))
        if len(found) < len(meant):
            raise ValueError
    except (OSError, ValueError, ValidationError, KeyError, TypeError, AttributeError) as error:
        raise StudyError(f"{CRATE_FILE} is not as predbayes writes it") from error
    return found


def crate_metadata(
    folder: Path,
    files: Sequence[CrateFile],
    *,
    plan: Plan,
    state: State,
    entries: Sequence[Entry],
    withheld: Mapping[str, str],
    licence: str = "",
) -> bytes:
    """Return the metadata of a crate.

    Args:
        folder: Of the crate; its files are there.
        files: What is known of each.
        plan: Of the study.
        state: Of the study.
        entries: Of its ledger.
        withheld: Digests of what is not in the crate, by path in the study's folder.
        licence: Under which the crate is given out; an address, or words.
    """
    graph = [
        _descriptor(),
        _root(plan, files, entries, withheld, licence),
        *_licence(licence),
        *(_file(folder, file) for file in files),
        *(_missing(name, digest) for name, digest in withheld.items()),
        _software(plan),
        *_people(plan, state, entries),
        *(_action(entry, files) for entry in entries),
    ]
    text = json.dumps({"@context": _CONTEXT, "@graph": graph}, indent=1, ensure_ascii=False)
    return text.encode() + b"\n"


def site_id(site: str) -> str:
    """Return the name of a site's entity."""
    return f"#site-{quote(site)}"


def _descriptor() -> Entity:
    return {
        "@id": CRATE_FILE,
        "@type": "CreativeWork",
        "conformsTo": {"@id": _SPECIFICATION},
        "about": {"@id": "./"},
    }


def _root(
    plan: Plan,
    files: Sequence[CrateFile],
    entries: Sequence[Entry],
    withheld: Mapping[str, str],
    licence: str,
) -> Entity:
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": f"The study {plan.name}",
        "description": plan.description or f"A federated study that predicts {plan.target.name}.",
        "identifier": entries[0].digest,
        "datePublished": entries[-1].at,
        "license": {"@id": _licence(licence)[0]["@id"]},
        "author": {"@id": COORDINATOR},
        "hasPart": [{"@id": quote(file.path)} for file in files],
        "mentions": [
            *({"@id": _withheld_id(name)} for name in withheld),
            *({"@id": _entry_id(entry)} for entry in entries),
        ],
    }


def _licence(licence: str) -> list[Entity]:
    is_address = licence.startswith(("https://", "http://"))
    return [
        {
            "@id": licence if is_address else "#licence",
            "@type": "CreativeWork",
            "name": licence or "Not stated",
            "description": licence or _NO_LICENCE,
        }
    ]


def _file(folder: Path, file: CrateFile) -> Entity:
    path = folder / file.path
    found = {
        "@id": quote(file.path),
        "@type": "File",
        "name": PurePosixPath(file.path).name,
        "description": file.about,
        "contentSize": str(path.stat().st_size),
        "encodingFormat": _TYPES.get(path.suffix, _ANY_TYPE),
        "sha256": file_digest(path),
        "creator": {"@id": file.made_by},
    }
    return found | ({"dateCreated": file.at} if file.at else {})


def _missing(name: str, digest: str) -> Entity:
    return {
        "@id": _withheld_id(name),
        "@type": "CreativeWork",
        "name": name,
        "description": "Withheld: it holds rows, labels or what a site sent.",
        "sha256": digest,
    }


def _withheld_id(name: str) -> str:
    return _WITHHELD + quote(name, safe="")


def _software(plan: Plan) -> Entity:
    version = "" if plan.frozen is None else plan.frozen.version
    return {
        "@id": "#predbayes",
        "@type": "SoftwareApplication",
        "name": "predbayes",
        "softwareVersion": version,
    }


def _people(plan: Plan, state: State, entries: Sequence[Entry]) -> Iterator[Entity]:
    """Yield the coordinator and every site that was ever admitted, with their keys in words."""
    keys = {} if plan.coordinator is None else {"identifier": plan.coordinator.fingerprint}
    yield {"@id": COORDINATOR, "@type": "Organization", "name": "The coordinator", **keys}
    steps = (leaf for entry in entries for leaf in entry.steps)
    admitted = {leaf.data["site"]: leaf.data["key"] for leaf in steps if leaf.step == "admit"}
    for site, key in sorted((admitted | dict(state.keys)).items()):
        known = {"name": site, "identifier": fingerprint(key)}
        yield {"@id": site_id(site), "@type": "Organization", **known}


def _action(entry: Entry, files: Sequence[CrateFile]) -> Entity:
    """One entry of the ledger."""
    found: Entity = {
        "@id": _entry_id(entry),
        "@type": "CreateAction" if entry.step == "finish" else "Action",
        "name": f"Entry {entry.number}: {_STEPS.get(entry.step, entry.step)}",
        "identifier": entry.digest,
        "endTime": entry.at,
        "agent": {"@id": COORDINATOR},
        "instrument": {"@id": "#predbayes"},
    }
    if "site" in entry.data:
        found["participant"] = {"@id": site_id(entry.data["site"])}
    if entry.step == "finish":
        below = f"results/{entry.data['number']}/"
        made = [{"@id": quote(file.path)} for file in files if file.path.startswith(below)]
        found |= {"object": {"@id": "kit/plan.toml"}, "result": made}
    return found


def _entry_id(entry: Entry) -> str:
    return f"#entry-{entry.number}"
