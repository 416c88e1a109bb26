"""Private keys under a passphrase: PKCS 8 with scrypt, as openssl and others read it.

`cryptography` writes such files with 2,048 rounds of PBKDF2 and lets nobody ask for more, which
makes guessing cheap for whoever has stolen a laptop. It reads them with scrypt, so the few bytes
around the encrypted key are written here.

A passphrase comes from the environment (`PREDBAYES_PASSPHRASE`), from a file that it names
(`PREDBAYES_PASSPHRASE_FILE`, such as a credential of systemd), or from whoever sits there.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import sys
import textwrap
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from predbayes.errors import KeyFileError
from predbayes.optional import require

VARIABLE, FILE_VARIABLE = "PREDBAYES_PASSPHRASE", "PREDBAYES_PASSPHRASE_FILE"
LEAST_CHARACTERS = 12
_MAX_BYTES = 1024
_COST, _BLOCK, _LANES = 2**14, 8, 5  # of scrypt: 16 MB, which is within openssl's own limit
_KEY_BYTES, _SALT_BYTES, _IV_BYTES = 32, 16, 16
_SEQUENCE, _INTEGER, _OCTETS = 0x30, 0x02, 0x04
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_SCRYPT = bytes.fromhex("06092b06010401da47040b")
_AES_256_CBC = bytes.fromhex("060960864801650304012a")


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


def encrypted_pem(plain: bytes, passphrase: bytes) -> bytes:
    """Return a PEM block of a PKCS 8 key that the passphrase opens."""
    salt, iv = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_IV_BYTES)
    key = hashlib.scrypt(
        passphrase, salt=salt, n=_COST, r=_BLOCK, p=_LANES, dklen=_KEY_BYTES, maxmem=2**26
    )
    costs = b"".join(_integer(number) for number in (_COST, _BLOCK, _LANES, _KEY_BYTES))
    derivation = _tagged(_SEQUENCE, _SCRYPT, _tagged(_SEQUENCE, _tagged(_OCTETS, salt), costs))
    cipher = _tagged(_SEQUENCE, _AES_256_CBC, _tagged(_OCTETS, iv))
    scheme = _tagged(_SEQUENCE, _PBES2, _tagged(_SEQUENCE, derivation, cipher))
    content = _tagged(_SEQUENCE, scheme, _tagged(_OCTETS, _encrypt(plain, key, iv)))
    lines = textwrap.wrap(base64.b64encode(content).decode(), 64)
    name = "ENCRYPTED PRIVATE KEY"
    return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----", ""]).encode()


def _encrypt(plain: bytes, key: bytes, iv: bytes) -> bytes:
    ciphers = require("cryptography.hazmat.primitives.ciphers", "study")
    padder = require("cryptography.hazmat.primitives.padding", "study").PKCS7(128).padder()
    encryptor: Any = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CBC(iv)).encryptor()
    padded: bytes = padder.update(plain) + padder.finalize()
    done: bytes = encryptor.update(padded) + encryptor.finalize()
    return done


def _tagged(tag: int, *parts: bytes) -> bytes:
    """Return DER of parts that are DER: tag, length, content."""
    content = b"".join(parts)
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x81, size])
    return bytes([tag]) + length + content


def _integer(number: int) -> bytes:
    return _tagged(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))
