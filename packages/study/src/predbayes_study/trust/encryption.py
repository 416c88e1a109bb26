"""Who may read it: encryption to a public key by HPKE (RFC 9180), as `cryptography` has it.

The key exchange is the hybrid X-Wing, ML-KEM-768 and X25519 together: a message that is recorded on
its way stays unreadable unless both are broken. The content is under ChaCha20-Poly1305, with a key
by HKDF-SHA256. One call encrypts one message whole, and `info` is authenticated with it.

    private   32 bytes, derived by HKDF-SHA256 from the owner's Ed25519 key: one secret, one file
    public    1,216 bytes, as base64 in plans and files .pub
    key_id    SHA-256 of the public key, where a name is enough

Signatures are Ed25519 alone: a quantum computer could forge new signatures with it, but could not
read what was encrypted before.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from predbayes.errors import KeyFileError, MissingPackageError
from predbayes.optional import require

OVERHEAD = 1136
"""Bytes of a message beside its plaintext."""

_ML_KEM_BYTES, _BYTES = 1184, 1216  # of the first half of a public key, and of both
_LABEL = b"predbayes encryption, format 1"


@dataclass(frozen=True, slots=True)
class DecryptionKey:
    """A private key of X-Wing."""

    seed: bytes = field(repr=False)

    @classmethod
    def of(cls, signing: Any) -> DecryptionKey:
        """Derive the key that belongs to an Ed25519 private key."""
        sha256 = require("cryptography.hazmat.primitives.hashes", "study").SHA256()
        hkdf = require("cryptography.hazmat.primitives.kdf.hkdf", "study").HKDF
        return cls(hkdf(sha256, 32, None, _LABEL).derive(signing.private_bytes_raw()))

    @property
    def public(self) -> str:
        """The public half, as base64."""
        raw = b"".join(half.public_key().public_bytes_raw() for half in self._halves)
        return base64.b64encode(raw).decode()

    def decrypt(self, ciphertext: bytes, info: bytes) -> bytes:
        """Return what `encrypt` took; a ValueError if this key or `info` does not fit."""
        invalid = require("cryptography.exceptions", "study").InvalidTag
        key = _hpke().MLKEM768X25519PrivateKey(*self._halves)
        try:
            plaintext: bytes = _suite().decrypt(ciphertext, key, info=info)
        except invalid as error:
            raise ValueError("it cannot be decrypted") from error
        return plaintext

    @property
    def _halves(self) -> tuple[Any, Any]:
        """ML-KEM's and X25519's part, as the draft of X-Wing expands the seed."""
        ml_kem, x25519 = _kems()
        expanded = hashlib.shake_256(self.seed).digest(96)
        return (
            ml_kem.MLKEM768PrivateKey.from_seed_bytes(expanded[:64]),
            x25519.X25519PrivateKey.from_private_bytes(expanded[64:]),
        )


def encrypt(public: str, plaintext: bytes, info: bytes) -> bytes:
    """Encrypt a message to a public key, and authenticate `info` with it."""
    raw, (ml_kem, x25519) = _decoded(public), _kems()
    try:
        key = _hpke().MLKEM768X25519PublicKey(
            ml_kem.MLKEM768PublicKey.from_public_bytes(raw[:_ML_KEM_BYTES]),
            x25519.X25519PublicKey.from_public_bytes(raw[_ML_KEM_BYTES:]),
        )
        ciphertext: bytes = _suite().encrypt(plaintext, key, info=info)
    except ValueError as error:  # such as a point of small order
        raise KeyFileError("nobody has the private key of this encryption key") from error
    return ciphertext


def key_id(public: str) -> str:
    """Return the SHA-256 of a public key; refuse what has not the form of one."""
    return hashlib.sha256(_decoded(public)).hexdigest()


def _decoded(public: str) -> bytes:
    try:
        raw = base64.b64decode(public, validate=True)
    except ValueError:
        raw = b""
    # Base64 has several spellings of the same bytes, and a key only one.
    if len(raw) != _BYTES or base64.b64encode(raw).decode() != public:
        raise KeyFileError(f"an encryption key is {_BYTES:,} bytes, in base64")
    return raw


def _suite() -> Any:
    hpke = _hpke()
    return hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)


def _hpke() -> Any:
    return require("cryptography.hazmat.primitives.hpke", "study")


@cache
def _kems() -> tuple[Any, Any]:
    names = "mlkem", "x25519"
    at = "cryptography.hazmat.primitives.asymmetric"
    ml_kem, x25519 = (require(f"{at}.{name}", "study") for name in names)
    try:
        ml_kem.MLKEM768PrivateKey.from_seed_bytes(bytes(64))
    except require("cryptography.exceptions", "study").UnsupportedAlgorithm as error:
        raise MissingPackageError(
            "the package cryptography on this computer has an OpenSSL without ML-KEM, which "
            "encryption needs. Install its own build: pip install --force-reinstall "
            "--only-binary :all: 'cryptography>=48'"
        ) from error
    return ml_kem, x25519
