"""What the coordinator says of files, also in the form that other tools read.

An in-toto Statement (v1) names files by their SHA-256 and says something of them. A DSSE envelope
has it in base64, with an Ed25519 signature of

    "DSSEv1" SP length SP payload type SP length SP payload

No statement of predbayes begins so (`predbayes_study.trust.signing`): the signature of an envelope
is that of nothing else, and the other way round.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from predbayes_study.trust.signing import SigningKey

_PAYLOAD_TYPE = "application/vnd.in-toto+json"


def in_toto(
    key: SigningKey, kind: str, files: Mapping[str, str], predicate: Mapping[str, Any]
) -> bytes:
    """Return a signed line: of which files, what kind of statement (a URI), what it says."""
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": n, "digest": {"sha256": d}} for n, d in sorted(files.items())],
        "predicateType": kind,
        "predicate": dict(predicate),
    }
    payload = json.dumps(statement, separators=(",", ":")).encode()
    signed = f"DSSEv1 {len(_PAYLOAD_TYPE)} {_PAYLOAD_TYPE} {len(payload)} ".encode() + payload
    signature = base64.b64encode(key.private.sign(signed)).decode()
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": _PAYLOAD_TYPE,
        "signatures": [{"keyid": key.public.hex, "sig": signature}],
    }
    return json.dumps(envelope, separators=(",", ":")).encode() + b"\n"
