"""What uploads of a study say beside what the core says, and who signed them.

The core carries `UploadInfo.details`, plain data by name, and reads nothing of them. A study reads
them by the schema `Details` and refuses what the schema does not have:

    seen          the ledger's head that the site last saw: it names the study, and makes the site a
                  witness
    evaluation    of kind `evaluation`: how well a model predicts the site's held-out rows
    seals         of kind `masked`: a mask's seed for each key holder
    privacy       the differential privacy of all that the upload tells
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from predbayes.errors import KeyFileError, UploadError
from predbayes.exchange.header import Header, Signature, UploadInfo, first_problem
from predbayes.exchange.strict import Amount, Finite, RowCount, Sparse, Strict
from predbayes.exchange.upload import Upload
from predbayes.learning.guarantee import Guarantee
from predbayes_study.trust.sealed import MAGIC, is_sealed
from predbayes_study.trust.signing import PublicKey, SigningKey


class Sums(Strict):
    """Sums of one metric over rows; those of several sites add up to those of all their rows."""

    total: Finite
    # Of the values, for an interval; a share has none, since they are its total.
    squares: Sparse[Amount | None] = None


class BinSums(Strict):
    """A reliability diagram as sums, by bins of equal width of the confidence."""

    rows: tuple[RowCount, ...]
    hits: tuple[RowCount, ...]
    confidence: tuple[Amount, ...]


class Weighted(Strict):
    """An estimate of a site and its precision, with which it enters a mean over sites."""

    value: Finite
    weight: Amount


class RiskSums(Strict):
    """Events and other rows counted in bins of the risk of one class."""

    edges: tuple[Amount, ...]  # between bins, in ascending order
    events: tuple[RowCount, ...]
    others: tuple[RowCount, ...]
    expected: tuple[Amount, ...]  # sums of risks
    slope: Sparse[Weighted | None] = None
    intercept: Sparse[Weighted | None] = None


class GroupSums(Strict):
    """Sums over one group of rows: of an event its number and risks, otherwise of the NLL."""

    column: str
    name: str
    rows: RowCount
    events: Sparse[RowCount | None] = None
    expected: Sparse[Amount | None] = None
    nll: Sparse[Sums | None] = None


class ScoreCounts(Strict):
    """Rows counted in bins of how strange their targets are to the model."""

    edges: Annotated[tuple[Amount, ...], Field(max_length=1000)]  # between bins, ascending
    counts: Annotated[tuple[RowCount, ...], Field(max_length=1001)]


class Evaluation(Strict):
    """How well a model predicts a site's held-out rows, as sums that tell of no single row."""

    model: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # digest of its weights
    metrics: Annotated[dict[str, Sums], Field(max_length=16)]
    bins: BinSums | None = None  # None where some bin has too few rows
    # Of the event, or of each class; None where some count would be small.
    risks: Sparse[Annotated[tuple[RiskSums, ...], Field(max_length=20)] | None] = None
    # Of the plan's groups of rows that may be told of.
    groups: Sparse[Annotated[tuple[GroupSums, ...], Field(max_length=200)] | None] = None
    # None for times to an event.
    scores: Sparse[ScoreCounts | None] = None
    # Where no reference row has a label: how sure the model should be (`tasks.echo`).
    echo: Sparse[Annotated[tuple[Finite, ...], Field(max_length=128)] | None] = None


class Seal(Strict):
    """The seed of a mask, sealed to a key holder."""

    holder: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # the `key_id` of whose key it is for
    sealed: Annotated[str, Field(pattern="^[0-9a-f]{2336}$")]  # 32 bytes, encrypted
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]  # the site's


class Details(Strict):
    """All that an upload of a study may say in its details."""

    seen: Annotated[str, Field(pattern="^$|^[0-9a-f]{64}$")] = ""
    evaluation: Evaluation | None = None
    seals: Annotated[tuple[Seal, ...], Field(max_length=16)] = ()
    privacy: Guarantee | None = None

    @classmethod
    def of(cls, info: UploadInfo) -> Details:
        """Read what an upload says; refuse what no upload of a study says."""
        try:
            details = cls.model_validate_json(json.dumps(info.details))
        except ValidationError as error:
            raise UploadError(first_problem(error)) from error
        if details.privacy is not None and info.class_rows is not None:
            raise UploadError("an upload with a promise of privacy counts no classes")
        if (info.kind == "masked") != bool(details.seals):
            raise UploadError("seals: required for kind masked, and allowed nowhere else")
        if (info.kind == "evaluation") != (details.evaluation is not None):
            raise UploadError("evaluation: required for kind evaluation, and allowed nowhere else")
        return details


def read_header(source: Path | bytes) -> Header:
    """Read what a file, or its content, says of itself; refuse one that is still encrypted."""
    if source.startswith(MAGIC) if isinstance(source, bytes) else _is_sealed(source):
        raise UploadError("it is encrypted: encrypted twice, or for another study")
    return Header.of(source) if isinstance(source, bytes) else Header.read(source)


def _is_sealed(path: Path) -> bool:
    try:
        return is_sealed(path)
    except OSError:
        return False  # reading its header will say why


def seen_by(info: UploadInfo) -> str:
    """Return the ledger's head that the site has seen; "" if it says none."""
    return Details.of(info).seen


def promise_of(info: UploadInfo) -> Guarantee | None:
    """Return the differential privacy that an upload promises."""
    return Details.of(info).privacy


def evaluation_of(info: UploadInfo) -> Evaluation:
    """Return the sums of an upload of kind `evaluation`."""
    evaluation = Details.of(info).evaluation
    if evaluation is None:
        raise UploadError(f"site {info.site!r} sent {info.kind}, not an evaluation")
    return evaluation


def with_evaluation(info: UploadInfo, evaluation: Evaluation) -> UploadInfo:
    """Return the metadata with these sums."""
    details = info.details | {"evaluation": evaluation.model_dump(mode="json")}
    return info.model_copy(update={"details": details})


def promising(upload: Upload, guarantee: Guarantee) -> Upload:
    """Return the same upload, with the differential privacy that it was made under."""
    return upload.with_details(privacy=dataclasses.asdict(guarantee))


def having_seen(upload: Upload, head: str) -> Upload:
    """Return the same upload of a site that has seen this head of the ledger; "" if none."""
    return upload.with_details(seen=head) if head else upload


def sign(upload: Upload, key: SigningKey) -> Signature:
    """Sign the digest of an upload."""
    signature = key.sign("upload", upload.digest().encode())
    return Signature(key=key.public.hex, signature=signature)


def save_signed(upload: Upload, path: str | Path, key: SigningKey) -> None:
    """Write an upload to one file, with a site's signature."""
    upload.save(path, sign(upload, key))


def verifies(signature: Signature, digest: str) -> bool:
    """Return whether a signature is its key's, of an upload with this digest."""
    try:
        return PublicKey(signature.key).verifies("upload", digest.encode(), signature.signature)
    except KeyFileError:
        return False  # no key at all


def is_signed_by(header: Header, key: str, digest: str) -> bool:
    """Return whether a key, as hexadecimal digits, signed an upload with this digest."""
    signature = header.signature
    return signature is not None and signature.key == key and verifies(signature, digest)
