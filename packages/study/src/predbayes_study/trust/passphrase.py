"""Passphrases of private keys: where they come from, and what they are stretched to.

`cryptography` encrypts a key with 2,048 rounds of PBKDF2 and has no option for more, which makes
guessing cheap for anyone who has stolen a laptop. So the passphrase is stretched with scrypt first,
and the hexadecimal digits of the result are the passphrase that `cryptography` gets. One guess
costs 128 MB and a good half second of a processor. OpenSSH's format would need the package bcrypt,
whose guesses need 4 kB, so that graphics cards make them cheaply.

A passphrase comes from the environment (`PREDBAYES_PASSPHRASE`), from a file that it names
(`PREDBAYES_PASSPHRASE_FILE`, such as a credential of systemd), or from the person at the terminal.
"""

from __future__ import annotations

import hashlib
import os
import sys
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from predbayes.errors import KeyFileError

VARIABLE, FILE_VARIABLE = "PREDBAYES_PASSPHRASE", "PREDBAYES_PASSPHRASE_FILE"
LEAST_CHARACTERS = 12
_MAX_BYTES = 1024
_COST, _BLOCK, _LANES = 2**17, 8, 1  # of scrypt: 128 MB

asking: list[Callable[[Path], str]] = []
"""How to ask whoever sits there; the command line puts its way here."""


def stored_passphrase(path: Path) -> bytes:
    """Return the passphrase of a key: stored for programs, or typed; refuse where there is none."""
    found = passphrase_in_store()
    if found is None and asking and sys.stdin.isatty():
        return _asked(path)
    if found is None:
        raise KeyFileError(
            f"{path.name} has a passphrase: give it in {VARIABLE}, or in a file that "
            f"{FILE_VARIABLE} names"
        )
    return found


@lru_cache
def _asked(path: Path) -> bytes:
    """Ask once for each key, however often a command reads it."""
    return encode_passphrase(asking[0](path))


def passphrase_in_store() -> bytes | None:
    """Return the passphrase that the environment or its file has, if there is one."""
    if VARIABLE in os.environ:
        return encode_passphrase(os.environ[VARIABLE])
    if not (name := os.environ.get(FILE_VARIABLE)):
        return None
    try:
        with open(name, "rb") as file:
            return encode_passphrase(file.read(_MAX_BYTES).decode().rstrip("\r\n"))
    except (OSError, ValueError) as error:
        raise KeyFileError(f"cannot read the passphrase that {FILE_VARIABLE} names") from error


def encode_passphrase(text: str) -> bytes:
    """Return a passphrase as bytes, the same from every keyboard."""
    return unicodedata.normalize("NFC", text).encode(errors="surrogateescape")


def require_long(passphrase: bytes) -> bytes:
    """Refuse a new passphrase that is soon guessed."""
    if len(passphrase.decode(errors="replace")) < LEAST_CHARACTERS:
        raise KeyFileError(f"a passphrase has at least {LEAST_CHARACTERS} characters")
    return passphrase


def stretched(passphrase: bytes, salt: bytes) -> bytes:
    """Return what encrypts the keys of a file: as costly to guess as scrypt makes it."""
    key = hashlib.scrypt(passphrase, salt=salt, n=_COST, r=_BLOCK, p=_LANES, dklen=32, maxmem=2**28)
    return key.hex().encode()
