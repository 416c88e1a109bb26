"""Files of keys: PEM for what stays with its owner, a few lines of text for what is handed out.

    NAME.key   one private key in PEM, readable by its owner alone, never overwritten; if it has a
               passphrase, first a line "predbayes-scrypt SALT"
    NAME.pub   one line for each public key, "predbayes-KIND KEY"; then perhaps "# NAME", whose they
               are, as their owner says

A private file may have a passphrase (`predbayes_study.trust.passphrase`). The caller says where it
comes from.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from predbayes.errors import KeyFileError
from predbayes.files import PRIVATE, open_new, open_regular, write_bytes
from predbayes.optional import require
from predbayes_study.trust.passphrase import stored_passphrase, stretched

Passphrase = Callable[[Path], bytes]
"""Returns the passphrase of a file; called only for a file that has one."""

_MAX_BYTES = 4096
_SALT_BYTES = 16
_SALT = re.compile(rb"predbayes-scrypt ([0-9a-f]{32})\n")
_LINE = re.compile(r"predbayes-(\w+) ([0-9a-f]{64}|[0-9A-Za-z+/]{1622}==)")


def write_private(path: Path, key: Any, passphrase: bytes | None = None) -> None:
    """Write a private key so that only its owner may read it; an existing file stays."""
    formats, salt = _formats(), secrets.token_bytes(_SALT_BYTES)
    hidden: Any = formats.NoEncryption()
    if passphrase is not None:
        hidden = formats.BestAvailableEncryption(stretched(passphrase, salt))
    form = formats.Encoding.PEM, formats.PrivateFormat.PKCS8, hidden
    content = b"" if passphrase is None else b"predbayes-scrypt %b\n" % salt.hex().encode()
    content += key.private_bytes(*form)
    try:
        with open_new(path, PRIVATE) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise KeyFileError(f"{path.name} exists; a key is never overwritten") from error
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from error


def read_private(path: Path, passphrase: Passphrase = stored_passphrase) -> Any:
    """Read the private key of a file."""
    content, secret = _read(path), None
    if salt := _SALT.match(content):
        secret = stretched(passphrase(path), bytes.fromhex(salt[1].decode()))
    unsupported = require("cryptography.exceptions", "study").UnsupportedAlgorithm
    try:
        return _formats().load_pem_private_key(content, password=secret)
    except (ValueError, TypeError, unsupported) as error:
        if salt is not None:
            raise KeyFileError(f"that is not the passphrase of {path.name}") from error
        raise KeyFileError(f"{path.name} is not a private key of predbayes") from error


def write_public(path: Path, keys: Mapping[str, str], owner: str = "") -> None:
    """Write public keys by kind, to be handed out, and whose they are."""
    lines = [f"predbayes-{kind} {key}\n" for kind, key in keys.items()]
    lines += [f"# {owner}\n"] if owner else []
    try:
        write_bytes(path, "".join(lines).encode())
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from error


def read_public(path: Path, kinds: Sequence[str]) -> list[str]:
    """Read the public keys of these kinds, in this order; any other file is refused."""
    text = "\n".join(line for line in _lines(path) if not line.startswith("#"))
    if "PRIVATE KEY" in text:
        raise KeyFileError(
            f"{path.name} is a private key, which stays with its owner; give the file .pub"
        )
    found = [_LINE.fullmatch(line) for line in text.splitlines()]
    keys = [match.groups() for match in found if match is not None]
    if len(keys) < len(found) or [kind for kind, _ in keys] != list(kinds):
        raise KeyFileError(f"{path.name} is not a public key of predbayes for this use")
    return [key for _, key in keys]


def owner_of(path: Path) -> str:
    """Return whose a file of public keys says that it is; empty if it does not say."""
    return next((line[1:].strip() for line in _lines(path) if line.startswith("#")), "")


def _lines(path: Path) -> list[str]:
    return _read(path).decode("utf-8", errors="replace").strip().splitlines()


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from error


def _formats() -> Any:
    return require("cryptography.hazmat.primitives.serialization", "study")
