"""A study with differential privacy of people over Flower: a round brings what files would."""

from __future__ import annotations

from pathlib import Path

from predbayes.exchange.header import Header
from predbayes_flower.server import run_study
from predbayes_flower.study_client import app
from predbayes_study.extras.privacy.budget import FILE
from predbayes_study.payloads.details import promise_of
from tests.flower.double import DoubleGrid
from tests.flower.nodes import QUICK, make_node, write_rows
from tests.study.site.test_private import PRIVATE, PROMISE
from tests.study.world import SITES, make_world

NUM_ROWS = 800


def test_a_round_brings_noisy_uploads_and_spends_each_budget_once(tmp_path):
    text = PRIVATE.format(unit="row", holdout=0.25)
    world = make_world(tmp_path / "world", learner=text)
    study = world.begin()
    nodes = {
        number: make_node(world, tmp_path / "nodes", site, learner="dp-logistic")
        for number, site in enumerate(SITES, 11)
    }
    for number, config in nodes.items():
        write_rows(Path(config["data"]), number, NUM_ROWS)
    assert set(run_study(DoubleGrid(app, nodes), study.folder, QUICK).values()) == {"in"}
    assert study.verify() == []
    secrets = set()
    for config in nodes.values():
        folder = Path(config["site"]).parent
        (upload,) = (folder / "out").glob("*.safetensors")
        info = Header.read(upload).info
        assert promise_of(info) == PROMISE
        assert info.class_rows is None
        secrets.add(next(folder.glob("*.secret")).read_text(encoding="utf-8"))
        spent = (folder / FILE).read_text(encoding="utf-8")
        assert spent.count('"epsilon"') == 1
    assert len(secrets) == len(SITES)
