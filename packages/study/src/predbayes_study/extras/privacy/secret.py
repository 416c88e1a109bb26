"""The site's secret, of which all noise and all lots of a private study are drawn.

A plan's seed is known to everybody, so noise that is drawn from it can be taken off again. Under a
plan that promises differential privacy (`[privacy]`) nothing at a site is drawn from it:

    NAME.secret    32 random bytes beside the site's key, made when first needed, readable by its
                   owner alone. It is in no kit, no upload and no log
    coins          who is held out: a coin for each person, by the secret, plan, site, rows and the
                   number of the mechanism. So each release has coins that are independent of its
                   rows and of every other release
    release        the key of the noise: by the secret, plan, site, rows and the learner's settings,
                   among them the number of the mechanism

The same release again is the same file, bit by bit. Any change, of one row, of the order of rows,
of the plan or of a setting, has coins and noise that are independent of it: the difference of two
uploads is never without noise, and the second one is a further release, which the book of budgets
counts (`extras.privacy.budget`). So two files of one plan tell whether their rows are the same, and
no promise covers that: equal files say that nothing changed, others that something did. Whoever
loses the secret gets another one, and the same plan and rows are then a further release, too.
Whoever has the secret and the rows can tell what noise was added: keep it as the key is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

from predbayes.errors import KeyFileError
from predbayes.files import PRIVATE, open_new

SUFFIX = ".secret"
NUM_BYTES = 32


def read_secret(path: Path) -> bytes:
    """Read a secret; if there is no file, make one that only its owner may read."""
    try:
        _make(path)
        content = bytes.fromhex(path.read_text("ascii").strip())
    except ValueError:
        content = b""
    except OSError as error:
        raise KeyFileError(f"cannot read or write {path}: {error.strerror}") from error
    if len(content) != NUM_BYTES:
        raise KeyFileError(
            f"{path.name} is not a secret of predbayes; bring it back from a backup, or remove it: "
            "with another one the same upload is a further release"
        )
    return content


def _make(path: Path) -> None:
    try:
        new = open_new(path, PRIVATE)
    except FileExistsError:
        return
    with new as file:
        file.write(secrets.token_hex(NUM_BYTES).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def derived(secret: bytes, *path: str) -> bytes:
    """Return the key of a purpose: of it, nothing follows about the secret or any other key.

    Examples:
        >>> derived(b"s" * 32, "coins", "a") == derived(b"s" * 32, "coins", "b")
        False
    """
    return hmac.new(secret, json.dumps(path).encode(), hashlib.sha256).digest()


def release_id(key: bytes) -> str:
    """Return what a release is known by in the book of budgets: it tells nothing of its noise."""
    return hashlib.sha256(b"release" + key).hexdigest()
