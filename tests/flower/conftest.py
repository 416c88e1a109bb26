"""What most tests of a round begin with."""

from __future__ import annotations

import pytest

from tests.flower.nodes import LEARNER, make_node
from tests.study.world import SITES, make_world


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path / "world", learner=LEARNER)


@pytest.fixture
def nodes(world, tmp_path):
    """Configurations of three nodes, by number."""
    return {
        number: make_node(world, tmp_path / "nodes", site)
        for number, site in enumerate(SITES[:3], start=11)
    }
