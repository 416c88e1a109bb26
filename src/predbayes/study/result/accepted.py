"""An upload that counts, as the ledger tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class AcceptedUpload:
    """A file that counts."""

    site: str
    digest: str  # of its content
    file_digest: str  # of its bytes
    num_bytes: int
    num_rows: int
    kind: Literal["predictions", "weights"]
    at: str
