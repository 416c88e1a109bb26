"""Who said it: Ed25519 keys, and fingerprints that people read to each other.

A site signs the digest of its upload's content, which has the plan's digest and the site's name in
it: a signature is good for one upload of one site in one study. The coordinator has the public key
from the site itself, and both compare its fingerprint by telephone. The coordinator signs what he
says with a key that the plan names (`predbayes_study.trust.coordinator`). A signature says who made
something, not that it is right, and it hides nothing.

What is signed begins with the kind of thing that it is: "predbayes KIND, format 1" and a line end.
So a signature under one kind of thing is never one under another.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from predbayes.errors import KeyFileError
from predbayes.optional import require
from predbayes_study.trust.keyfiles import (
    Passphrase,
    read_private,
    read_public,
    write_private,
    write_public,
)
from predbayes_study.trust.passphrase import stored_passphrase

Kind = Literal[
    "upload",
    "kit",
    "receipt",
    "ledger head",
    "result",
    "model",
    "approval",
    "deletion",
    "adoption",
    "survey",
    "seal",
    "opening",
]
"""The kinds of things that are signed."""

_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_KINDS = ("ed25519",)
_HEX = re.compile("[0-9a-f]*")

_PRIME = 2**255 - 19
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)
"""Heights of the few points whose eightfold is neutral.

Under such a key some signature that needs no private key fits any message.
"""


def fingerprint(digest: str) -> str:
    """Return the first 128 bits of a hexadecimal digest as eight words to read out.

    Two bytes are one word, consonant and vowel in turn (Wilkerson, 2009: proquints).

    Examples:
        >>> fingerprint("00" * 16)
        'babab-babab-babab-babab-babab-babab-babab-babab'
        >>> fingerprint("7f000001" * 4)[:11]
        'lusab-babad'
    """
    raw = bytes.fromhex(digest)[:16]
    return "-".join(_word(raw[i] << 8 | raw[i + 1]) for i in range(0, 16, 2))


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key, 32 bytes as hexadecimal digits."""

    hex: str

    def __post_init__(self) -> None:
        if not is_hex(self.hex, 64):
            raise KeyFileError("a public key is 64 hexadecimal digits")
        # Without the sign of the point's other coordinate, and reduced: however it is spelled.
        if int.from_bytes(bytes.fromhex(self.hex), "little") % 2**255 % _PRIME in _SMALL_ORDER:
            raise KeyFileError("this public key is of no private key: anybody could sign for it")

    @property
    def fingerprint(self) -> str:
        """The words that the two ends compare by telephone."""
        return fingerprint(hashlib.sha256(bytes.fromhex(self.hex)).hexdigest())

    def verifies(self, kind: Kind, content: bytes, signature: str) -> bool:
        """Return whether this key signed this content as a thing of this kind."""
        if not is_hex(signature, 128):
            return False
        key = _ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.hex))
        invalid = require("cryptography.exceptions", "study").InvalidSignature
        try:
            key.verify(bytes.fromhex(signature), _message(kind, content))
        except invalid:
            return False
        return True

    def save(self, path: Path, owner: str = "") -> None:
        """Write what goes to the coordinator: the key, and whose it is."""
        write_public(path, dict.fromkeys(_KINDS, self.hex), owner)

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """Read a file that a site's `save` wrote."""
        return cls(*read_public(path, _KINDS))


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key."""

    private: Any

    @classmethod
    def generate(cls) -> SigningKey:
        """Make a new key, from the operating system's randomness."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @property
    def public(self) -> PublicKey:
        """The key that the other end gets."""
        return PublicKey(self.private.public_key().public_bytes_raw().hex())

    def sign(self, kind: Kind, content: bytes) -> str:
        """Return the signature of a thing of this kind, as hexadecimal digits."""
        signature: bytes = self.private.sign(_message(kind, content))
        return signature.hex()

    def save(self, path: Path, passphrase: bytes | None = None) -> None:
        """Write the key so that only its owner may read it; an existing file stays."""
        write_private(path, self.private, passphrase)

    @classmethod
    def load(cls, path: Path, passphrase: Passphrase = stored_passphrase) -> SigningKey:
        """Read a file that `save` wrote."""
        private = read_private(path, passphrase)
        if not isinstance(private, _ed25519().Ed25519PrivateKey):
            raise KeyFileError(f"{path.name} is a private key, but not an Ed25519 key")
        return cls(private)


def is_hex(text: str, length: int) -> bool:
    """Return whether a text is so many hexadecimal digits, in small letters."""
    return len(text) == length and _HEX.fullmatch(text) is not None


def _message(kind: Kind, content: bytes) -> bytes:
    return f"predbayes {kind}, format 1\n".encode() + content


def _ed25519() -> Any:
    return require("cryptography.hazmat.primitives.asymmetric.ed25519", "study")


def _word(bits: int) -> str:
    return (
        _CONSONANTS[bits >> 12]
        + _VOWELS[bits >> 10 & 3]
        + _CONSONANTS[bits >> 6 & 15]
        + _VOWELS[bits >> 4 & 3]
        + _CONSONANTS[bits & 15]
    )
