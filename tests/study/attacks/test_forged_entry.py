"""Attack: a line in the ledger and a file in the folder, for a site that has sent nothing.

Before, `finish` pooled it and `verify --rebuild` found nothing.
"""

from __future__ import annotations

import pytest

from predbayes.errors import StudyError
from predbayes.files import file_digest
from predbayes_study.payloads.details import sign
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.study.world import make_world

COORDINATOR = CoordinatorKey.generate()
NOT_BETAS = ["Beta did not sign the upload that stands in its name; run `predbayes study verify`"]


@pytest.fixture(params=[None, COORDINATOR], ids=["no key", "key"])
def world(request, tmp_path):
    return make_world(tmp_path, coordinator=request.param)


@pytest.fixture
def study(world):
    study = world.begin(sites=("Alpha", "Beta"))
    study.add(world.file("Alpha"))
    return study


def forge(world, study, signed_by=None, key=None):
    """Beta's file and its entry, by whoever may write in the folder, or has the private key."""
    upload = world.upload("Beta")
    digest = upload.digest()
    path = study.folder / "uploads" / f"{digest}.safetensors"
    upload.save(path, None if signed_by is None else sign(upload, signed_by))
    data = {
        "site": "Beta",
        "digest": digest,
        "file_digest": file_digest(path),
        "num_bytes": path.stat().st_size,
        "num_rows": upload.info.num_rows,
        "kind": "predictions",
    }
    study.ledger.append("add", data, key=key)


@pytest.mark.parametrize("signed_by", [None, SigningKey.generate()], ids=["nobody", "stranger"])
def test_the_coordinator_cannot_speak_for_a_site(world, study, signed_by):
    key = None if world.coordinator is None else world.coordinator.signing
    forge(world, study, signed_by, key)
    assert study.verify() == study.verify(rebuild=True) == NOT_BETAS
    with pytest.raises(StudyError, match="Beta did not sign"):
        study.finish()


@pytest.mark.parametrize("world", [COORDINATOR], indirect=True, ids=["key"])
def test_whoever_can_write_in_the_folder_cannot_speak_for_the_coordinator(world, study):
    forge(world, study, world.key("Beta"))  # a true upload, in a forged line
    assert study.verify() == ["entry 5 of ledger.jsonl is not signed by the coordinator"]
    with pytest.raises(StudyError, match=r"entry 5 of ledger\.jsonl is not signed"):
        study.finish()


def test_a_file_is_checked_against_the_key_of_its_time(world, study):
    """A site that got a new key later has signed its upload with the old one."""
    assert study.admit("Alpha", SigningKey.generate().public)
    assert study.verify() == []
