"""Consent: a yes is by digest, and the plan says what waits for one."""

import json

import pytest

from predbayes.exchange.header import Header
from predbayes.study.site.release import Approvals, write_upload
from tests.study.world import make_world


def test_they_are_by_digest_and_kind(tmp_path):
    approvals = Approvals(tmp_path)
    assert not approvals.given("plan", "ab")
    approvals.record("plan", "ab", "B. Officer")
    assert approvals.given("plan", "ab")
    assert not approvals.given("upload", "ab")
    line = json.loads((tmp_path / "approvals.jsonl").read_text())
    assert line["entry"]["data"]["by"] == "B. Officer"


@pytest.fixture(scope="module", params=["automatic", "manual"])
def world(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    return make_world(root, upload=f"release = '{request.param}'\n")


def manual(world):
    return world.kit.plan.upload.release == "manual"


def test_the_plan_says_whether_people_are_asked_before_training(world, tmp_path):
    approvals = Approvals(tmp_path)
    assert approvals.may_train(world.kit) != manual(world)
    approvals.record("plan", world.kit.digest, "B. Officer")
    assert approvals.may_train(world.kit)


def test_a_message_from_outside_always_waits_for_a_yes_to_the_plan(world, tmp_path):
    approvals = Approvals(tmp_path)
    assert not approvals.may_train(world.kit, by_message=True)
    approvals.record("plan", world.kit.digest, "B. Officer")
    assert approvals.may_train(world.kit, by_message=True)


def test_a_yes_to_the_plan_is_none_to_an_upload(world, tmp_path):
    approvals, upload = Approvals(tmp_path), world.upload("Alpha")
    approvals.record("plan", world.kit.digest, "B. Officer")
    assert approvals.may_leave(world.kit.plan, upload) != manual(world)
    approvals.record("upload", upload.digest(), "B. Officer")
    assert approvals.may_leave(world.kit.plan, upload)
    assert approvals.may_leave(world.kit.plan, world.upload("Beta")) != manual(world)


def test_an_upload_is_there_signed_or_held_back_but_never_both(world, tmp_path):
    signed, held_back = tmp_path / "signed", tmp_path / "held"
    upload, key = world.upload("Alpha"), world.key("Alpha")
    assert write_upload(upload, None, signed, held_back) == held_back
    assert Header.read(held_back).signature is None
    assert write_upload(upload, key, signed, held_back) == signed
    assert Header.read(signed).signature is not None
    assert not held_back.exists()
    write_upload(upload, None, signed, held_back)
    assert [path.name for path in tmp_path.iterdir()] == ["held"]
