"""Records: durable, append-only, one writer."""

from __future__ import annotations

import math

import pytest

from predbayes.errors import ExperimentError
from predbayes_lab.records import Record, open_writer, read_records


def record(seed=0, **fields):
    return Record(
        f"key{seed}", "trial", {"data.name": "wine"}, "beta", seed, {"nll": 1.5}, **fields
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "records.jsonl"


def test_reading_undoes_writing(path):
    records = [record(0, details={"beta": 0.25}, config={"a": {"b": [1]}}), record(1, seconds=2.5)]
    with open_writer(path) as writer:
        for one in records:
            writer.append(one)
    found = read_records(path)
    assert found[1] == records[1]
    assert found[0].details == {"beta": 0.25}
    assert found[0].config == {"a": {"b": [1]}}


def test_scores_that_are_nan_and_settings_that_are_infinite_can_be_kept(path):
    one = record(config={"sampler": {"prior-std": math.inf}}, error="training diverged")
    one.scores["nll"] = math.nan
    with open_writer(path) as writer:
        writer.append(one)
    (found,) = read_records(path)
    assert math.isnan(found.scores["nll"])
    assert found.config == one.config
    assert '"nll": null' in path.read_text()


def test_a_line_without_its_end_is_not_a_record_and_is_cut_off(path):
    with open_writer(path) as writer:
        writer.append(record(0))
    with path.open("a") as file:
        file.write(record(1).line()[:30])
    assert [one.seed for one in read_records(path)] == [0]
    with open_writer(path) as writer:
        writer.append(record(2))
    assert [one.seed for one in read_records(path)] == [0, 2]
    assert path.read_text().count("\n") == 2


def test_a_damaged_line_in_the_middle_is_reported(path):
    with open_writer(path) as writer:
        writer.append(record(0))
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(ExperimentError, match="line 1 is not a record"):
        read_records(path)


def test_two_writers_at_once_are_refused(path):
    with (
        open_writer(path),
        pytest.raises(ExperimentError, match="another process is writing"),
        open_writer(path),
    ):
        pass
    with open_writer(path):
        pass
