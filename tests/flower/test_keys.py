"""A Context as a user's functions get it; `test_federation` has what a node's log says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from predbayes.errors import DataError
from predbayes.flower.keys import with_lines


@pytest.fixture
def context():
    return SimpleNamespace(node_config={"site": "Basel"}, run_config={"seed": 3}, state={})


def test_what_is_there_is_read_as_before(context):
    own = with_lines(context)
    assert own.node_config["site"] == "Basel"
    assert own.run_config == {"seed": 3}
    assert own.node_config.get("data") is None
    assert own.state is context.state


def test_a_missing_key_is_a_line_and_still_a_key_error(context):
    own = with_lines(context)
    with pytest.raises(DataError) as told:
        own.node_config["data"]
    assert isinstance(told.value, KeyError)
    assert str(told.value) == "flower-supernode's --node-config: no key 'data'; there are site"
    with pytest.raises(DataError, match=r"^\[tool.flwr.app.config\] .* did you mean 'seed'\?$"):
        own.run_config["sed"]


def test_flowers_own_context_is_not_changed(context):
    with_lines(context)
    assert type(context.node_config) is type(context.run_config) is dict
