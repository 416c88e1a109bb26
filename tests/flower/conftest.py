"""What most tests of a round begin with."""

from __future__ import annotations

import logging
import sys

import pytest

from tests.flower.nodes import LEARNER, make_node
from tests.study.fixtures import quick_results, software_is_unstated  # noqa: F401
from tests.study.world import SITES, make_world


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path / "world", method="mixture", learner=LEARNER)


@pytest.fixture
def nodes(world, tmp_path):
    """Configurations of three nodes, by number."""
    return {
        number: make_node(world, tmp_path / "nodes", site)
        for number, site in enumerate(SITES[:3], start=11)
    }


@pytest.fixture
def own_log(monkeypatch):
    """What a ServerApp changes in its process, here only for one test."""
    for package in ("predbayes", "predbayes_study", "predbayes_flower"):
        logger = logging.getLogger(package)
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
