"""A round is a federation: methods of the library pool what it collects."""

from __future__ import annotations

import pytest
import torch

from predbayes import fold, mixture, run
from predbayes.errors import StudyError
from predbayes.exchange.federation import Federation, Task
from predbayes.flower.client_app import app
from predbayes.flower.server import Round, RoundSettings
from predbayes.study.plan.models import make_learner
from tests.flower.double import DoubleGrid
from tests.flower.nodes import LEARNER, make_node
from tests.study.world import SITES, make_world

QUICK = RoundSettings(deadline_seconds=60, poll_seconds=0.02, ack_seconds=0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), learner=LEARNER)


@pytest.fixture(scope="module")
def nodes(world):
    return {
        number: make_node(world, world.root / "nodes", site)
        for number, site in enumerate(SITES[:3])
    }


def test_a_method_pools_what_a_round_collects(world, nodes):
    study = world.begin("pooled", sites=SITES)
    study.add(world.file("Delta"))  # was in before
    study.add(world.file("Epsilon"))
    method = mixture(make_learner(study.plan, "network"), send="predictions")
    federation: Federation = Round(DoubleGrid(app, nodes), study, QUICK)
    state = run(method, federation, study.labels.reference, seed=0)

    labels = study.labels
    begun = method.init(labels.reference, rng=torch.Generator())
    uploads = [study.read(u).reordered(labels.order) for u in study.state().in_order]
    assert len(uploads) == len(SITES)
    total = fold(method.lift(begun, upload, labels.reference.inputs) for upload in uploads)
    expected = method.finish(begun, total, labels.reference, rng=torch.Generator())
    torch.testing.assert_close(state.predictive.log_probs, expected.predictive.log_probs)


def test_each_upload_is_given_as_it_comes_and_once(world, nodes):
    study = world.begin("streamed", sites=SITES[:3])
    federation = Round(DoubleGrid(app, nodes), study, QUICK)
    task = Task(None, None, study.labels.reference.inputs)
    given = [upload.info.site for upload in federation.collect(task)]
    assert sorted(given) == sorted(SITES[:3])


def test_rows_in_the_order_of_the_kit_are_not_those_of_the_labels(world, nodes):
    study = world.begin("order", sites=SITES[:3])
    task = Task(None, None, study.kit.inputs)
    with pytest.raises(StudyError, match="not the reference rows of the study"):
        next(Round(DoubleGrid(app, nodes), study, QUICK).collect(task))
