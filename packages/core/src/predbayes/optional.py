"""Packages that come with an extra: imported when they are used, and missed in one line."""

from __future__ import annotations

import importlib
from typing import Any

from predbayes.errors import MissingPackageError

_BELOW = {"core": (), "study": ("core",), "flower": ("core", "study"), "lab": ("core",)}


def install_command(what: str) -> str:
    """Return how a distribution or an extra is installed: from a clone, as no index has it yet.

    Args:
        what: A folder of `packages`, such as ``"study"``, with an extra or without:
            ``"core[sklearn]"``.
    """
    folders = (*_BELOW[what.partition("[")[0]], what)
    places = " ".join(f"'./packages/{name}'" for name in folders)
    return f"pip install {places} in a clone of predbayes"


def require(module: str, what: str) -> Any:
    """A module of an optional package.

    Args:
        module: Such as ``"sklearn.base"``.
        what: What installs it, as `install_command` has it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(
            f"this needs the package {package}: {install_command(what)}"
        ) from error
