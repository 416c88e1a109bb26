"""Attack: an officer says no to an upload that is encrypted, and it leaves all the same.

Nobody at the site can read an encrypted file, so nothing said what is in it. Before, its signed
file stayed in the folder from which people hand over. Here every kind of file that a site signs is
made, and then one thing changes; over Flower the same is in `tests/flower/test_revoked.py`.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from predbayes.exchange.header import Header
from predbayes.files import file_digest, write_bytes
from predbayes_study.payloads.details import sign
from predbayes_study.site import release
from predbayes_study.site.release import Approvals, Leaving
from predbayes_study.site.site import Site
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.study.cli.test_site_model import Home
from tests.study.commands import predbayes
from tests.study.invented import DRAFT, table
from tests.study.world import make_world, own_table

OFFICER = SigningKey.generate()


class Leaver:
    """A site with one signed file, and how it is made again."""

    def __init__(self, root: Path, made: str):
        self.root, self.made = root, made
        self.text = 'format = 1\nname = "Basel"\n'
        self.policy: list[str] = []
        getattr(self, f"_{made.partition(' ')[2]}")()
        self.write()
        self("site", "key", "Basel")
        for what in self.first:
            self("site", "approve", what, "--by", "officer")
        self(*self.again)
        held_back = next(iter(self.held_back), None)
        if held_back is not None:
            self("site", "approve", held_back, "--by", "officer")
            self(*self.again)
        (self.file,) = self.signed

    def _upload(self):
        key = CoordinatorKey.generate() if self.made.startswith("encrypted") else None
        world = make_world(self.root / "world", upload='release = "manual"', coordinator=key)
        world.begin(sites=())
        rows = own_table((self.root / "world" / "reference.csv").read_text())
        (self.root / "rows.csv").write_text(rows)
        shutil.copytree(self.root / "world" / "study" / "kit", self.root / "kit")
        self.first, self.kind = ["kit"], "predictions"
        self.again = ("site", "train", "kit", "rows.csv", "--out", "out")

    def _evaluation(self):
        home = Home(self.root, "classes", release="manual")
        (self.root / "Basel.key").unlink()
        self.text += '[columns]\nage = { column = "Alter" }\n'
        Approvals(self.root).record("plan", home.plan.digest(), "officer")
        self.first, self.kind, self.plan = [], "evaluation", home.plan.digest()
        self.again = (
            *("site", "evaluate", "result", "rows.csv", "--home", "trained"),
            *("--out", "Basel.evaluation"),
        )

    def _survey(self):
        draft = f'{DRAFT}\n[upload]\nrelease = "manual"\n'
        (self.root / "draft.toml").write_text(draft)
        table("Graz").to_csv(self.root / "rows.csv", index=False)
        self.first, self.kind = [], "survey"
        self.again = ("site", "survey", "draft.toml", "rows.csv", "--out", "Basel.survey")

    def write(self, officer: str = ""):
        more = "".join(f"{line}\n" for line in self.policy)
        head, sep, rest = self.text.partition("[columns]")
        (self.root / "site.toml").write_text(
            f"{head}{officer}{sep}{rest}\n" + (f"[policy]\n{more}" if more else "")
        )

    def __call__(self, *line, code=0):
        done = predbayes(*line, cwd=self.root)
        assert done.code == code, (line, done)
        return done

    @property
    def held_back(self):
        return sorted(self.root.glob("**/held-back*[!l]"))

    @property
    def signed(self):
        """The files that a person could hand over."""
        names = ("out/Basel.safetensors", "out/Basel.sealed", "Basel.evaluation", "Basel.survey")
        return [self.root / name for name in names if (self.root / name).exists()]


MADE = ["open upload", "encrypted upload", "an evaluation", "a survey"]


@pytest.fixture
def leaver(request, tmp_path):
    return Leaver(tmp_path, request.param)


every_kind = pytest.mark.parametrize("leaver", MADE, indirect=True)


@every_kind
def test_a_revoked_file_is_gone_and_is_not_made_again(leaver):
    said = leaver("site", "revoke", leaver.file, "--by", "officer")
    assert leaver.file.name in said.out
    assert leaver.signed == []
    leaver(*leaver.again)
    assert leaver.signed == []
    assert len(leaver.held_back) == 1


@every_kind
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_revoked_file_is_gone_from_every_folder(leaver, which):
    """The same bytes in two folders are two files: one for the courier, perhaps."""
    (leaver.root / "courier").mkdir()
    *line, out = leaver.again
    leaver(*line, Path("courier") / out)
    copy = leaver.root / "courier" / leaver.file.relative_to(leaver.root)
    assert copy.exists()
    leaver("site", "revoke", leaver.file if which == "first" else copy, "--by", "officer")
    assert not copy.exists()
    assert leaver.signed == []


@pytest.mark.parametrize("leaver", MADE[:3], indirect=True)
def test_nor_is_one_of_a_plan_that_was_revoked(leaver):
    if leaver.first:
        leaver("site", "revoke", "kit", "--by", "officer")
        assert leaver.signed == []
    else:  # of a model there is no kit
        Approvals(leaver.root).record("plan", leaver.plan, "officer", act="revoke")
    leaver(*leaver.again, code=2)
    assert leaver.signed == []


@every_kind
@pytest.mark.parametrize("policy", ["kinds = []", "release = 'manual'\nmin_cell = 6"])
def test_nor_is_one_that_the_policy_of_today_does_not_let_out(leaver, policy):
    """What it forbids is gone when the command is given again, and nothing is signed."""
    leaver.policy = policy.splitlines()
    leaver.write()
    approvals, digest = Site(leaver.root / "site.toml").approvals, file_digest(leaver.file)
    assert approvals.why_not_sent(digest)
    if policy == "kinds = []":
        leaver(*leaver.again, code=2)
        assert leaver.signed == []


@every_kind
def test_nor_is_one_whose_approval_no_officer_signed(leaver):
    leaver.write(officer=f'officer = "predbayes-ed25519 {OFFICER.public.hex}"\n')
    approvals, digest = Site(leaver.root / "site.toml").approvals, file_digest(leaver.file)
    assert approvals.why_not_sent(digest)
    predbayes(*leaver.again, cwd=leaver.root)
    assert leaver.signed == []


@pytest.mark.parametrize("leaver", MADE[1:2], indirect=True)
def test_an_encrypted_file_goes_though_its_plain_copy_is_lost(leaver):
    (held_back,) = leaver.held_back
    held_back.unlink()
    leaver("site", "revoke", leaver.file, "--by", "officer")
    assert leaver.signed == []


@pytest.mark.parametrize("leaver", MADE[:2], indirect=True)
def test_what_was_not_signed_here_is_not_sent(leaver):
    approvals = Site(leaver.root / "site.toml").approvals
    assert approvals.why_not_sent(file_digest(leaver.file)) == ""
    assert approvals.why_not_sent("0" * 64)
    leaver.file.write_bytes(leaver.file.read_bytes() + b"\n")
    assert approvals.why_not_sent(file_digest(leaver.file))
    refused = leaver("site", "revoke", leaver.file, "--by", "officer", code=2)
    assert refused.err.count("\n") == 1


@pytest.mark.parametrize("leaver", MADE[:1], indirect=True)
def test_a_file_that_is_another_by_now_is_left(leaver):
    """A revocation removes nothing but what was signed: a link and its target stay."""
    victim = leaver.root / "victim"
    victim.write_bytes(leaver.file.read_bytes())
    leaver.file.unlink()
    leaver.file.symlink_to(victim)
    leaver("site", "revoke", "kit", "--by", "officer")
    assert victim.exists()
    assert leaver.file.is_symlink()


@pytest.mark.parametrize("leaver", MADE[:1], indirect=True)
def test_its_content_stays_and_nothing_is_trained_again(leaver):
    before = Header.read(leaver.file).info
    leaver("site", "revoke", leaver.file, "--by", "officer")
    (held_back,) = leaver.held_back
    assert Header.read(held_back).info == before
    assert Header.read(held_back).signature is None
    assert "trained before" in leaver(*leaver.again).out


def test_a_note_of_any_path_is_found_again(tmp_path, monkeypatch):
    """Notes name files by their paths, which may have any character and may be relative."""
    world = make_world(tmp_path / "world")
    folder = tmp_path / "a\nb %41 ü"
    folder.mkdir()
    approvals, upload = Approvals(tmp_path), world.upload("Alpha")
    content = upload.to_bytes(sign(upload, world.key("Alpha")))
    (folder / "Alpha.safetensors").write_bytes(content)
    monkeypatch.chdir(folder)
    leaving, kept = Leaving.of(world.kit.plan, upload), Path("held-back.safetensors")
    approvals.note_released(leaving, Path("Alpha.safetensors"), content, kept)
    approvals.record("upload", upload.digest(), "officer", act="revoke")
    monkeypatch.chdir(tmp_path)
    assert approvals.recall() == [folder / "Alpha.safetensors"]
    assert sorted(os.listdir(folder)) == ["held-back.safetensors"]
    assert replace(approvals, site="x").recall() == []


@pytest.mark.parametrize("key", [None, CoordinatorKey.generate()], ids=["open", "encrypted"])
def test_a_file_that_is_swapped_once_it_is_written_was_not_released(tmp_path, monkeypatch, key):
    """On a share others can write: what is noted is what was signed, and not what is there."""
    world = make_world(tmp_path / "world", coordinator=key)
    approvals, upload = Approvals(tmp_path), world.upload("Alpha")

    def swapped(path, content, *mode):
        write_bytes(path, content, *mode)
        path.write_bytes(content + b"more")

    monkeypatch.setattr(release, "write_bytes", swapped)
    signed, kept = tmp_path / "Alpha.safetensors", tmp_path / "held-back.safetensors"
    path, _ = approvals.release(world.kit.plan, upload, lambda: world.key("Alpha"), signed, kept)
    assert "not in released.jsonl" in approvals.why_not_sent(file_digest(path))
    path.write_bytes(path.read_bytes().removesuffix(b"more"))
    assert approvals.why_not_sent(file_digest(path)) == ""
