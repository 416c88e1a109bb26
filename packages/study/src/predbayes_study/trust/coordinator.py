"""The coordinator's keys: one to sign what he says of a study, one to encrypt what is for him.

The public half of both is in the frozen plan, so that the plan's fingerprint covers it: who has
compared the plan's words has the right keys.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from predbayes_study.trust.signing import PublicKey, SigningKey, fingerprint, is_hex

_KINDS = ("ed25519", "x25519")
_PRIME = 2**255 - 19
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)
"""The few points with which every private key agrees on zeros."""


@dataclass(frozen=True, slots=True)
class CoordinatorPublicKey:
    """What everybody has of the coordinator."""

    signing: PublicKey
    encryption: str  # X25519, 32 bytes as hexadecimal digits

    def __post_init__(self) -> None:
        if not is_hex(self.encryption, 64):
            raise KeyFileError("a public key is 64 hexadecimal digits")
        if _point(self.encryption) in _SMALL_ORDER:
            raise KeyFileError("this X25519 key is of no private key: anybody could decrypt")

    @property
    def fingerprint(self) -> str:
        """The words of both keys together."""
        both = bytes.fromhex(self.signing.hex + self.encryption)
        return fingerprint(hashlib.sha256(both).hexdigest())

    def save(self, path: Path) -> None:
        """Write the two lines that go into a plan."""
        keys = (self.signing.hex, self.encryption)
        write_public(path, dict(zip(_KINDS, keys, strict=True)))

    @classmethod
    def load(cls, path: Path) -> CoordinatorPublicKey:
        """Read a file that `save` wrote."""
        signing, encryption = read_public(path, _KINDS)
        return cls(PublicKey(signing), encryption)


@dataclass(frozen=True, slots=True)
class CoordinatorKey:
    """What the coordinator alone has."""

    signing: SigningKey
    encryption: Any  # X25519PrivateKey

    @classmethod
    def generate(cls) -> CoordinatorKey:
        """Make two new keys, from the operating system's randomness."""
        return cls(SigningKey.generate(), _x25519().X25519PrivateKey.generate())

    @property
    def public(self) -> CoordinatorPublicKey:
        """The half that goes into plans."""
        encryption = self.encryption.public_key().public_bytes_raw().hex()
        return CoordinatorPublicKey(self.signing.public, encryption)

    def save(self, path: Path, passphrase: bytes | None = None) -> None:
        """Write both so that only their owner may read them; an existing file stays."""
        write_private(path, [self.signing.private, self.encryption], passphrase)

    @classmethod
    def load(cls, path: Path, passphrase: Passphrase = stored_passphrase) -> CoordinatorKey:
        """Read a file that `save` wrote."""
        signing, encryption = read_private(path, 2, passphrase)
        if not isinstance(encryption, _x25519().X25519PrivateKey):
            raise KeyFileError(f"{path.name} is not a coordinator's private key")
        return cls(SigningKey.of(signing, path), encryption)


def _point(key: str) -> int:
    """Return the number that X25519 reads in a key: without the highest bit, by the prime."""
    return int.from_bytes(bytes.fromhex(key), "little") % 2**255 % _PRIME


def _x25519() -> Any:
    return require("cryptography.hazmat.primitives.asymmetric.x25519", "study")
