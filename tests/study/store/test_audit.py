"""The audit log: whole lines in a chain, whoever writes, and nothing of a stranger's between."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import DataError, StudyError
from predbayes_study.store.audit import AuditLog


@pytest.fixture
def log(tmp_path):
    return AuditLog.at(tmp_path)


def lines(log):
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def outcomes(log):
    return [(line["act"], line["outcome"]) for line in lines(log)]


class TestLines:
    def test_an_act_is_told_to_its_owner_alone_with_what_was_learnt(self, log):
        with log.during("train", long=True, plan="ab" * 32) as what:
            what["upload"] = "cd" * 32
        begun, done = lines(log)
        assert begun["what"] == {"plan": "ab" * 32}
        assert done["what"] == {"plan": "ab" * 32, "upload": "cd" * 32}
        assert outcomes(log) == [("train", "begun"), ("train", "done")]
        assert done["user"]
        assert done["time"].endswith("Z")
        assert stat.S_IMODE(log.path.stat().st_mode) == 0o600

    @pytest.mark.parametrize(
        ("error", "outcome", "reason"),
        [
            (StudyError("not approved"), "refused", "not approved"),
            (DataError("the cell 'Qanary' is odd"), "refused", "DataError"),
            (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
            (ValueError("Qanary"), "failed", "ValueError"),
        ],
    )
    def test_what_goes_wrong_is_told_without_a_cell(self, log, error, outcome, reason):
        with pytest.raises(type(error)), log.during("train"):
            raise error
        (line,) = lines(log)
        assert (line["outcome"], line["what"]["reason"]) == (outcome, reason)
        assert b"Qanary" not in log.path.read_bytes()

    @given(text=st.text(max_size=400))
    @settings(max_examples=25)
    def test_no_text_begins_a_line_or_moves_a_cursor(self, text, tmp_path_factory):
        log = AuditLog.at(tmp_path_factory.mktemp("log"))
        log.note("add", file=text, site='"},\n{"act":"finish"')
        content = log.path.read_bytes()
        assert content.count(b"\n") == 1
        assert all(32 <= byte < 127 for byte in content[:-1])
        assert len(content) < 5000
        assert outcomes(log) == [("add", "done")]


class TestChain:
    def test_each_line_has_the_digest_of_the_one_before(self, log):
        for act in ("init", "admit", "add"):
            log.note(act, **{f"fact {number}": "x" * 300 for number in range(40)})
        first, second, third = log.path.read_bytes().splitlines()
        assert json.loads(first)["previous"] == "0" * 64
        for line in (first, second, third):
            content = line[: line.index(b',"digest"')] + b"}"
            assert json.loads(line)["digest"] == hashlib.sha256(content).hexdigest()
        assert json.loads(second)["previous"] == json.loads(first)["digest"]
        assert json.loads(third)["previous"] == json.loads(second)["digest"]
        assert [line["number"] for line in lines(log)] == [1, 2, 3]
        assert log.problems() == []

    def test_a_line_changed_dropped_or_put_elsewhere_is_found(self, log):
        for act in ("init", "admit", "add", "finish"):
            log.note(act)
        one, two, three, four = log.path.read_bytes().splitlines(keepends=True)
        for altered in (
            [two, three, four],
            [one, three, four],
            [one, three, two, four],
            [one, two.replace(b"admit", b"cheat"), three, four],
            [one, b"note\n", two, three, four],
            [one, two, b"\n", three, four],
        ):
            log.path.write_bytes(b"".join(altered))
            assert log.problems(), altered

    @given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
    def test_any_flipped_bit_is_found(self, position, bit, tmp_path_factory):
        log = AuditLog.at(tmp_path_factory.mktemp("log"))
        log.note("init")
        log.note("add", file="a")
        altered = bytearray(log.path.read_bytes())
        altered[position % len(altered)] ^= 1 << bit
        log.path.write_bytes(altered)
        assert log.problems()

    @pytest.mark.parametrize("text", ["a note", '{"number":1e999,"previous":""}', "[" * 10**5])
    def test_it_goes_on_after_somebody_wrote_into_it_and_keeps_the_break(self, log, text):
        log.note("init")
        with log.path.open("a") as file:
            file.write(f"{text}\n")
        log.note("add")
        assert log.problems() == ["line 2 of audit.jsonl was altered, or one before it is gone"]

    @pytest.mark.parametrize("cut", [1, 20, -1])
    def test_a_line_that_a_kill_cut_short_is_removed_and_that_is_told(self, log, cut):
        log.note("init")
        whole = log.path.read_bytes()
        log.path.write_bytes(whole + whole[:cut])
        assert log.problems() == ["audit.jsonl ends in the middle of an entry"]
        log.note("add")
        assert outcomes(log) == [("init", "done"), ("mend", "done"), ("add", "done")]
        assert log.problems() == []


def write(path, number):
    for _ in range(number):
        AuditLog(path).note("add", process=os.getpid())


def test_many_writers_leave_whole_lines_in_one_chain(log):
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=write, args=(log.path, 25)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert len(lines(log)) == 100
    assert len({line["what"]["process"] for line in lines(log)}) == 4
    assert log.problems() == []
