"""Strict decoding: what is wrong in a file is said with its place."""

from __future__ import annotations

import pytest

from predbayes.errors import ExperimentError
from predbayes.posterior.cyclical import PRESETS, SamplerSettings
from predbayes_lab.config import NetworkSettings, PartitionSettings
from predbayes_lab.decode import (
    decode,
    encode,
    get_dotted,
    parse_assignment,
    read_toml,
    with_dotted,
)


def test_decoding_undoes_encoding():
    for settings in (PRESETS["tuned"], NetworkSettings(hidden=(3, 4)), PartitionSettings("sorted")):
        assert decode(type(settings), encode(settings)) == settings


def test_fields_not_given_are_those_of_the_base():
    base = SamplerSettings(num_epochs=7)
    assert decode(SamplerSettings, {"friction": 0.5}, base=base) == SamplerSettings(7, friction=0.5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"num-client": 3}, "no key 'partition.num-client'; did you mean 'partition.num-clients'"),
        ({"num_clients": 3}, "did you mean 'partition.num-clients'"),
        ({"num-clients": "3"}, "partition.num-clients = '3': input should be a valid integer"),
        ({"num-clients": 3.5}, "partition.num-clients = 3.5: input should be a valid integer"),
        ({"heterogeneity": "high"}, "input should be a valid number"),
        ({"kind": "sort"}, "partition: no partition 'sort'; did you mean 'sorted'"),
    ],
)
def test_mistakes_are_named_with_their_place(table, message):
    with pytest.raises(ExperimentError, match=message):
        decode(PartitionSettings, table, "partition")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1", ("a.b", 1)),
        ("a=0.5", ("a", 0.5)),
        ("a=[1, 2]", ("a", [1, 2])),
        ("a = word", ("a", "word")),
        ("a='two words'", ("a", "two words")),
        ("a=true", ("a", True)),
        ("a=x=y", ("a", "x=y")),
    ],
)
def test_assignments_are_read_like_toml_with_bare_words(text, expected):
    assert parse_assignment(text) == expected


def test_dotted_keys_reach_into_copies():
    table = {"a": {"b": 1}}
    assert with_dotted(table, "a.c.d", 2) == {"a": {"b": 1, "c": {"d": 2}}}
    assert table == {"a": {"b": 1}}
    assert get_dotted(table, "a.b") == 1
    assert get_dotted(table, "a.b.c") is None
    with pytest.raises(ExperimentError, match="'b' is a value and has no key 'c'"):
        with_dotted(table["a"], "b.c", 1)


def test_files_that_cannot_be_read_are_one_line(tmp_path):
    with pytest.raises(ExperimentError, match="cannot read"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ExperimentError, match=r"bad\.toml is not TOML"):
        read_toml(tmp_path / "bad.toml")
