"""Uploads at an address that fsspec knows: which are copied, refused, and shown without secrets."""

from __future__ import annotations

import fsspec
import pytest

from predbayes.errors import StudyError, UploadError
from predbayes_study.attachments import max_bytes
from predbayes_study.coordinator import stored
from predbayes_study.coordinator.stored import add_stored
from tests.study.world import make_world

ENDINGS = (".safetensors", ".sealed", ".survey")


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path)


def test_what_lies_in_memory_is_added_as_files_are(world):
    study, files = world.begin(), fsspec.filesystem("memory")
    most = max(stored.Intake.of(study.plan).max_bytes, *max_bytes())
    files.pipe(
        {
            "/in/Alpha.safetensors": world.file("Alpha").read_bytes(),
            "/in/Beta.safetensors": world.file("Beta").read_bytes()[:-7],
            "/in/Gamma.safetensors": bytes(most + 1),
            "/in/a\\..\\b.safetensors": b"",
            "/in/notes.txt": b"not for the study",
            "/in/below/Delta.safetensors": b"",
        }
    )
    found = dict(add_stored(study, "memory://in", ENDINGS))
    refused = {name for name, answer in found.items() if isinstance(answer, UploadError)}
    assert refused == {"Beta.safetensors", "Gamma.safetensors", "a\\..\\b.safetensors"}
    assert f"{most:,} bytes" in str(found["Gamma.safetensors"])
    assert {*found} - refused == {"Alpha.safetensors"}
    assert study.verify() == []
    again = add_stored(study, "memory://in/Alpha.safetensors", ENDINGS)
    assert list(again) == [("Alpha.safetensors", None)]
    assert list(study.state().uploads) == ["Alpha"]


@pytest.mark.parametrize("address", ["memory://anna:word@empty?key=word", "nothing://a:word@b"])
def test_an_address_with_nothing_there_shows_no_secret(world, address):
    with pytest.raises(StudyError) as refusal:
        list(add_stored(world.begin(), address, ENDINGS))
    assert "word" not in str(refusal.value)
