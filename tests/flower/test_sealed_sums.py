"""A sealed study over Flower: the round brings masked uploads, the key holder opens by files."""

from __future__ import annotations

from predbayes_flower.server import run_study
from predbayes_flower.study_client import app
from predbayes_study.extras.sealed.holder import Holder
from predbayes_study.extras.sealed.request import request_sums
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.flower.double import DoubleGrid
from tests.flower.nodes import LEARNER, QUICK, make_node
from tests.study.world import SITES, make_world


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
