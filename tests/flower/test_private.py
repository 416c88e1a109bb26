"""A study with differential privacy of people over Flower: a round brings what files would."""

from __future__ import annotations

from pathlib import Path

from predbayes import errors
from predbayes.exchange.header import Header
from predbayes_flower.server import run_study
from predbayes_flower.study_client import app
from predbayes_flower.wire import read_words, replying, words
from predbayes_study.payloads.details import promise_of
from predbayes_study.site.book import FILE
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


def test_every_failure_is_told_in_the_same_word():
    """A kind of error would reveal what a site found in its rows."""
    from flwr.app import Message

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = [kind for kind in kinds if issubclass(kind, Exception)]
    told = []
    for kind in (*raised, ValueError, MemoryError, ZeroDivisionError):

        def answer(_message, _context, kind=kind):
            raise kind.__new__(kind)

        asked = Message(words(), dst_node_id=1, message_type="train.upload")
        told.append(dict(read_words(replying(answer)(asked, None).content)))
    assert len(told) > 10
    assert told == [{"status": "failed"}] * len(told)
