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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from predbayes.errors import UploadError
from predbayes.optional import require

_ARRAYS, _METADATA, _WORDS = "arrays", "metadata", "words"


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a node is."""

    site: str
    version: str
    approved: tuple[str, ...]  # digests of plans


def words(**fields: str | int | list[str]) -> Any:
    """Make a record of short values."""
    app = require("flwr.app", "flower")
    return app.RecordDict({_WORDS: app.ConfigRecord(dict(fields))})


def read_words(content: Any) -> dict[str, Any]:
    """Return the short values of a record; none if it has no such part."""
    return dict((content or {}).get(_WORDS) or {})


def read_metadata(content: Any) -> dict[str, Any]:
    """Return an upload's metadata as it came; empty if there is none."""
    return dict(content.get(_METADATA) or {})


def upload_record(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Return an upload as a record: the metadata of its file, and its arrays."""
    app = require("flwr.app", "flower")
    record = words(status="upload")
    record[_METADATA] = app.ConfigRecord(dict(metadata))
    record[_ARRAYS] = app.ArrayRecord({name: app.Array(array) for name, array in arrays.items()})
    return record


def read_arrays(content: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a record, as they came."""
    return {
        str(name): np.array(array.numpy()) for name, array in (content.get(_ARRAYS) or {}).items()
    }


def pack_hello(hello: Hello, upload: Any = None) -> Any:
    """Pack a node's introduction into a record, with its upload if there is one."""
    record = words() if upload is None else upload
    record[_WORDS].update(
        {"site": hello.site, "version": hello.version, "approved": list(hello.approved)}
    )
    return record


def brings_upload(content: Any) -> bool:
    """Return whether an upload came with an answer."""
    return read_words(content).get("status") == "upload"


def unpack_hello(content: Any) -> Hello:
    """Read an introduction from a record; anything else is refused."""
    told = read_words(content)
    site, version, approved = (told.get(name) for name in ("site", "version", "approved"))
    if not isinstance(site, str) or not isinstance(version, str):
        raise UploadError("a node did not say which site it is")
    digests = approved if isinstance(approved, list) else []
    return Hello(site, version, tuple(str(digest) for digest in digests))
