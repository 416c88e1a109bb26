"""Who sent it: Ed25519 keys of sites, and fingerprints that people read to each other.

A site signs the digest of its upload's content, which has the plan's digest and the site's name in
it: a signature is good for one upload of one site in one study. The coordinator has the public key
from the site itself, and both compare its fingerprint by telephone. A signature says who sent an
upload, not that what is in it is right, and it hides nothing.

The private key stays at the site in a PEM file that only its owner may read.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predbayes.errors import KeyFileError
from predbayes.optional import require

_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_PUBLIC_PREFIX = "predbayes-ed25519 "
_MESSAGE_PREFIX = b"predbayes upload, format 1\n"
_MAX_KEY_BYTES = 4096

_SMALL_ORDER = frozenset(
    {
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    }
)
"""Every spelling of the few points whose eightfold is neutral.

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
    """A site's public key, 32 bytes as hexadecimal digits."""

    hex: str

    def __post_init__(self) -> None:
        if not _is_hex(self.hex, 64):
            raise KeyFileError("a public key is 64 hexadecimal digits")
        if self.hex in _SMALL_ORDER:
            raise KeyFileError("this public key is of no private key: anybody could sign for it")

    @property
    def fingerprint(self) -> str:
        """The words that the two ends compare by telephone."""
        return fingerprint(hashlib.sha256(bytes.fromhex(self.hex)).hexdigest())

    def verifies(self, digest: str, signature: str) -> bool:
        """Return whether this key signed an upload with this digest."""
        if not _is_hex(signature, 128):
            return False
        key = _ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.hex))
        invalid = require("cryptography.exceptions", "study").InvalidSignature
        try:
            key.verify(bytes.fromhex(signature), _message(digest))
        except invalid:
            return False
        return True

    def save(self, path: Path) -> None:
        """Write the one line that goes to the coordinator."""
        try:
            path.write_text(f"{_PUBLIC_PREFIX}{self.hex}\n")
        except OSError as error:
            raise KeyFileError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """Read a file that a site's `save` wrote."""
        text = _read(path).decode("ascii", errors="replace").strip()
        if "PRIVATE KEY" in text:
            raise KeyFileError(
                f"{path.name} is a private key, which stays at the site; send the file .pub"
            )
        if not text.startswith(_PUBLIC_PREFIX) or not _is_hex(text[len(_PUBLIC_PREFIX) :], 64):
            raise KeyFileError(f"{path.name} is not a public key of predbayes")
        return cls(text[len(_PUBLIC_PREFIX) :])


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A site's private key."""

    private: Any

    @classmethod
    def generate(cls) -> SigningKey:
        """Make a new key, from the operating system's randomness."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @property
    def public(self) -> PublicKey:
        """The key that the coordinator gets."""
        return PublicKey(self.private.public_key().public_bytes_raw().hex())

    def sign(self, digest: str) -> str:
        """Return the signature of an upload with this digest, as hexadecimal digits."""
        signature: bytes = self.private.sign(_message(digest))
        return signature.hex()

    def save(self, path: Path) -> None:
        """Write the key so that only its owner may read it; an existing file is not replaced."""
        formats = require("cryptography.hazmat.primitives.serialization", "study")
        content: bytes = self.private.private_bytes(
            formats.Encoding.PEM, formats.PrivateFormat.PKCS8, formats.NoEncryption()
        )
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
        except FileExistsError as error:
            raise KeyFileError(f"{path.name} exists; a key is never overwritten") from error
        except OSError as error:
            raise KeyFileError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Read a file that `save` wrote."""
        formats = require("cryptography.hazmat.primitives.serialization", "study")
        unsupported = require("cryptography.exceptions", "study").UnsupportedAlgorithm
        try:
            private = formats.load_pem_private_key(_read(path), password=None)
        except (ValueError, TypeError, unsupported) as error:
            raise KeyFileError(f"{path.name} is not a private key of predbayes") from error
        if not isinstance(private, _ed25519().Ed25519PrivateKey):
            raise KeyFileError(f"{path.name} is a private key, but not an Ed25519 key")
        return cls(private)


def _read(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise KeyFileError(f"{path.name} is not a file")  # a pipe would be waited for
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from error


def _message(digest: str) -> bytes:
    return _MESSAGE_PREFIX + digest.encode()


def _ed25519() -> Any:
    return require("cryptography.hazmat.primitives.asymmetric.ed25519", "study")


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and all(character in "0123456789abcdef" for character in text)


def _word(bits: int) -> str:
    return (
        _CONSONANTS[bits >> 12]
        + _VOWELS[bits >> 10 & 3]
        + _CONSONANTS[bits >> 6 & 15]
        + _VOWELS[bits >> 4 & 3]
        + _CONSONANTS[bits & 15]
    )
