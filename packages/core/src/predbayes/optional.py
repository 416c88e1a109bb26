"""Packages that come with an extra: imported when they are used, and missed in one line."""

from __future__ import annotations

import importlib
from typing import Any

from predbayes.errors import MissingPackageError


def install_command(extra: str) -> str:
    """Return how an extra is installed: from a clone, as the package is on no index yet."""
    return f"pip install '.[{extra}]' in a clone of predbayes"


def require(module: str, extra: str) -> Any:
    """A module of an optional package.

    Args:
        module: Such as ``"sklearn.base"``.
        extra: The extra of predbayes that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(
            f"this needs the package {package}: {install_command(extra)}"
        ) from error
