"""A pool in words, for summaries and for whoever watches a run."""

from __future__ import annotations

import math
from typing import Any

from predbayes.pools.terms import TermPool


def name_of(method: Any) -> str:
    """Return the name of a method or a pool, with that of what it wraps."""
    name = method.name if isinstance(method, TermPool) else type(method).__name__
    inner = getattr(method, "method", None) or getattr(method, "pool", None)
    return name if inner is None else f"{name}({name_of(inner)})"


def pool_of(state: Any) -> Any:
    """Return the state of the pool, also where it has been distilled."""
    return getattr(state, "teacher", state)


def describe_pool(pool: Any) -> str:
    """Say in words what was tuned or chosen."""
    choice, tuned = getattr(pool, "choice", None), getattr(pool, "tuned", None)
    if choice is not None and not choice.scores:
        return f"{choice.name}: {choice.reason}"
    if choice is not None:  # without its NLL, which is in the units of the network
        top = max(score.complexity for score in choice.scores if score.share)
        weights = f"with {top.readable}" if top else "untuned"
        return f"{choice.name}: chosen by cross-validation, {weights}"
    beta = getattr(pool, "beta", math.nan)
    if tuned is not None and "beta" in tuned.profiles:
        low, high = tuned.profiles["beta"].interval
        return f"beta {beta:.3f}, 95 % interval {low:.3f} to {high:.3f}"
    if math.isfinite(beta):
        return {0.0: "mixture", 1.0: "product"}.get(beta, f"beta {beta:.3f}")
    return f"site {pool.site}" if getattr(pool, "site", "") else ""
