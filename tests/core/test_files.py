"""A file is there whole or not at all, also where writing fails or several write it."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import save_file

from predbayes.files import (
    TEMPORARY,
    make_folder,
    scratch_beside,
    write_bytes,
    write_whole,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_gets_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write(partial):
        partial.write_text("ne")
        assert path.read_text() == "old"
        assert partial.name.startswith(TEMPORARY)
        partial.write_text("new")

    write_whole(path, write)
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def write(partial):
        partial.write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, write)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_arrays_that_find_no_room_are_an_error_of_the_system(tmp_path):
    """As for any other file; safetensors has an exception of its own."""
    path = tmp_path / "no folder" / "arrays.safetensors"
    with pytest.raises(OSError, match="cannot be written") as error:
        write_whole(path, lambda partial: save_file({"x": torch.ones(2)}, partial))
    assert error.value.filename == str(path)


def test_a_folder_gets_its_name_when_it_is_full(tmp_path):
    with make_folder(tmp_path / "folder", 0o700) as scratch:
        (scratch / "inner").mkdir()
        (scratch / "inner" / "file").write_text("x")
        assert not (tmp_path / "folder").exists()
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "inner" / "file").read_text() == "x"
    if os.name == "posix":
        assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_filled_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError), make_folder(tmp_path / "folder") as scratch:
        (scratch / "file").rename(tmp_path / "elsewhere")
    assert names(tmp_path) == []


def test_what_killed_processes_left_is_removed_and_no_other(tmp_path):
    left = [scratch_beside(tmp_path / name) for name in ("mine", "other")]
    for path in left:
        path.mkdir()
    scratch_beside(tmp_path / "mine")
    assert names(tmp_path) == [left[1].name]
