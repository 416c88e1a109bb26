"""Over Flower nothing leaves that may not leave now: of open and of encrypted uploads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from predbayes.errors import StudyError
from predbayes.files import file_digest
from predbayes_flower import outbox
from predbayes_flower.node import Node
from predbayes_flower.outbox import Outbox, greeting, sending
from predbayes_flower.server import Round
from predbayes_flower.study_client import app
from predbayes_flower.wire import read_words, upload_record
from predbayes_study.site.release import RELEASED, Approvals
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.flower.double import DoubleGrid
from tests.flower.nodes import LEARNER, QUICK, SHORT, make_node
from tests.study.world import make_world


@pytest.fixture(params=[None, CoordinatorKey.generate()], ids=["open", "encrypted"])
def trained(request, tmp_path):
    """A study, and a node that has trained for it, whose upload was approved."""
    world = make_world(
        tmp_path / "world",
        method="mixture",
        learner=LEARNER,
        upload="release = 'manual'",
        coordinator=request.param,
    )
    study = world.begin(sites=("Alpha",))
    config = make_node(dataclasses.replace(world, kit=study.kit), tmp_path / "nodes", "Alpha")
    node = Node.of_config(config)
    assert node.answer(study.kit.digest) == "awaiting release"
    upload = node.training.run(node.rows()).upload
    approvals_of(config).record("upload", upload.digest(), "officer")
    sent = Node.of_config(config).answer(study.kit.digest)
    assert isinstance(sent, Path)
    return study, config, upload, sent


def approvals_of(config):
    return Approvals.of(SiteFile.load(Path(config["site"])))


def revoke_upload(study, config, upload):
    approvals_of(config).record("upload", upload.digest(), "officer", act="revoke")


def revoke_plan(study, config, upload):
    approvals_of(config).record("plan", study.kit.digest, "officer", act="revoke")


def add_lines(config, lines):
    path = Path(config["site"])
    path.write_bytes(path.read_bytes() + lines.encode())


def forbid(study, config, upload):
    add_lines(config, "[policy]\nkinds = []\n")


def set_officer(study, config, upload):
    key = SigningKey.generate().public.hex
    add_lines(config, f'officer = "predbayes-ed25519 {key}"\n')


def forget(study, config, upload):
    """Files of which nobody knows that they were signed here, or what is in them."""
    (Path(config["site"]).parent / RELEASED).unlink()
    revoke_upload(study, config, upload)


CHANGES = [revoke_upload, revoke_plan, forbid, set_officer, forget]


def brings(config, study):
    content = greeting(Outbox(config), study.kit.digest, may_bring=True)
    return read_words(content).get("status") == "upload"


def test_it_is_sent_as_long_as_nothing_has_changed(trained):
    study, config, _, _ = trained
    assert brings(config, study)
    assert Round(DoubleGrid(app, {11: config}), study, QUICK).run() == {"Alpha": "in"}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", ["with the hello", "asked for"])
def test_it_stays(trained, monkeypatch, change, way):
    study, config, upload, _ = trained
    change(study, config, upload)
    if way == "asked for":
        monkeypatch.setattr(outbox, "SMALL_BYTES", 0)
    else:
        assert not brings(config, study)
    grid = DoubleGrid(app, {11: config})
    assert Round(grid, study, SHORT).run() != {"Alpha": "in"}
    assert study.state().uploads == {}


@pytest.mark.parametrize("change", CHANGES)
def test_it_stays_if_the_change_comes_after_the_node_has_looked(trained, change):
    """The bytes that are sent are those that are asked for, when they are read."""
    study, config, upload, sent = trained
    before = upload_record(sent, sending(approvals_of(config)))
    assert before
    change(study, config, upload)
    with pytest.raises(StudyError, match="nothing is sent"):
        upload_record(sent, sending(approvals_of(config)))


def test_nor_is_a_file_sent_that_was_swapped_since(trained):
    _, config, _, sent = trained
    digest = file_digest(sent)
    assert approvals_of(config).why_not_sent(digest, by_message=True) == ""
    sent.write_bytes(sent.read_bytes() + b" ")
    with pytest.raises(StudyError, match="nothing is sent"):
        upload_record(sent, sending(approvals_of(config)))
