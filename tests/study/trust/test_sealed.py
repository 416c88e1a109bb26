"""Sealed files: only the coordinator reads them, and only as they were made."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import UploadError
from predbayes_study.payloads.details import read_header
from predbayes_study.trust import sealed
from predbayes_study.trust.encryption import DecryptionKey, key_id
from predbayes_study.trust.sealed import is_sealed, seal, sealed_room, unseal

KEY, OTHER = DecryptionKey(b"k" * 32), DecryptionKey(b"o" * 32)
PLAN = "ab" * 32


def made(content, *, to=KEY.public, plan=PLAN, site="Basel"):
    return seal(content, plan=plan, site=site, to=to)


def opened(folder, content, *, key=KEY, plan=PLAN):
    (folder / "received").write_bytes(content)
    unseal(folder / "received", folder / "opened", key, plan)
    return (folder / "opened").read_bytes()


def refused(folder, content, **options):
    with pytest.raises(UploadError) as error:
        opened(folder, content, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def parts(content):
    """The first line, the envelope, and what is encrypted."""
    first, second, rest = content.split(b"\n", 2)
    return first + b"\n", second + b"\n", rest


SIZES = [0, 1, 4096, 1 << 20]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sealed")


@pytest.fixture(scope="module")
def one():
    """A sealed file."""
    return made(bytes(range(256)) * 20)


class TestRoundTrip:
    @pytest.mark.parametrize("size", SIZES)
    def test_what_went_in_comes_out(self, folder, size):
        content = bytes(i % 251 for i in range(size))
        sealed_content = made(content)
        assert opened(folder, sealed_content) == content
        assert len(sealed_content) <= sealed_room(size)
        assert is_sealed(folder / "received")
        assert not is_sealed(folder / "opened")

    def test_nothing_of_it_can_be_read_on_the_way(self):
        content = b"an unmistakable text, " * 5000
        assert b"unmistakable" not in made(content)

    def test_where_plain_files_are_taken_it_is_told_from_rubbish(self, folder):
        (folder / "sealed").write_bytes(made(b"x"))
        for source in (folder / "sealed", (folder / "sealed").read_bytes()):
            with pytest.raises(UploadError, match="it is encrypted"):
                read_header(source)

    def test_the_same_twice_is_not_the_same_bytes(self):
        assert made(b"x") != made(b"x")


class TestAltered:
    @given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
    @settings(max_examples=150)
    def test_any_flipped_bit_is_refused(self, folder, one, position, bit):
        altered = bytearray(one)
        altered[position % len(altered)] ^= 1 << bit
        refused(folder, bytes(altered))

    @given(length=st.integers(0, 10**9))
    def test_a_file_cut_anywhere_is_refused(self, folder, one, length):
        refused(folder, one[: length % len(one)])

    @pytest.mark.parametrize("more", [b"\0", b"x" * 5000])
    def test_bytes_added_are_refused(self, folder, one, more):
        refused(folder, one + more)

    def test_two_files_do_not_mix(self, folder, one):
        """Both have the same envelope, and keys of their own."""
        (first, second, mine), (*_, other) = parts(one), parts(made(b"x" * 5120))
        assert opened(folder, first + second + other) == b"x" * 5120
        for at in (100, 1100, 1120, 3000):
            refused(folder, first + second + mine[:at] + other[at:])

    @pytest.mark.parametrize("other", [{"site": "Bern"}, {"plan": "cd" * 32}, {"more": "x"}])
    def test_another_envelope_is_refused(self, folder, one, other):
        first, second, rest = parts(one)
        told = json.loads(second) | other
        text = json.dumps(told, separators=(",", ":")).encode() + b"\n"
        refused(folder, first + text + rest, plan=told["plan"])

    def test_the_same_envelope_in_other_words_is_refused(self, folder, one):
        first, second, rest = parts(one)
        refused(folder, first + json.dumps(json.loads(second)).encode() + b"\n" + rest)


class TestRecipient:
    def test_nobody_elses_key_opens_it(self, folder, one):
        assert "another coordinator's key" in refused(folder, one, key=OTHER)

    def test_also_not_if_the_envelope_is_made_to_name_it(self, folder, one):
        named = one.replace(key_id(KEY.public).encode(), key_id(OTHER.public).encode())
        assert "cannot be decrypted" in refused(folder, named, key=OTHER)

    def test_another_plan_is_refused(self, folder, one):
        assert "another plan" in refused(folder, one, plan="cd" * 32)

    @given(content=st.binary(max_size=300))
    def test_whatever_else_is_one_line(self, folder, content):
        refused(folder, content)
        refused(folder, sealed.MAGIC + content)
