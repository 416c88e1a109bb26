"""Files that only the coordinator can read: an upload on its way, and what it says on the outside.

    line      "predbayes sealed, format 1"
    line      the envelope: JSON with plan, site, and the `key_id` of the key that the file is for
    the rest  the signed upload, encrypted to the key in the frozen plan; the two lines are
              authenticated with it (`predbayes_study.trust.encryption`)

So nothing can be changed, cut or added, and nobody can hand the file to another recipient. Who made
a file is said by the signature inside. It is of an upload that names the plan, which names the
coordinator, who therefore cannot pass it on as if it had been for another. An upload fits into
memory, since the plan bounds it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import Field, ValidationError

from predbayes.errors import UploadError
from predbayes.exchange.strict import SiteName, Strict
from predbayes.files import open_regular
from predbayes_study.trust.encryption import OVERHEAD, DecryptionKey, encrypt, key_id

SUFFIX = ".sealed"
MAGIC = b"predbayes sealed, format 1\n"
_MAX_ENVELOPE = 4096
_BROKEN = "it cannot be decrypted: it was altered or cut on the way, or is for another coordinator"

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Envelope(Strict):
    """What everybody can read of a sealed file."""

    plan: Digest
    site: SiteName
    to: Digest  # of the key it is for


def is_sealed(path: Path) -> bool:
    """Return whether a file says that it is sealed."""
    with open_regular(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def sealed_room(num_bytes: int) -> int:
    """Return how large a sealed file of so many bytes is at the most."""
    return num_bytes + len(MAGIC) + _MAX_ENVELOPE + OVERHEAD


def seal(content: bytes, *, plan: str, site: str, to: str) -> bytes:
    """Encrypt a file.

    Args:
        content: A signed upload.
        plan: The digest of its plan.
        site: Who sends it.
        to: The coordinator's encryption key, from the frozen plan.
    """
    envelope = Envelope(plan=plan, site=site, to=key_id(to))
    head = MAGIC + envelope.model_dump_json().encode() + b"\n"
    return head + encrypt(to, content, head)


def unseal(source: Path, target: Path, key: DecryptionKey, plan: str) -> Envelope:
    """Decrypt a file into another one, on the disk when this returns.

    Args:
        source: A sealed file, whoever made it; of a size that fits into memory.
        target: Where the upload goes.
        key: The coordinator's.
        plan: The digest of the study's plan.
    """
    with source.open("rb") as reader:
        envelope, head = _read_envelope(reader)
        if envelope.plan != plan:
            raise UploadError("it was made for another plan, or another version of this one")
        if envelope.to != key_id(key.public):
            raise UploadError("it is encrypted to another coordinator's key")
        try:
            content = key.decrypt(reader.read(), head)
        except ValueError as error:
            raise UploadError(_BROKEN) from error
    with target.open("wb") as writer:
        writer.write(content)
        writer.flush()
        os.fsync(writer.fileno())
    return envelope


def read_envelope(path: Path) -> Envelope:
    """Read what is said on the outside of a sealed file."""
    with open_regular(path) as file:
        return _read_envelope(file)[0]


def _read_envelope(reader: BinaryIO) -> tuple[Envelope, bytes]:
    """Return the envelope, and both lines as they are."""
    first, second = reader.readline(len(MAGIC)), reader.readline(_MAX_ENVELOPE)
    if first != MAGIC or not second.endswith(b"\n"):
        raise UploadError("it is not a sealed file of predbayes")
    try:
        return Envelope.model_validate_json(second), first + second
    except ValidationError as error:
        raise UploadError("its envelope is not one of predbayes") from error
