"""The round over a grid in this process: who is asked, asked again, refused, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from predbayes import Pooled, pools, run
from predbayes.errors import StudyError, TrainingError
from predbayes_flower import UPLOAD
from predbayes_flower.node import Node
from predbayes_flower.server import Round, run_study
from predbayes_flower.study_client import app
from predbayes_flower.study_server import make_server_app
from predbayes_study.coordinator.run_status import RunStatus
from predbayes_study.coordinator.study import Study
from predbayes_study.plan.models import make_learner
from predbayes_study.site.release import Approvals
from tests.core.contracts.averaged import Averaged
from tests.flower.double import DoubleGrid
from tests.flower.nodes import LEARNER, QUICK, SHORT, make_node
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


def test_the_same_uploads_as_by_files(world, nodes, tmp_path):
    over_flower = world.begin("flower", sites=SITES[:3])
    run_study(DoubleGrid(app, nodes), over_flower.folder, QUICK)
    by_file = world.begin("files", sites=SITES[:3])
    for config in nodes.values():
        node = Node.of_config(config)
        by_file.add(node.training.run(node.rows()).path)
    by_file.finish()
    one, two = over_flower.state(), by_file.state()
    assert {u.site: u.digest for u in one.in_order} == {u.site: u.digest for u in two.in_order}
    assert {u.site: u.file_digest for u in one.in_order} == {
        u.site: u.file_digest for u in two.in_order
    }
    assert one.results[-1].outcome == two.results[-1].outcome


@pytest.mark.parametrize("code", [3, 8])
def test_a_message_that_was_lost_is_asked_anew(world, nodes, code):
    study = world.begin(sites=SITES[:3])
    grid = DoubleGrid(app, nodes)
    grid.faults[12, UPLOAD] = [code, code]
    assert Round(grid, study, QUICK).run() == dict.fromkeys(SITES[:3], "in")
    assert [kind for node, kind in grid.asked if node == 12].count(UPLOAD) == 3


def test_a_client_that_raised_is_not_asked_again_and_stops_nobody(world, nodes):
    study = world.begin(sites=SITES[:3])
    grid = DoubleGrid(app, nodes)
    grid.faults[12, UPLOAD] = [2]
    found = Round(grid, study, SHORT).run()
    assert found == {"Alpha": "in", "Beta": "failed", "Gamma": "in"}


def test_a_site_with_manual_release_is_asked_until_it_approves(tmp_path):
    world = make_world(tmp_path / "world", learner=LEARNER, upload="release = 'manual'\n")
    nodes = {11: make_node(world, tmp_path / "nodes", "Alpha")}
    study = world.begin(sites=("Alpha",))
    grid = DoubleGrid(app, nodes)

    def officer(node, kind):
        if kind == UPLOAD and [k for _, k in grid.asked].count(UPLOAD) == 2:
            folder = Path(nodes[11]["site"]).parent
            from predbayes.exchange.upload import Upload

            held_back = Upload.load(folder / "out" / "held-back.safetensors")
            Approvals(folder).record("upload", held_back.digest(), "officer")

    grid.on_push = officer
    assert Round(grid, study, QUICK).run() == {"Alpha": "in"}
    assert [kind for _, kind in grid.asked].count(UPLOAD) == 2


def test_a_foreign_key_is_refused_and_stops_nobody(world, nodes, tmp_path):
    from predbayes_study.trust.signing import SigningKey

    path = Path(nodes[12]["site"]).parent / "Beta.key"
    path.unlink()
    SigningKey.generate().save(path)
    study = world.begin(sites=SITES[:3])
    found = Round(DoubleGrid(app, nodes), study, SHORT).run()
    assert found == {"Alpha": "in", "Beta": "refused", "Gamma": "in"}


def test_what_goes_wrong_at_a_site_stays_there(world, nodes, caplog):
    caplog.set_level("INFO")
    Path(nodes[12]["data"]).write_text("x,y,kind\n41.4142,Qanary,red\n", encoding="utf-8")
    study = world.begin(sites=SITES[:3])
    found = Round(DoubleGrid(app, nodes), study, SHORT).run()
    assert found["Beta"] == "failed"
    told = [r.getMessage() for r in caplog.records if r.name == "predbayes_flower.driver"]
    assert any("Beta" in line for line in told)
    assert not any("Qanary" in line or "41.4142" in line for line in told)


def test_while_the_result_is_made_the_status_says_so(world, nodes, monkeypatch, caplog):
    caplog.set_level("INFO")
    study, seen = world.begin(sites=SITES[:4]), []
    finish = Study.finish

    def looked_at(made, **options):
        seen.append(RunStatus.load(study.folder))
        return finish(made, **options)

    monkeypatch.setattr(Study, "finish", looked_at)
    run_study(DoubleGrid(app, nodes), study.folder, replace(QUICK, grace_seconds=0.1))
    (told,) = seen
    assert told.finishing
    assert told.sites == {**dict.fromkeys(SITES[:3], "in"), SITES[3]: "not there"}
    report = Path(caplog.messages[-1].removeprefix("report: "))
    assert report.is_relative_to(study.folder)
    assert report.is_file()


def test_without_the_quorum_there_is_no_result_and_nothing_is_lost(world, nodes):
    study = world.begin(sites=SITES[:3])
    grid = DoubleGrid(app, nodes)
    grid.online = {11}
    with pytest.raises(StudyError, match="the round ended with 1 site;"):
        run_study(grid, study.folder, SHORT)
    assert list(study.state().uploads) == ["Alpha"]


def test_one_run_at_a_time(world, nodes):
    from predbayes_study.store.files import RUN_LOCK, locked

    study = world.begin(sites=SITES[:3])
    with locked(study.folder, RUN_LOCK), pytest.raises(StudyError, match="another command"):
        run_study(DoubleGrid(app, nodes), study.folder, QUICK)


@pytest.mark.parametrize("method", ["averaged", "mixture"])
def test_a_round_is_no_federation_for_a_method(world, nodes, method):
    """Sites follow the plan that they approved: networks would be averaged that share no start."""
    study = world.begin(sites=SITES[:3])
    grid = DoubleGrid(app, nodes)
    learner = make_learner(study.plan, "network")
    methods = {"averaged": Averaged(learner), "mixture": Pooled(learner, pools.mixture())}
    with pytest.raises(TrainingError, match=r"^Round is no federation: [^\n]*study\.finish\(\)$"):
        run(methods[method], Round(grid, study, QUICK), study.labels.reference, seed=0)
    assert not grid.asked


def test_a_relative_path_is_refused(world):
    with pytest.raises(StudyError, match="absolute"):
        run_study(None, Path("study"), QUICK)


def test_a_run_without_a_study_is_told_how_to_name_it(own_log):
    with pytest.raises(StudyError, match="names no study; give --run-config 'study="):
        make_server_app()(None, SimpleNamespace(run_config={"study": "", "simulation": ""}))
