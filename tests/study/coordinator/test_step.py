"""Sealed uploads at the coordinator: opened with his key alone, and nothing else is taken."""

from __future__ import annotations

import pytest

from predbayes.errors import KeyFileError, PlanError, UploadError
from predbayes.exchange.upload import Upload
from predbayes_study.payloads.details import save_signed
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.sealed import seal
from tests.study.world import make_world

KEY = CoordinatorKey.generate()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), coordinator=KEY)


@pytest.fixture
def study(world, request, tmp_path):
    return world.begin(f"study {tmp_path.name}")


def refused(study, path):
    with pytest.raises(UploadError) as error:
        study.add(path)
    assert "\n" not in str(error.value)
    assert not [*study.folder.glob("uploads/*")]
    return str(error.value)


def test_a_sealed_upload_is_in_as_it_was_signed(world, study):
    path = world.file("Alpha")
    assert path.suffix == ".sealed"
    accepted = study.add(path)
    assert accepted.digest == world.upload("Alpha").digest()
    assert study.add(world.file("Alpha")) is None  # sealed anew, and the same inside
    assert study.read(accepted).digest() == accepted.digest
    assert study.verify() == []


def test_one_in_the_clear_is_refused(world, study):
    world.file("Alpha")
    why = refused(study, world.root / "Alpha.safetensors")
    assert "not encrypted, as the plan asks" in why


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"site": "Beta"}, "names another site"),
        ({"plan": "ab" * 32}, "made for another plan"),
        ({"to": CoordinatorKey.generate().public.encryption}, "another coordinator's key"),
    ],
)
def test_an_envelope_that_says_something_else_is_refused(world, study, tmp_path, told, why):
    world.file("Alpha")
    said = {"plan": world.kit.digest, "site": "Alpha", "to": world.kit.plan.recipient} | told
    content = (world.root / "Alpha.safetensors").read_bytes()
    (tmp_path / "a.sealed").write_bytes(seal(content, **said))
    assert why in refused(study, tmp_path / "a.sealed")


def test_sealing_proves_nothing_about_who_sent_it(world, study, tmp_path):
    """Anybody can encrypt to a public key."""
    save_signed(world.upload("Alpha"), tmp_path / "a.safetensors", world.key("Beta"))
    sealed = world.sealed(tmp_path / "a.safetensors")
    assert "not signed with the key" in refused(study, sealed)


def test_without_the_key_nothing_is_opened(world, study, monkeypatch, tmp_path):
    CoordinatorKey.generate().save(tmp_path / "other.key")
    monkeypatch.setenv("PREDBAYES_COORDINATOR_KEY", str(tmp_path / "other.key"))
    with pytest.raises(KeyFileError, match="is not the key that the plan names"):
        study.add(world.file("Alpha"))


def test_a_sealed_file_in_a_sealed_file_is_no_upload(world, study, tmp_path):
    told = {"plan": world.kit.digest, "site": "Alpha", "to": world.kit.plan.recipient}
    (tmp_path / "a.sealed").write_bytes(seal(world.file("Alpha").read_bytes(), **told))
    assert "it is encrypted" in refused(study, tmp_path / "a.sealed")


def test_a_plan_may_say_that_nothing_is_encrypted(tmp_path):
    world = make_world(tmp_path, coordinator=KEY, upload="encrypt = false")
    study, path = world.begin(), world.file("Alpha")
    assert Upload.load(path).digest() == study.add(path).digest
    told = {"plan": world.kit.digest, "site": "Beta", "to": KEY.public.encryption}
    world.file("Beta")
    content = (world.root / "Beta.safetensors").read_bytes()
    (tmp_path / "b.sealed").write_bytes(seal(content, **told))
    with pytest.raises(UploadError):
        study.add(tmp_path / "b.sealed")


def test_a_plan_without_a_key_cannot_ask_for_it(tmp_path):
    with pytest.raises(PlanError, match=r"upload\.encrypt"):
        make_world(tmp_path, upload="encrypt = true")
