"""A sealed study over Flower: the round brings masked uploads, the key holder opens by files."""

from __future__ import annotations

from pathlib import Path

import pytest

from predbayes.errors import PlanError
from predbayes_flower.node import Node
from predbayes_flower.server import Round, run_study
from predbayes_flower.study_client import app
from predbayes_study.extras.sealed.holder import Holder
from predbayes_study.extras.sealed.request import request_sums
from predbayes_study.site.site import Site
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.flower.double import DoubleGrid
from tests.flower.nodes import LEARNER, QUICK, make_node
from tests.study.world import SITES, make_world


def sealed(root, **told):
    key = CoordinatorKey.generate().public
    privacy = f'[sealed]\nminimum = 2\nholders = ["{key.signing.hex}{key.encryption}"]\n'
    return make_world(root, learner=LEARNER, gate=privacy, **told)


def test_a_second_sealed_plan_waits_for_a_person_at_each_node(tmp_path):
    """The officer approved both plans before either was trained, and knew of no second one."""
    worlds = [sealed(tmp_path / "1"), sealed(tmp_path / "2", rules="quorum = 4\n")]
    config = make_node(worlds[0], tmp_path / "nodes", "Alpha")
    folder = Path(config["site"]).parent
    second = {**config, "kit": str(worlds[1].kit.folder), "out": str(folder / "second")}
    site = Site(config["site"])
    site.approve(worlds[1].kit.folder, "B. Officer")
    first, asked = (world.kit.digest for world in worlds)
    assert Node.of_config(config).answer(first).exists()
    # No deadline of a round has a part in it: a node that waits for a person is asked again.
    assert Node.of_config(second).answer(asked) == "not approved"
    assert "may reveal more" in (folder / "audit.jsonl").read_text(encoding="utf-8")
    site.approve(worlds[1].kit.folder, "B. Officer")
    worlds[1].keys["Alpha"] = SigningKey.load(folder / "Alpha.key")
    study = worlds[1].begin(sites=("Alpha",))
    assert Round(DoubleGrid(app, {11: second}), study, QUICK).run()["Alpha"] == "in"


def test_a_node_whose_policy_wants_masks_sends_nothing_without_them(tmp_path):
    worlds = [make_world(tmp_path / "open", learner=LEARNER), sealed(tmp_path / "sealed")]
    for number, world in enumerate(worlds):
        config = make_node(world, tmp_path / str(number), "Alpha")
        with Path(config["site"]).open("a", encoding="utf-8") as file:
            file.write("[policy]\nsealed = true\n")
        node = Node.of_config(config)
        if world is worlds[0]:
            with pytest.raises(PlanError, match="sealed = True"):
                node.answer(world.kit.digest)
            assert not [*Path(config["out"]).rglob("*.safetensors")]
        else:
            assert node.answer(world.kit.digest).exists()


def test_a_round_brings_masked_uploads_and_the_holder_opens_their_sum(tmp_path):
    key = CoordinatorKey.generate()
    text = f"{key.public.signing.hex}{key.public.encryption}"
    privacy = f'[sealed]\nminimum = 2\nholders = ["{text}"]\n'
    world = make_world(tmp_path / "world", learner=LEARNER, gate=privacy)
    study = world.begin()
    learner = "logistic-regression"
    nodes = {
        number: make_node(world, tmp_path / "nodes", site, learner=learner)
        for number, site in enumerate(SITES, 11)
    }
    assert set(run_study(DoubleGrid(app, nodes), study.folder, QUICK).values()) == {"in"}
    assert not study.state().results
    assert {upload.kind for upload in study.state().uploads.values()} == {"masked"}
    holder = Holder(tmp_path / "holder")
    for site in SITES:
        holder.admit(site, world.key(site).public)
    path = tmp_path / "sum.opening"
    (asked,) = request_sums(study)
    path.write_bytes(holder.open(study.plan, asked, key))
    _, result = study.finish(openings=[path])
    assert len(result.sites) == len(SITES)
    assert study.verify() == []
