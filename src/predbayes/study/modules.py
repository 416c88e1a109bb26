"""A network of the consortium's own: named in the plan, never carried by it.

A plan may name a function, `package.module:function`, that builds the network from the numbers of
its inputs and outputs. The package must be installed wherever the plan is used, by whoever may
install software there; a frozen plan has the digest of the module's source, so that every party
runs the same code, and nobody runs code that came with a file.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from predbayes.errors import PlanError
from predbayes.study.plan import Plan


def load_module(plan: Plan) -> Callable[[int, int], nn.Module]:
    """The function that a plan names; another source than was agreed on is refused."""
    module = plan.model.module.partition(":")[0]
    digest = source_digest(plan.model.module)
    if plan.frozen is not None and digest != plan.frozen.module_digest:
        raise PlanError(
            f"{module} is installed here, but its source is not that of the plan: install the "
            "agreed version"
        )
    build: Callable[[int, int], nn.Module] = load_object(plan.model.module)
    return build


def load_object(reference: str) -> Any:
    """What `package.module:name` names in an installed package."""
    source_path(reference)
    module, _, name = reference.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found):
        raise PlanError(f"{module} has nothing called {name!r} that can be called")
    return found


def source_digest(reference: str) -> str:
    """SHA-256 of the file that a module is in, line endings apart."""
    return hashlib.sha256(source_path(reference).read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def source_path(reference: str) -> Path:
    """Where the module of `package.module:function` is, if its package is installed."""
    module = reference.partition(":")[0]
    package = module.partition(".")[0]
    if package not in importlib.metadata.packages_distributions():
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
