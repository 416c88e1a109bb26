"""The ledger: an append-only chain in which nothing can be changed unnoticed."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import StudyError
from predbayes_study.store.ledger import FIRST, Ledger
from predbayes_study.trust.signing import SigningKey

STEPS = [
    ("init", {"plan": "ab" * 32}),
    ("admit", {"site": "Zürich", "key": "01" * 32}),
    ("add", {"site": "Zürich", "digest": "23" * 32, "num_rows": 7}),
]


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for step, data in STEPS:
        ledger.append(step, data)
    return ledger


class TestChain:
    def test_entries_come_back_as_they_were_written(self, ledger):
        entries = ledger.entries()
        assert [(entry.step, dict(entry.data)) for entry in entries] == STEPS
        assert [entry.number for entry in entries] == [1, 2, 3]
        assert not ledger.problems()
        one, two, three = entries
        assert (one.previous, two.previous, three.previous) == (FIRST, one.digest, two.digest)
        lines = ledger.path.read_text().splitlines()
        assert [json.loads(line)["entry"]["step"] for line in lines] == ["init", "admit", "add"]

    @given(data=st.data())
    @settings(max_examples=120, deadline=None)
    def test_any_flipped_bit_is_found(self, data, tmp_path_factory):
        path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
        ledger = Ledger(path)
        for step, content in STEPS:
            ledger.append(step, content)
        altered = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(altered) - 1))
        altered[position] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(altered)
        assert ledger.problems()

    def test_a_signed_entry_is_its_keys_and_no_others(self, tmp_path):
        ledger, key = Ledger(tmp_path / "ledger.jsonl"), SigningKey.generate()
        for step, data in STEPS:
            ledger.append(step, data, key=key)
        bare = Ledger(tmp_path / "bare.jsonl")
        bare.append(*STEPS[0])
        (unsigned,) = bare.entries()
        for entry in ledger.entries():
            assert entry.is_signed_by(key.public.hex)
            assert not entry.is_signed_by(SigningKey.generate().public.hex)
            assert not entry.is_signed_by("")
        assert unsigned.is_signed_by("")
        assert not unsigned.is_signed_by(key.public.hex)

    def test_a_signature_stands_outside_the_chain(self, tmp_path):
        """So that it can be of the digest; and an entry cannot bring one along."""
        path, key = tmp_path / "ledger.jsonl", SigningKey.generate()
        entry = Ledger(path).append("init", {}, key=key)
        line = json.loads(path.read_bytes())
        assert line.keys() == {"digest", "entry", "signature"}
        assert entry.digest == dataclasses.replace(entry, signature="").digest
        line["entry"]["signature"] = line.pop("signature")
        path.write_text(json.dumps(line, separators=(",", ":"), sort_keys=True) + "\n")
        assert Ledger(path).problems()

    def test_entries_cannot_be_dropped_swapped_or_spelt_anew(self, ledger):
        content = ledger.path.read_bytes()
        lines = content.splitlines(keepends=True)
        for altered in (lines[1:], lines[:1] + lines[2:], [lines[1], lines[0], lines[2]]):
            ledger.path.write_bytes(b"".join(altered))
            with pytest.raises(StudyError, match="altered"):
                ledger.entries()
        ledger.path.write_bytes(content.replace(b'"site":"', b'"site": "', 1))
        with pytest.raises(StudyError, match="entry 2"):
            ledger.entries()


class TestCrash:
    def test_wherever_writing_stopped_the_chain_goes_on(self, ledger):
        whole = ledger.path.read_bytes()
        last = whole.splitlines(keepends=True)[-1]
        for length in range(len(last)):
            ledger.path.write_bytes(whole[: len(whole) - len(last) + length])
            ledger.mend()
            complete = length == len(last) - 1  # all but the end of the line
            assert len(ledger.entries()) == (3 if complete else 2)
            assert not ledger.problems()
            if not complete:
                ledger.append(*STEPS[2])
            assert len(ledger.entries()) == 3

    def test_a_line_cut_short_is_a_problem_until_it_is_mended(self, ledger):
        ledger.path.write_bytes(ledger.path.read_bytes()[:-9])
        assert ledger.problems() == ["ledger.jsonl ends in the middle of an entry"]
        assert len(ledger.entries()) == 2
        ledger.mend()
        assert not ledger.problems()

    def test_an_entry_whose_data_has_no_names_is_altered(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger.jsonl")
        ledger.append("init", ["no", "names"])
        with pytest.raises(StudyError, match=r"entry 1 of ledger\.jsonl was altered"):
            ledger.entries()

    @pytest.mark.parametrize("tail", [b"\x00", b"#", b"{}", b'{"digest":"0"}x'])
    def test_what_no_crash_leaves_is_not_mended_away(self, ledger, tail):
        ledger.path.write_bytes(ledger.path.read_bytes() + tail)
        with pytest.raises(StudyError, match="not what a crash leaves"):
            ledger.mend()
        ledger.path.write_bytes(ledger.path.read_bytes()[: -1 - len(tail)] + b"\x0b")
        with pytest.raises(StudyError, match="not what a crash leaves"):
            ledger.mend()

    def test_a_ledger_that_is_not_there_is_one_line(self, tmp_path):
        with pytest.raises(StudyError, match="cannot read"):
            Ledger(tmp_path / "ledger.jsonl").entries()


def test_an_entry_made_anew_breaks_the_chain(tmp_path):
    """Its own digest fits its words; the entry after it names the digest that it had."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for site in ("Alpha", "Beta", "Gamma"):
        ledger.append("admit", {"site": site})
    first, second, third = ledger.entries()
    other = dataclasses.replace(second, data={"site": "Mallory"})
    ledger.path.write_bytes(first.line() + other.line() + third.line())
    with pytest.raises(StudyError, match="entry 3 "):
        ledger.entries()
