"""The coordinator's private key while a step is taken, and what he signs with it.

The key lies where the coordinator keeps it. A study's folder has no more than its path, in
`.key-path`; the variable PREDBAYES_COORDINATOR_KEY goes before that. A study whose plan names no
key has no signer, and nothing of it is signed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from predbayes.errors import KeyFileError
from predbayes_study.coordinator.state import State
from predbayes_study.store.ledger import now
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.dsse import in_toto
from predbayes_study.trust.signing import SigningKey
from predbayes_study.trust.statement import (
    Deletion,
    FilesStatement,
    Receipt,
    Signed,
    StudyStatement,
)

KEY_PATH = ".key-path"
RESULT_TYPE = "urn:predbayes:result:1"
VARIABLE = "PREDBAYES_COORDINATOR_KEY"


def private_key(folder: Path, public: str, encryption: str = "") -> CoordinatorKey:
    """Read the key that a study's plan names; another one is refused.

    Args:
        folder: Of the study.
        public: The plan's Ed25519 key.
        encryption: Its encryption key; empty where nothing is decrypted.
    """
    path = key_path(folder)
    if path is None:
        raise KeyFileError(
            f"the plan names a coordinator's key: give its file by --key or in {VARIABLE}"
        )
    key = CoordinatorKey.load(path)
    held = key.public
    if held.signing.hex != public or encryption not in ("", held.encryption):
        raise KeyFileError(f"{path.name} is not the key that the plan names")
    return key


def key_path(folder: Path) -> Path | None:
    """Return where the coordinator's key lies, as far as it is known."""
    try:
        told = os.environ.get(VARIABLE) or (folder / KEY_PATH).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Path(told) if told else None


def stated(state: State, site: str) -> dict[str, Any]:
    """Return what a receipt says that a study has of a site."""
    upload = state.uploads.get(site)
    found = (state.evaluations.get((site, model)) for model in state.models)
    sent = sorted(accepted.digest for accepted in found if accepted is not None)
    return {
        "key": state.keys[site],
        "upload": None if upload is None else upload.digest,
        "evaluations": tuple(sent),
    }


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs statements about a study as it is now."""

    key: SigningKey
    state: State

    def files(self, kind: Literal["kit", "result", "model"], files: Mapping[str, str]) -> bytes:
        """Return the statement of the files of a folder, by their digests."""
        return self._signed(FilesStatement(kind=kind, files=dict(files), **self._place()))

    def in_toto(self, files: Mapping[str, str]) -> bytes:
        """Return what `files` says of a result, for tools that read in-toto statements."""
        return in_toto(self.key, RESULT_TYPE, files, self._place())

    def receipt(self, site: str, entry: str) -> bytes:
        """Return the statement of what the study has of a site.

        Args:
            site: The site.
            entry: Content of the ledger's entry that added its upload; empty without one.
        """
        told = stated(self.state, site)
        return self._signed(Receipt(at=now(), site=site, entry=entry, **told, **self._place()))

    def deletion(self, site: str, remains: tuple[str, ...]) -> bytes:
        """Return the statement of which files of a site are deleted."""
        removed = self.state.removed(site)
        return self._signed(
            Deletion(at=now(), site=site, removed=removed, remains=remains, **self._place())
        )

    def _signed(self, statement: StudyStatement) -> bytes:
        return Signed.of(statement, self.key).file()

    def _place(self) -> dict[str, Any]:
        state = self.state
        return {
            "plan": state.plan_digest,
            "study": state.study,
            "head": state.last,
            "number": state.num_entries,
        }
