"""The way around Flower's messages: a node writes its upload to a storage, and tells its digest.

    question   the digest of the plan and, with it, an address: pre-signed for one object, whose
               name nobody can guess, in a folder of the run's own
    answer     that an upload is there, with its SHA-256 and its size

An answer names no object: what is read is what was signed for the node that answers. No more of it
is read than the size that it told, which the plan bounds; and it is taken only if it has the digest
that came over Flower. Then it is checked as any file is. The folder is removed with the round.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from predbayes.errors import UploadError
from predbayes.exchange.storage import Found, Storage, packs, put
from predbayes.files import file_digest
from predbayes.study.site.policy import SitePolicy

STORED, NUM_BYTES = "stored", "bytes"
"""Words of an answer: the digest of what was written, and its size."""

_TOKEN_BYTES = 16
_LONGEST_SECONDS = 7 * 24 * 3600  # for which S3 lets an address be good
_DIGEST = re.compile("[0-9a-f]{64}")


class Parcel(NamedTuple):
    """An upload that a node says is on the storage."""

    found: Found
    digest: str


@dataclass(frozen=True, slots=True)
class Transit:
    """The coordinator's side: addresses for nodes, and what they wrote there.

    Args:
        storage: Where the run has its folder.
        seconds: How long addresses are good.
    """

    storage: Storage
    seconds: float
    folder: str = field(default_factory=lambda: secrets.token_hex(_TOKEN_BYTES))
    _names: dict[int, str] = field(default_factory=dict)  # of objects, by node

    @classmethod
    def at(cls, address: str, seconds: float) -> Transit:
        """Begin at an address; one that cannot be signed for others is refused at once."""
        made = cls(Storage.at(address), min(seconds, _LONGEST_SECONDS))
        made.storage.presigned(made.folder, 1)
        return made

    def address(self, node: int) -> str:
        """Return an address to which this node may write its upload."""
        return self.storage.presigned(self._name(node), self.seconds)

    def parcel(self, node: int, told: Mapping[str, Any], most_bytes: int) -> Parcel:
        """Return what a node says that it wrote; refuse what no upload of the plan can be."""
        digest, size = told.get(STORED), told.get(NUM_BYTES)
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise UploadError("its answer names no digest")
        if type(size) is not int or not 0 < size <= most_bytes:
            raise UploadError("its answer is larger than any upload of this plan, or has no size")
        return Parcel(Found(f"{self.storage.path}/{self._name(node)}", size), digest)

    def fetch(self, parcels: list[Parcel], folder: Path) -> list[Path | UploadError]:
        """Fetch what nodes wrote; in place of what is not there or has another digest, why."""
        fetched: list[Path | UploadError] = []
        for pack in packs(parcel.found for parcel in parcels):
            fetched += self.storage.fetch(pack, folder)
        pairs = zip(parcels, fetched, strict=True)
        return [_compared(path, parcel.digest) for parcel, path in pairs]

    def end(self) -> None:
        """Remove all that was written."""
        self.storage.remove(self.folder)

    def _name(self, node: int) -> str:
        token = self._names.setdefault(node, secrets.token_hex(_TOKEN_BYTES))
        return f"{self.folder}/{token}"


def _compared(path: Path | UploadError, digest: str) -> Path | UploadError:
    if isinstance(path, Path) and file_digest(path) != digest:
        return UploadError("what is on the storage is not what its answer says")
    return path


def deliver(path: Path, address: str, policy: SitePolicy) -> None:
    """Write a node's upload to the address that a message names, if the site's policy names it."""
    policy.require_storage(address, by_message=True)
    put(path, address)


def told_of(path: Path) -> dict[str, str | int]:
    """Return the words of an answer in place of the upload that was written."""
    return {"status": "upload", STORED: file_digest(path), NUM_BYTES: path.stat().st_size}
