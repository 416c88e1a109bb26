"""What was deleted from a SuperLink's database is then in none of its files."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from predbayes_flower.database import clear, main
from tests.flower.test_bounds import noise, reply_with

# Of the package with which Flower makes its tables.
pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")

SECRET = noise(300_000).tobytes()


def num_found(path):
    """How many pieces of the secret are in the database's files."""
    files = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    return sum(SECRET[at : at + 64] in files for at in range(0, len(SECRET), 4096))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("database") / "superlink.db"


@pytest.fixture(scope="module")
def store(path):
    """Flower's own store of objects, with a connection that stays open."""
    made = SqlObjectStore(str(path))
    made.initialize()
    return made


@pytest.fixture
def message(store):
    """A reply in it."""
    made = reply_with(np.frombuffer(SECRET, np.uint8))
    store.preregister(1, get_object_tree(made))
    for name, found in get_all_nested_objects(made).items():
        store.put(name, found.deflate())
    return made.object_id


def test_deleted_bytes_are_there_until_the_database_is_cleared(store, message, path, capsys):
    store.delete(message)
    assert len(store) == 0
    assert num_found(path) > 70  # of 74: this is why
    assert main([str(path)]) == 0
    assert num_found(path) == 0
    assert capsys.readouterr().out == "what was deleted is gone, and no object of a run is left\n"
    assert len(store) == 0  # it is still in use


def test_what_was_not_deleted_is_told(store, message, path, capsys):
    assert main([str(path)]) == 1
    assert "objects are of a run that goes on" in capsys.readouterr().err
    store.delete(message)
    assert clear(path) == 0


def test_a_file_that_is_none_is_one_line(tmp_path, capsys):
    (tmp_path / "noise.db").write_bytes(b"noise" * 1000)
    for name in ("noise.db", "nowhere.db"):
        assert main([str(tmp_path / name)]) == 2
        assert f"{name} cannot be cleared: " in capsys.readouterr().err
    assert not (tmp_path / "nowhere.db").exists()
    assert main([]) == 2
