"""A network of the consortium's own: named in the plan, never carried by it.

A plan may name a function, `package.module:function`, that builds the network from the numbers of
its inputs and outputs. The package must be installed wherever the plan is used, by whoever may
install software there; a frozen plan has the digest of the module's source, so that every party
runs the same code, and nobody runs code that came with a file.

Installed is what a distribution has, among its files or, if it is an editable one, in the folders
that it puts on the path. Code that only happens to be importable, because it lies in the working
directory or came in the bundle of a Flower app, is not. Where a bundle has a copy of an installed
package it is the copy that Python finds first; it is run only if it is the plan's source, too.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from torch import nn

from predbayes.errors import PlanError
from predbayes.study.plan.schema import Plan


def load_module(plan: Plan) -> Callable[[int, int], nn.Module]:
    """Import the function that a plan names; refuse a source other than the agreed one."""
    reference = plan.model.module
    digest = source_digest(reference)
    if plan.frozen is not None and digest != plan.frozen.module_digest:
        raise PlanError(
            f"{reference.partition(':')[0]} is here, but its source is not that of the plan: "
            f"{source_path(reference)}; install the agreed version"
        )
    build: Callable[[int, int], nn.Module] = load_object(reference)
    return build


def load_object(reference: str) -> Any:
    """Import what `package.module:name` names in an installed package."""
    source_path(reference)
    module, _, name = reference.partition(":")
    named = getattr(importlib.import_module(module), name, None)
    if not callable(named):
        raise PlanError(f"{module} has nothing called {name!r} that can be called")
    return named


def source_digest(reference: str) -> str:
    """Return the SHA-256 of the file that a module is in, line endings apart."""
    return hashlib.sha256(source_path(reference).read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def source_path(reference: str) -> Path:
    """Find the module of `package.module:function`, if its package is installed."""
    module = reference.partition(":")[0]
    package = module.partition(".")[0]
    if not _is_installed(package):
        raise PlanError(
            f"{reference} is asked for, and the package {package} is not installed here"
        )
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise PlanError(f"{reference} is asked for, and there is no module {module} in {package}")
    return Path(spec.origin)


def _is_installed(package: str) -> bool:
    for distribution in importlib.metadata.distributions():
        for folder in _edited_in(distribution):
            if (folder / package / "__init__.py").is_file() or (folder / f"{package}.py").is_file():
                return True
    return package in importlib.metadata.packages_distributions()


def _edited_in(distribution: Distribution) -> Iterator[Path]:
    """The folders that an editable installation puts on the path; it lists no modules."""
    with suppress(OSError, ValueError):  # of a distribution that was removed by half
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
        if not told.get("dir_info", {}).get("editable", False):
            return
        for file in distribution.files or ():
            if file.suffix == ".pth":
                for line in map(str.strip, file.read_text().splitlines()):
                    if line and not line.startswith(("#", "import ")):  # which is code
                        yield Path(str(distribution.locate_file(line)))
