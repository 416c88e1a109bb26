"""How many rows a sum of products of features must be of, so that it tells of none of them.

Who holds the sum and somebody's row computes the row's leverage. With N rows of F features that of
a row in the sum is z / (1 + z) where a like row outside has z, about F / N: the fewer rows there
are for each feature, the more it tells (`tests/study/attacks/test_moments.py`,
where an attacker who has many like rows of his own tells a little more).
"""

from __future__ import annotations

ENOUGH_ROWS = 20
"""Rows per feature from which on leverage tells members from others hardly better than chance."""
