"""What a round, or a node, waits for: an officer, another command, another process, a line."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from predbayes_flower import HELLO, UPLOAD
from predbayes_flower.node import Node
from predbayes_flower.round import RoundSettings
from predbayes_flower.server import Round
from predbayes_flower.study_client import app
from predbayes_study.site.release import Approvals
from predbayes_study.store.files import LOCK, RUN_LOCK, locked
from tests.flower.double import DoubleGrid
from tests.flower.nodes import make_node
from tests.study.world import SITES

QUICK = RoundSettings(
    deadline_seconds=60, poll_seconds=0.02, retry_seconds=0.2, report_seconds=0.1, ack_seconds=2
)


def after(grid, kind, act):
    """Do something once, when the first message of a kind is on its way."""

    def on_push(_node, pushed):
        if pushed == kind and [k for _, k in grid.asked].count(kind) == 1:
            act()

    grid.on_push = on_push


def test_a_site_that_approves_while_the_round_waits_is_asked(world, tmp_path):
    config = make_node(world, tmp_path / "nodes", "Alpha", approve=False)
    study = world.begin(sites=("Alpha",))
    grid = DoubleGrid(app, {11: config})

    def officer():
        time.sleep(0.5)
        Approvals(Path(config["site"]).parent).record("plan", world.kit.digest, "officer")

    after(grid, HELLO, threading.Thread(target=officer).start)
    assert Round(grid, study, QUICK).run() == {"Alpha": "in"}
    assert [kind for _, kind in grid.asked].count(UPLOAD) == 1


def test_a_file_that_comes_while_the_round_waits_is_noticed(world, tmp_path):
    nodes = {11: make_node(world, tmp_path / "nodes", "Alpha")}
    study = world.begin(sites=SITES[:2])
    path = world.file("Beta")
    grid = DoubleGrid(app, nodes)
    after(grid, UPLOAD, lambda: study.add(path))
    assert Round(grid, study, QUICK).run() == dict.fromkeys(SITES[:2], "in")


def test_an_upload_that_comes_while_a_command_is_at_work_is_kept(world, tmp_path):
    nodes = {11: make_node(world, tmp_path / "nodes", "Alpha")}
    study = world.begin(sites=("Alpha",))
    grid = DoubleGrid(app, nodes)

    def command():
        with locked(study.folder, LOCK):
            time.sleep(4)

    after(grid, HELLO, threading.Thread(target=command).start)
    assert Round(grid, study, QUICK).run() == {"Alpha": "in"}
    assert [kind for _, kind in grid.asked].count(UPLOAD) == 1


def test_a_node_that_cannot_answer_is_not_asked_without_pause(world, tmp_path):
    nodes = {11: make_node(world, tmp_path / "nodes", "Alpha")}
    grid = DoubleGrid(app, nodes)
    grid.faults[11, HELLO] = [2] * 1000
    settings = RoundSettings(
        deadline_seconds=1, poll_seconds=0.01, retry_seconds=0.4, ack_seconds=0.1
    )
    Round(grid, world.begin(sites=("Alpha",)), settings).run()
    assert [kind for _, kind in grid.asked].count(HELLO) <= 3


def test_a_process_waits_for_another_that_trains_in_its_folder(world, tmp_path):
    node = Node.of_config(make_node(world, tmp_path / "nodes", "Alpha"))
    node.training.out.mkdir()
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(node.answer(world.kit.digest)))
    with locked(node.training.out, RUN_LOCK):
        waiting.start()
        time.sleep(0.5)
        assert not (node.training.out / "home").exists()
        node.training.run(node.rows())
        made = node.training.out / "home" / "trained.json"
        before = made.stat().st_mtime_ns
    waiting.join(30)
    assert answers == [node.training.out / "Alpha.safetensors"]
    assert made.stat().st_mtime_ns == before
