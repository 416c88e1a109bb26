"""Files that count, as the ledger tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A file of a site that counts."""

    site: str
    digest: str  # of its content
    file_digest: str  # of its bytes
    num_bytes: int
    num_rows: int
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedUpload(Accepted):
    """What a site sent of its rows."""

    kind: Literal["predictions", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedEvaluation(Accepted):
    """A site's latest word on one model."""

    model: str  # digest of the weights
