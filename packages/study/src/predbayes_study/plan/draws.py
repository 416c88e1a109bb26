"""Randomness at a site: from the plan's seed and all else of the plan.

Two plans that differ in one reference row must not draw the same. Rows near to that one are held
out first, so equal predictions under both plans would say that no such row is at the site.
"""

from __future__ import annotations

import torch

from predbayes.seeding import generator
from predbayes_study.plan.schema import Plan


def site_rng(plan: Plan, *path: str) -> torch.Generator:
    """Return the generator of one draw at a site."""
    return generator(plan.seed, plan.digest(), *path)
