"""What travels in Flower messages: an upload as named arrays, and short words beside it.

    hello    query.hello    server asks; a node answers who it is and whether it approved the plan,
                            with its upload at once if that is ready and small
    upload   train.upload   server asks for a plan's upload; a node answers with it, or why not
    ack      query.ack      server says that the upload is in; a node may leave

An upload is the same named arrays and the same metadata as on disk, an `ArrayRecord` and a
`ConfigRecord`, with the site's own signature: what a study takes in does not depend on how it came.
Flower's key says which node spoke, the site's key what the site said. If the plan says that uploads
are encrypted, the sealed file travels as it is, as one array of bytes.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from predbayes.errors import UploadError, is_line
from predbayes.exchange.header import Header, to_metadata
from predbayes.optional import require
from predbayes.text import printable
from predbayes_study.trust.sealed import MAGIC

_log = logging.getLogger(__name__)

_ARRAYS, _METADATA, _WORDS, _SEALED = "arrays", "metadata", "words", "sealed"
_BFLOAT16 = "bfloat16"

LACKS_INPUTS = "lacks inputs"
"""What a node says that has the reference inputs no more, and was not sent them."""


def words(**fields: str | int) -> Any:
    """Make a record of short values."""
    app = require("flwr.app", "flower")
    return app.RecordDict({_WORDS: app.ConfigRecord(dict(fields))})


def read_words(content: Any) -> dict[str, Any]:
    """Return the short values of a record; none if it has no such part."""
    return dict((content or {}).get(_WORDS) or {})


def upload_record(
    path: Path, allowed: Callable[[str], object] | None = None, **told: str | int
) -> Any:
    """Return a signed file as it travels, with further words; the study checks it.

    Args:
        path: The file, which is read once.
        allowed: Refuses what may not leave, by the digest of what was read.
        told: The words.
    """
    app, record = require("flwr.app", "flower"), words(status="upload", **told)
    content = path.read_bytes()
    if allowed is not None:
        allowed(hashlib.sha256(content).hexdigest())
    if content.startswith(MAGIC):
        record[_ARRAYS] = app.ArrayRecord({_SEALED: app.Array(np.frombuffer(content, np.uint8))})
        return record
    header = Header.of(content, printable(path.name))
    # Not torch where numpy will do: it takes seconds to import, for each message.
    lacks = any(spec.dtype == _BFLOAT16 for spec in header.arrays.values())
    load = importlib.import_module("safetensors.torch" if lacks else "safetensors.numpy").load
    arrays = {name: to_array(array) for name, array in load(content).items()}
    record[_METADATA] = app.ConfigRecord(to_metadata(header.info, header.signature))
    record[_ARRAYS] = app.ArrayRecord(arrays)
    return record


def to_array(values: Any) -> Any:
    """Return a tensor or a numpy array as it travels, with all its bits.

    Numpy lacks bfloat16: its bits travel as those of whole numbers, under the type's own name.
    """
    array = require("flwr.app", "flower").Array
    if isinstance(values, np.ndarray):
        return array(values)
    values = values.detach().cpu().contiguous()
    if str(values.dtype) != f"torch.{_BFLOAT16}":
        return array(values.numpy())
    made = array(values.view(require("torch", "flower").int16).numpy())
    made.dtype = _BFLOAT16
    return made


def to_tensor(array: Any) -> Any:
    """Return what travelled as a tensor, in the type in which it was sent."""
    torch = require("torch", "flower")
    values = torch.from_numpy(np.array(array.numpy()))
    bits = array.dtype == _BFLOAT16 and values.dtype == torch.int16
    return values.view(torch.bfloat16) if bits else values


def read_upload(content: Any, most_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and the arrays of a record as they came, whoever made it.

    Args:
        content: The record.
        most_bytes: More bytes in its arrays are refused before they are read.
    """
    arrays = dict(content.get(_ARRAYS) or {})
    if sum(len(array.data) for array in arrays.values()) > most_bytes:
        raise UploadError("its answer is larger than any upload of this plan")
    return dict(content.get(_METADATA) or {}), arrays


def sealed_content(arrays: Mapping[str, Any]) -> bytes | None:
    """Return the bytes of a sealed file that came as an array; None if what came is none."""
    if arrays.keys() != {_SEALED}:
        return None
    content = arrays[_SEALED].numpy()
    return content.tobytes() if content.dtype == np.uint8 and content.ndim == 1 else None


def replying(answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Reply with an answer, or that there is none: why is in the node's own log alone.

    The kind of an error would reveal what a site found in its rows.
    """

    def reply(message: Any, context: Any) -> Any:
        try:
            content = answer(message, context)
        except Exception as error:
            _log.error("%s", error, exc_info=not is_line(error))
            content = words(status="failed")
        return require("flwr.app", "flower").Message(content, reply_to=message)

    return reply
