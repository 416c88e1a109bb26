"""Attack: one node sends an encrypted file that breaks a check, and ends the round for all."""

from __future__ import annotations

import json
import shutil

import pytest
from flwr.app import ArrayRecord, ConfigRecord

import predbayes_flower
from predbayes_flower import UPLOAD
from predbayes_flower.server import Round
from predbayes_flower.study_client import app
from predbayes_flower.wire import upload_record, words
from predbayes_study.payloads.predictions import Predictions
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.flower.double import DoubleGrid
from tests.flower.nodes import LEARNER, SHORT, make_node
from tests.flower.test_hostile_replies import replaced
from tests.study.attacks.test_one_bad_file import EVALUATIONS, evaluation
from tests.study.faults.malformed import site_key, unpack
from tests.study.test_bounds import all_forms, open_parts
from tests.study.world import SITES, make_world


@pytest.fixture(params=["open", "encrypted"])
def round_of(request, tmp_path):
    """A study of three nodes, and the grid that reaches them."""
    key = CoordinatorKey.generate() if request.param == "encrypted" else None
    world = make_world(tmp_path / "world", learner=LEARNER, coordinator=key)
    world.keys |= {site: site_key(site) for site in SITES}
    study = world.begin(sites=SITES[:3])
    nodes = {n: make_node(world, tmp_path, site) for n, site in enumerate(SITES[:3], start=11)}
    for node in nodes.values() if key is not None else ():
        shutil.rmtree(node["kit"])
        shutil.copytree(study.folder / "kit", node["kit"])  # that the coordinator signed
    return world, study, DoubleGrid(app, nodes)


def test_a_count_of_320_digits_is_that_nodes_refusal(round_of, tmp_path):
    world, study, grid = round_of
    path = tmp_path / "bad.safetensors"
    path.write_bytes(evaluation(world, **EVALUATIONS["bins"]))
    if world.coordinator is not None:
        record = upload_record(world.sealed(path, "Alpha"))
    else:  # which a node that is honest would refuse to pack
        record = words(status="upload")
        record["metadata"] = ConfigRecord(json.loads(unpack(path.read_bytes())[0])["__metadata__"])
        record["arrays"] = ArrayRecord({})
    grid.altered[11, UPLOAD] = replaced(record)
    sites = Round(grid, study, SHORT).run()
    assert sites == {"Alpha": "refused", "Beta": "in", "Gamma": "in"}
    assert sorted(study.state().uploads) == ["Beta", "Gamma"]


@pytest.mark.parametrize("error", [OverflowError, RecursionError, MemoryError, KeyError])
def test_whatever_a_check_ends_with_the_round_goes_on(round_of, monkeypatch, error):
    _, study, grid = round_of
    check = Predictions.check

    def broken(self, plan, upload, key):
        if upload.info.site == "Beta":
            raise error("why")
        check(self, plan, upload, key)

    monkeypatch.setattr(Predictions, "check", broken)
    sites = Round(grid, study, SHORT).run()
    assert sites == {"Alpha": "in", "Beta": "refused", "Gamma": "in"}
    assert sorted(study.state().uploads) == ["Alpha", "Gamma"]


def test_every_form_of_messages_has_bounds():
    forms = all_forms(predbayes_flower)
    assert any("outbox" in name for name in forms)
    assert not [line for form in forms.values() for line in open_parts(form)]
