"""The coordinator's keys: one to sign what he says of a study, one to encrypt what is for him.

The second is derived from the first (`predbayes_study.trust.encryption`), so his file is that of an
Ed25519 key. The public half of both is in the frozen plan, so that the plan's fingerprint covers
it: who has compared the plan's words has the right keys. A key holder's keys are the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from predbayes_study.trust.encryption import DecryptionKey, key_id
from predbayes_study.trust.keyfiles import Passphrase, read_public, write_public
from predbayes_study.trust.passphrase import stored_passphrase
from predbayes_study.trust.signing import PublicKey, SigningKey, fingerprint

_KINDS = ("ed25519", "xwing")


@dataclass(frozen=True, slots=True)
class CoordinatorPublicKey:
    """What everybody has of the coordinator."""

    signing: PublicKey
    encryption: str  # of X-Wing, in base64

    def __post_init__(self) -> None:
        key_id(self.encryption)  # or it is refused

    @property
    def fingerprint(self) -> str:
        """The words of both keys together."""
        both = bytes.fromhex(self.signing.hex + key_id(self.encryption))
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

    @classmethod
    def generate(cls) -> CoordinatorKey:
        """Make a new key, from the operating system's randomness."""
        return cls(SigningKey.generate())

    @property
    def encryption(self) -> DecryptionKey:
        """What decrypts what is for him."""
        return DecryptionKey.of(self.signing.private)

    @property
    def public(self) -> CoordinatorPublicKey:
        """The half that goes into plans."""
        return CoordinatorPublicKey(self.signing.public, self.encryption.public)

    def save(self, path: Path, passphrase: bytes | None = None) -> None:
        """Write it so that only its owner may read it; an existing file stays."""
        self.signing.save(path, passphrase)

    @classmethod
    def load(cls, path: Path, passphrase: Passphrase = stored_passphrase) -> CoordinatorKey:
        """Read a file that `save` wrote."""
        return cls(SigningKey.load(path, passphrase))
