"""What travels in Flower messages: an upload as named arrays, and short words beside it.

    hello    query.hello    server asks; a node answers who it is and which plans it approved, with
                            its upload at once if that is ready and small
    upload   train.upload   server asks for a plan's upload; a node answers with it, or why not
    ack      query.ack      server says that the upload is in; a node may leave

An upload is the same named arrays and the same metadata as on disk, an `ArrayRecord` and a
`ConfigRecord`, with the site's own signature: what a study takes in does not depend on how it came.
Flower's key says which node spoke, the site's key what the site said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError

from predbayes.errors import UploadError
from predbayes.exchange.upload import Signature, Upload, UploadInfo
from predbayes.optional import require

_ARRAYS, _WORDS = "arrays", "words"

Status = Literal["upload", "not approved", "awaiting release", "no such plan", "failed"]


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a node is."""

    site: str
    version: str
    approved: tuple[str, ...]  # digests of plans


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node says when it is asked for its upload."""

    status: Status
    upload: Upload | None = None
    signature: Signature | None = None
    reason: str = ""


def words(**fields: str | int | list[str]) -> Any:
    """A record of short values."""
    app = require("flwr.app", "flower")
    return app.RecordDict({_WORDS: app.ConfigRecord(dict(fields))})


def read_words(content: Any) -> dict[str, Any]:
    """The short values of a record; none if it has no such part."""
    found = content.get(_WORDS) if content is not None else None
    return {} if found is None else dict(found)


def pack_hello(hello: Hello, ready: Answer | None = None) -> Any:
    """A node's introduction as a record, with its upload if that is ready."""
    record = words() if ready is None else pack_answer(ready)
    record[_WORDS].update(
        {"site": hello.site, "version": hello.version, "approved": list(hello.approved)}
    )
    return record


def brings_upload(content: Any) -> bool:
    """Whether an introduction has an upload with it."""
    return read_words(content).get("status") == "upload"


def unpack_hello(content: Any) -> Hello:
    """An introduction from a record; anything else is refused."""
    told = read_words(content)
    site, version, approved = (told.get(name) for name in ("site", "version", "approved"))
    if not isinstance(site, str) or not isinstance(version, str):
        raise UploadError("a node did not say which site it is")
    digests = approved if isinstance(approved, list) else []
    return Hello(site, version, tuple(str(digest) for digest in digests))


def pack_answer(answer: Answer) -> Any:
    """A node's answer as a record."""
    if answer.upload is None:
        return words(status=answer.status, reason=answer.reason)
    app = require("flwr.app", "flower")
    upload, signature = answer.upload, answer.signature
    record = words(
        status="upload",
        info=upload.info.model_dump_json(),
        signature="" if signature is None else signature.model_dump_json(),
    )
    arrays = {
        name: app.Array(array.cpu().contiguous().numpy()) for name, array in upload.arrays.items()
    }
    record[_ARRAYS] = app.ArrayRecord(arrays)
    return record


def unpack_answer(content: Any) -> Answer:
    """An answer from a record; a malformed one is refused in one line."""
    told = read_words(content)
    status = told.get("status")
    if status != "upload":
        known = status if status in ("not approved", "awaiting release", "no such plan") else None
        return Answer(known or "failed", reason=str(told.get("reason", ""))[:200])
    try:
        info = UploadInfo.model_validate_json(str(told.get("info", "")))
        signed = str(told.get("signature", ""))
        signature = Signature.model_validate_json(signed) if signed else None
        found = content.get(_ARRAYS)
        arrays = {
            str(name): torch.from_numpy(np.array(array.numpy()))
            for name, array in (found or {}).items()
        }
    except (ValidationError, ValueError, TypeError, AttributeError) as error:
        raise UploadError("a node's answer is not an upload") from error
    return Answer("upload", Upload(info, arrays), signature)
