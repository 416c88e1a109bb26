"""Files that count, as the ledger tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from predbayes.exchange.strict import RowCount

RESULT_FILE = "result.json"
WEIGHTS_FILE = "model.safetensors"
"""The weights in the folder of a model, by whose digest evaluations name it."""

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A file of a site that counts."""

    site: str
    digest: Digest  # of its content
    file_digest: Digest  # of its bytes
    num_bytes: int
    num_rows: RowCount
    at: str
    number: int  # of the entry
    key: str  # with which the site was admitted then; empty if it was not

    @property
    def rows_in_words(self) -> str:
        """The rows that it is of."""
        return f"{self.num_rows:,} rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedUpload(Accepted):
    """What a site sent of its rows."""

    kind: str
    agreed_rows: RowCount | None = None  # at admission; None where the site's word is all there is
    privacy: str = ""  # what it promises to people; the number of rows has noise then

    @property
    def rows_in_words(self) -> str:
        """The rows, and whether anybody but the site vouches for them."""
        if self.privacy:
            return f"about {self.num_rows:,} people, {self.privacy}"
        agreed = "stated, not" if self.agreed_rows is None else f"{self.agreed_rows:,}"
        return f"{self.num_rows:,} rows ({agreed} agreed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedEvaluation(Accepted):
    """A site's latest word on one model."""

    model: str  # digest of the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedAttachment(Accepted):
    """A site's latest file of a kind that an extra adds."""

    kind: str

    @property
    def rows_in_words(self) -> str:
        """The rows, which such files may state in steps."""
        return f"a {self.kind} of at least {self.num_rows:,} rows"
