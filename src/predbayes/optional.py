"""Packages that come with an extra: imported when they are used, and missed in one line."""

from __future__ import annotations

import importlib
from typing import Any

from predbayes.errors import MissingPackageError


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
            f"this needs the package {package}: pip install 'predbayes[{extra}]'"
        ) from error
