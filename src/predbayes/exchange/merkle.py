"""One digest for many records, and a short proof that a record is among them.

The tree is that of RFC 6962: a leaf is SHA-256(0, record), a node SHA-256(1, left, right), and a
node without a neighbour moves up as it is. The two first bytes differ, so no node passes for a
record. The path of a record has one digest for each level, about log2 of their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def merkle_root(records: Sequence[bytes]) -> str:
    """Return the digest of records in their order.

    Examples:
        >>> merkle_root([b"one"]) == merkle_root([b"one", b"two"])
        False
    """
    return _levels(records)[-1][0].hex()


def merkle_path(records: Sequence[bytes], place: int) -> tuple[str, ...]:
    """Return the neighbours on the way from a record to the root, from below."""
    path = []
    for level in _levels(records)[:-1]:
        beside = place ^ 1
        if beside < len(level):
            path.append(level[beside].hex())
        place //= 2
    return tuple(path)


def root_of(record: bytes, place: int, count: int, path: Sequence[str]) -> str:
    """Return the root that a record has by its path; empty if no such tree has such a path.

    Args:
        record: The record.
        place: How many are before it.
        count: How many there are.
        path: As `merkle_path` gave it.
    """
    if not 0 <= place < count:
        return ""
    node, rest = _leaf(record), [bytes.fromhex(digest) for digest in path]
    while count > 1:
        if place ^ 1 < count:
            if not rest:
                return ""
            beside = rest.pop(0)
            node = _node(beside, node) if place % 2 else _node(node, beside)
        place, count = place // 2, (count + 1) // 2
    return "" if rest else node.hex()


def _levels(records: Sequence[bytes]) -> list[list[bytes]]:
    """All nodes, from the leaves to the root."""
    levels = [[_leaf(record) for record in records]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = zip(below[::2], below[1::2], strict=False)
        levels.append([_node(*pair) for pair in pairs] + below[len(below) & ~1 :])
    return levels


def _leaf(record: bytes) -> bytes:
    return hashlib.sha256(b"\0" + record).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
