"""Files that only the coordinator can read: an upload on its way, and what it says on the outside.

A signed upload is encrypted to the X25519 key in the frozen plan:

    line      "predbayes sealed, format 1" and a line end
    envelope  its length in two bytes, then JSON: plan, site, the key it is for, an ephemeral key
    chunks    of 64 KiB, each under ChaCha20-Poly1305 with the 16 bytes that authenticate it

Each file has a key of its own: HKDF-SHA256 of the X25519 agreement of the ephemeral key and the
coordinator's. A chunk's nonce is its number and whether it is the last (the construction STREAM of
Hoang, Reyhanitabar, Rogaway and Vizár, 2015), and everything before the chunks is authenticated
with each of them. So nothing can be changed, cut, added, put in another order, or handed to
somebody else. Who made a file is said by the signature inside: of an upload that names the plan,
which names the coordinator, who therefore cannot pass it on as if it had been for another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import Field, ValidationError

from predbayes.errors import UploadError
from predbayes.exchange.strict import SiteName, Strict
from predbayes.optional import require

SUFFIX = ".sealed"
MAGIC = b"predbayes sealed, format 1\n"
_LENGTH_BYTES = 2
_MAX_ENVELOPE = 4096
_CHUNK, _TAG = 1 << 16, 16
_BROKEN = "it cannot be decrypted: it was altered or cut on the way, or is for another coordinator"

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Envelope(Strict):
    """What everybody can read of a sealed file."""

    plan: Digest
    site: SiteName
    to: Digest  # the X25519 key it is for
    ephemeral: Digest


def is_sealed(path: Path) -> bool:
    """Return whether a file says that it is sealed."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def sealed_room(num_bytes: int) -> int:
    """Return how large a sealed file of so many bytes is at the most."""
    return num_bytes + (num_bytes // _CHUNK + 1) * _TAG + len(MAGIC) + _MAX_ENVELOPE


def seal(source: Path, target: Path, *, plan: str, site: str, to: str) -> None:
    """Encrypt a file.

    Args:
        source: A signed upload.
        target: Where the sealed one goes.
        plan: The digest of its plan.
        site: Who sends it.
        to: The coordinator's X25519 key, from the frozen plan.
    """
    x25519 = require("cryptography.hazmat.primitives.asymmetric.x25519", "study")
    own = x25519.X25519PrivateKey.generate()
    ephemeral = own.public_key().public_bytes_raw().hex()
    envelope = Envelope(plan=plan, site=site, to=to, ephemeral=ephemeral)
    text = envelope.model_dump_json().encode()
    head = MAGIC + len(text).to_bytes(_LENGTH_BYTES, "big") + text
    shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(bytes.fromhex(to)))
    cipher = _cipher(shared, envelope)
    with source.open("rb") as reader, target.open("wb") as writer:
        writer.write(head)
        for nonce, chunk in _chunks(reader, _CHUNK):
            writer.write(cipher.encrypt(nonce, chunk, head))


def unseal(source: Path, target: Path, key: Any, plan: str) -> Envelope:
    """Decrypt a file into another one, on the disk when this returns.

    Args:
        source: A sealed file, whoever made it.
        target: Where the upload goes; what is there after a refusal means nothing.
        key: The coordinator's X25519 private key.
        plan: The digest of the study's plan.
    """
    with source.open("rb") as reader, target.open("wb") as writer:
        envelope, head = _read_envelope(reader)
        if envelope.plan != plan:
            raise UploadError("it was made for another plan, or another version of this one")
        if envelope.to != key.public_key().public_bytes_raw().hex():
            raise UploadError("it is encrypted to another coordinator's key")
        _decrypt(reader, writer, key, envelope, head)
        writer.flush()
        os.fsync(writer.fileno())
    return envelope


def read_envelope(path: Path) -> Envelope:
    """Read what is said on the outside of a sealed file."""
    with path.open("rb") as file:
        return _read_envelope(file)[0]


def _decrypt(reader: BinaryIO, writer: BinaryIO, key: Any, envelope: Envelope, head: bytes) -> None:
    x25519 = require("cryptography.hazmat.primitives.asymmetric.x25519", "study")
    invalid = require("cryptography.exceptions", "study").InvalidTag
    public = x25519.X25519PublicKey.from_public_bytes(bytes.fromhex(envelope.ephemeral))
    try:
        cipher = _cipher(key.exchange(public), envelope)
        for nonce, chunk in _chunks(reader, _CHUNK + _TAG):
            writer.write(cipher.decrypt(nonce, chunk, head))
    except (invalid, ValueError) as error:  # the last: an ephemeral key of small order
        raise UploadError(_BROKEN) from error


def _read_envelope(reader: BinaryIO) -> tuple[Envelope, bytes]:
    """Return the envelope, and all bytes before the chunks."""
    start = reader.read(len(MAGIC) + _LENGTH_BYTES)
    length = int.from_bytes(start[len(MAGIC) :], "big")
    if not start.startswith(MAGIC) or not 0 < length <= _MAX_ENVELOPE:
        raise UploadError("it is not a sealed file of predbayes")
    text = reader.read(length)
    try:
        envelope = Envelope.model_validate_json(text)
    except ValidationError as error:
        raise UploadError("its envelope is not one of predbayes") from error
    return envelope, start + text


def _chunks(reader: BinaryIO, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield each chunk with its nonce; at least one, and the last is marked."""
    number, chunk = 0, reader.read(size)
    while True:
        following = reader.read(size)
        yield number.to_bytes(11, "big") + bytes([not following]), chunk
        if not following:
            return
        number, chunk = number + 1, following


def _cipher(shared: bytes, envelope: Envelope) -> Any:
    hashes = require("cryptography.hazmat.primitives.hashes", "study")
    derivation = require("cryptography.hazmat.primitives.kdf.hkdf", "study")
    aead = require("cryptography.hazmat.primitives.ciphers.aead", "study")
    salt = bytes.fromhex(envelope.ephemeral + envelope.to)
    key = derivation.HKDF(hashes.SHA256(), length=32, salt=salt, info=MAGIC).derive(shared)
    return aead.ChaCha20Poly1305(key)
