"""Uploads in Flower messages: packed at a node, and read with suspicion at the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from predbayes.errors import UploadError
from predbayes.exchange.header import Signature, from_metadata, to_metadata
from predbayes.exchange.upload import Upload
from predbayes.flower.wire import read_arrays, read_metadata, read_words, upload_record, words

Status = Literal["upload", "not approved", "awaiting release", "no such plan", "failed"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node says when it is asked for its upload."""

    status: Status
    upload: Upload | None = None
    signature: Signature | None = None
    reason: str = ""


def pack_answer(answer: Answer) -> Any:
    """Pack a node's answer into a record."""
    if answer.upload is None:
        return words(status=answer.status, reason=answer.reason)
    upload = answer.upload
    return upload_record(
        to_metadata(upload.info, answer.signature),
        {name: array.cpu().contiguous().numpy() for name, array in upload.arrays.items()},
    )


def unpack_answer(content: Any) -> Answer:
    """Read an answer from a record; a malformed one is refused in one line."""
    told = read_words(content)
    status = told.get("status")
    if status != "upload":
        known = status if status in ("not approved", "awaiting release", "no such plan") else None
        return Answer(known or "failed", reason=str(told.get("reason", ""))[:200])
    info, signature = from_metadata(read_metadata(content), "a node's answer")
    try:
        arrays = {name: torch.from_numpy(array) for name, array in read_arrays(content).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise UploadError("a node's answer is not an upload") from error
    return Answer("upload", Upload(info, arrays), signature)
