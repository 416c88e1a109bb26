"""What the coordinator says of a result, read by the letter of DSSE and in-toto alone."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import get_args

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from predbayes.files import digests
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.dsse import in_toto
from predbayes_study.trust.signing import Kind, SigningKey
from predbayes_study.trust.statement import IN_TOTO, RESULT_SIGNATURE
from tests.study.world import SITES, make_world

KEY = SigningKey.generate()
LINE = in_toto(KEY, "urn:predbayes:result:1", {"b": "cd" * 32, "a": "ab" * 32}, {"number": 3})


def encoded(*parts):
    """PAE of the specification, from its text: every part with its length before it."""
    return b" ".join([b"DSSEv1", *(b"%d %s" % (len(part), part) for part in parts)])


def read(line, public):
    """The statement of an envelope, if this key signed it."""
    envelope = json.loads(line)
    payload = base64.b64decode(envelope["payload"], validate=True)
    (signature,) = envelope["signatures"]
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
    signed = encoded(envelope["payloadType"].encode(), payload)
    key.verify(base64.b64decode(signature["sig"]), signed)
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    return statement


def test_an_independent_reader_finds_what_was_said():
    statement = read(LINE, KEY.public.hex)
    assert [(s["name"], s["digest"]["sha256"]) for s in statement["subject"]] == [
        ("a", "ab" * 32),
        ("b", "cd" * 32),
    ]
    assert statement["predicate"] == {"number": 3}


@pytest.mark.parametrize("where", ["payload", "payloadType"])
def test_another_payload_or_type_is_not_signed(where):
    envelope = json.loads(LINE)
    other = base64.b64encode(b"{}").decode() if where == "payload" else "application/json"
    with pytest.raises(InvalidSignature):
        read(json.dumps(envelope | {where: other}), KEY.public.hex)
    with pytest.raises(InvalidSignature):
        read(LINE, SigningKey.generate().public.hex)


def test_its_signature_is_of_no_kind_of_thing_and_no_kind_is_of_an_envelope():
    envelope = json.loads(LINE)
    payload = base64.b64decode(envelope["payload"])
    signature = base64.b64decode(envelope["signatures"][0]["sig"]).hex()
    signed = encoded(envelope["payloadType"].encode(), payload)
    for kind in get_args(Kind):
        for content in (payload, signed):
            assert not KEY.public.verifies(kind, content, signature)
        forged = base64.b64encode(bytes.fromhex(KEY.sign(kind, payload))).decode()
        with pytest.raises(InvalidSignature):
            read(json.dumps(envelope | {"signatures": [{"sig": forged}]}), KEY.public.hex)


def test_a_result_has_one_of_all_its_files_the_models_too(tmp_path):
    world = make_world(tmp_path, coordinator=CoordinatorKey.generate())
    study = world.begin()
    for site in SITES:
        study.add(world.file(site))
    study.finish()
    folder = study.folder / "results" / "1"
    statement = read((folder / IN_TOTO).read_bytes(), study.plan.coordinator.signing.hex)
    said = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    there = digests(folder, folder.rglob("*"))
    assert said.keys() == there.keys() - {IN_TOTO, RESULT_SIGNATURE}
    assert "model/model.safetensors" in said
    assert all(there[name] == digest for name, digest in said.items())
    assert statement["predicate"]["plan"] == study.plan.digest()
    assert study.verify() == []
    content = (folder / IN_TOTO).read_bytes()
    (folder / IN_TOTO).write_bytes(content.replace(b'"sig":"', b'"sig":"A'))
    assert hashlib.sha256(content).hexdigest() == there[IN_TOTO]
    assert any(IN_TOTO in problem for problem in study.verify())
