"""Consent: a yes is by digest, and the plan says what waits for one."""

import dataclasses
import json
from typing import ClassVar

import pytest

from predbayes.errors import StudyError
from predbayes.exchange.header import Header
from predbayes_study.site.policy import SitePolicy
from predbayes_study.site.release import Approvals, Leaving, write_upload
from predbayes_study.store.ledger import Ledger
from predbayes_study.tables.sitefile import Policy
from predbayes_study.trust.signing import SigningKey
from tests.study.world import make_world


@pytest.fixture(scope="module", params=["automatic", "manual"])
def world(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    return make_world(root, upload=f"release = '{request.param}'\n")


def may_leave(approvals, world, upload):
    return not approvals.why_not(Leaving.of(world.kit.plan, upload))


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
    assert may_leave(approvals, world, upload) != manual(world)
    approvals.record("upload", upload.digest(), "B. Officer")
    assert may_leave(approvals, world, upload)
    assert may_leave(approvals, world, world.upload("Beta")) != manual(world)


def test_an_upload_is_there_signed_or_held_back_but_never_both(world, tmp_path):
    signed, held_back = tmp_path / "signed", tmp_path / "held"
    upload, key = world.upload("Alpha"), world.key("Alpha")
    plan = world.kit.plan
    assert write_upload(plan, upload, None, signed, held_back)[0] == held_back
    assert Header.read(held_back).signature is None
    assert write_upload(plan, upload, key, signed, held_back)[0] == signed
    assert Header.read(signed).signature is not None
    assert not held_back.exists()
    write_upload(plan, upload, None, signed, held_back)
    assert [path.name for path in tmp_path.iterdir()] == ["held"]


class TestOfficer:
    """A site that names its officer's key takes no other yes."""

    ABOUT: ClassVar = {"plan": "ab", "leaves": "predictions", "network": ""}

    @pytest.fixture
    def officer(self):
        return SigningKey.generate()

    @pytest.fixture
    def approvals(self, tmp_path, officer):
        return Approvals(tmp_path, "Basel", officer.public.hex)

    def lines(self, approvals):
        return (approvals.folder / "approvals.jsonl").read_text().splitlines()

    def put_back(self, approvals, line):
        """What somebody with the file can do: an old entry once more, with the chain mended."""
        entry = json.loads(line)["entry"]
        Ledger(approvals.folder / "approvals.jsonl").append(entry["step"], entry["data"])

    def test_her_signature_counts(self, approvals, officer):
        assert approvals.record("plan", "ab", "B. Officer", key=officer, about=self.ABOUT)
        assert approvals.given("plan", "ab")
        signed = json.loads(self.lines(approvals)[0])["entry"]["data"]["signed"]
        statement, signature = signed.splitlines()
        said = json.loads(statement)
        assert {"what", "digest", "plan", "leaves", "network", "site", "policy", "by"} < {*said}
        message = b"predbayes approval, format 1\n" + statement.encode()
        officer.private.public_key().verify(bytes.fromhex(signature), message)

    def test_nobody_elses_does(self, approvals, tmp_path):
        with pytest.raises(StudyError, match="this is none: give --key"):
            approvals.record("plan", "ab", "B. Officer")
        with pytest.raises(StudyError, match="this is another: give --key"):
            approvals.record("plan", "ab", "B. Officer", key=SigningKey.generate())
        Approvals(tmp_path).record("plan", "ab", "B. Officer")  # where none was named yet
        assert not approvals.given("plan", "ab")

    @pytest.mark.parametrize(
        "other",
        [
            {"digest": "cd"},
            {"what": "upload"},
            {"by": "X"},
            {"key": "00" * 32},
            {"signature": "00" * 64},
            {"statement": "{}"},
        ],
    )
    def test_a_signature_is_good_for_nothing_else(self, approvals, officer, other):
        approvals.record("plan", "ab", "B. Officer", key=officer, about=self.ABOUT)
        entry = json.loads(self.lines(approvals)[0])["entry"]
        statement, signature = entry["data"]["signed"].splitlines()
        statement = other.get("statement", statement)
        if "key" in other:
            statement = json.dumps(json.loads(statement) | other, separators=(",", ":"))
        signed = f"{statement}\n{other.get('signature', signature)}\n"
        beside = {name: value for name, value in other.items() if name in entry["data"]}
        data = entry["data"] | beside | {"signed": signed}
        (approvals.folder / "approvals.jsonl").unlink()
        Ledger(approvals.folder / "approvals.jsonl").append("approve", data)
        still = other == {"by": "X"}  # the name beside it proves nothing; the signed one stays
        assert approvals.given("plan", "ab") == still
        assert not approvals.given(data["what"], "cd")
        assert not approvals.given("upload", "ab")

    def test_it_is_for_one_site_and_one_policy(self, approvals, officer):
        approvals.record("plan", "ab", "B. Officer", key=officer, about=self.ABOUT)
        stricter = SitePolicy((("policy.toml", Policy(min_cell=7)),))
        for other in ({"site": "Bern"}, {"policy": stricter}):
            assert not dataclasses.replace(approvals, **other).given("plan", "ab")

    def test_one_that_was_revoked_is_not_put_back(self, approvals, officer):
        approvals.record("plan", "ab", "B. Officer", key=officer, about=self.ABOUT)
        approvals.record("plan", "ab", "B. Officer", act="revoke", key=officer)
        assert not approvals.given("plan", "ab")
        self.put_back(approvals, self.lines(approvals)[0])
        assert not approvals.given("plan", "ab")
        assert approvals.record("plan", "ab", "B. Officer", key=officer, about=self.ABOUT)
        assert approvals.given("plan", "ab")

    def test_a_revocation_is_no_approval(self, approvals, officer):
        approvals.record("plan", "ab", "B. Officer", act="revoke", key=officer)
        entry = json.loads(self.lines(approvals)[0])["entry"]
        Ledger(approvals.folder / "approvals.jsonl").append("approve", entry["data"])
        assert not approvals.given("plan", "ab")

    def test_a_no_needs_no_key(self, approvals, officer):
        approvals.record("plan", "ab", "B. Officer", key=officer, about=self.ABOUT)
        approvals.record("plan", "ab", "anybody", act="revoke")
        assert approvals.revoked("plan", "ab")


def test_a_no_to_the_plan_ends_training_and_release_whatever_the_plan_asks(world, tmp_path):
    approvals, upload = Approvals(tmp_path), world.upload("Alpha")
    approvals.record("plan", world.kit.digest, "B. Officer")
    approvals.record("upload", upload.digest(), "B. Officer")
    assert may_leave(approvals, world, upload)
    approvals.record("plan", world.kit.digest, "B. Officer", act="revoke")
    assert not approvals.may_train(world.kit)
    assert not approvals.may_train(world.kit, by_message=True)
    assert not may_leave(approvals, world, upload)
    with pytest.raises(StudyError, match="was revoked; a new one: predbayes site approve"):
        approvals.require_plan(world.kit)
    approvals.record("plan", world.kit.digest, "B. Officer")
    assert may_leave(approvals, world, upload)
    approvals.record("upload", upload.digest(), "B. Officer", act="revoke")
    assert not may_leave(approvals, world, upload)
    assert approvals.may_train(world.kit)


@pytest.mark.parametrize("cut", [1, 11, 40, 200, -2, -1])
@pytest.mark.parametrize("act", ["approve", "revoke"])
def test_a_word_that_a_kill_cut_short_is_said_again(tmp_path, act, cut):
    officer = SigningKey.generate()
    approvals = Approvals(tmp_path, "Basel", officer.public.hex)
    if act == "revoke":
        approvals.record("plan", "ab", "B. Officer", key=officer)
    path = tmp_path / "approvals.jsonl"
    before = path.read_bytes() if path.exists() else b""
    approvals.record("plan", "ab", "B. Officer", act=act, key=officer)
    line = path.read_bytes()[len(before) :]
    path.write_bytes(before + line[:cut])
    said = act if cut == -1 else {"approve": "revoke", "revoke": "approve"}[act]  # or as before
    assert approvals.given("plan", "ab") == (said == "approve")
    approvals.record("plan", "ab", "B. Officer", act=act, key=officer)
    assert approvals.given("plan", "ab") == (act == "approve")


@pytest.mark.parametrize(
    ("step", "data"),
    [
        ("admit", {"what": "plan", "digest": "ab", "by": "X"}),
        ("approve", {"what": "plan", "digest": 7, "by": "X"}),
        ("revoke", {"what": "plan", "by": "X"}),
        ("approve", {"what": "plan", "digest": "ab"}),
        ("approve", {"what": "plan", "digest": "ab", "by": "X", "signed": "{}"}),
        ("approve", {"what": "plan", "digest": "ab", "by": "X", "signed": "no"}),
    ],
)
def test_a_step_or_a_form_that_is_not_ours_approves_nothing(tmp_path, step, data):
    Ledger(tmp_path / "approvals.jsonl").append(step, data)
    with pytest.raises(StudyError, match=r"^entry 1 of approvals\.jsonl is not [^\n]*$"):
        Approvals(tmp_path).given("plan", "ab")


@pytest.mark.parametrize("act", ["approve", "revoke"])
@pytest.mark.parametrize("by", ["", "  ", "A\x1b[2K. Other", "A\u202eB"])
def test_who_says_so_has_a_name_that_is_seen(tmp_path, act, by):
    with pytest.raises(StudyError, match=r"^[^\n\x1b]*who says so[^\n\x1b]*$"):
        Approvals(tmp_path).record("plan", "ab", by, act=act, key=SigningKey.generate())
    assert not (tmp_path / "approvals.jsonl").exists()
