"""Sealed files: only the coordinator reads them, and only as they were made."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from predbayes.errors import UploadError
from predbayes_study.payloads.details import read_header
from predbayes_study.trust import sealed
from predbayes_study.trust.sealed import is_sealed, seal, sealed_room, unseal

KEY = X25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw().hex()
PLAN = "ab" * 32
CHUNK, TAG = 1 << 16, 16


def made(folder, content, *, to=PUBLIC, plan=PLAN, site="Basel"):
    (folder / "plain").write_bytes(content)
    seal(folder / "plain", folder / "sealed", plan=plan, site=site, to=to)
    return (folder / "sealed").read_bytes()


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
    """What stands before the chunks, and each chunk."""
    start = len(sealed.MAGIC) + 2
    start += int.from_bytes(content[start - 2 : start], "big")
    body = content[start:]
    return content[:start], [body[i : i + CHUNK + TAG] for i in range(0, len(body), CHUNK + TAG)]


SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sealed")


@pytest.fixture(scope="module")
def three(folder):
    """A file of three chunks, and its content."""
    content = bytes(range(256)) * (5 * CHUNK // 512)
    return made(folder, content), content


class TestRoundTrip:
    @pytest.mark.parametrize("size", SIZES)
    def test_what_went_in_comes_out(self, folder, size):
        content = bytes(i % 251 for i in range(size))
        sealed_content = made(folder, content)
        assert opened(folder, sealed_content) == content
        assert len(sealed_content) <= sealed_room(size)
        assert is_sealed(folder / "sealed")
        assert not is_sealed(folder / "plain")

    def test_nothing_of_it_can_be_read_on_the_way(self, folder):
        content = b"an unmistakable text, " * 5000
        assert b"unmistakable" not in made(folder, content)

    def test_where_plain_files_are_taken_it_is_told_from_rubbish(self, folder):
        made(folder, b"x")
        for source in (folder / "sealed", (folder / "sealed").read_bytes()):
            with pytest.raises(UploadError, match="it is encrypted"):
                read_header(source)

    def test_the_same_twice_is_not_the_same_bytes(self, folder):
        assert made(folder, b"x") != made(folder, b"x")


class TestAltered:
    @given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
    @settings(max_examples=150)
    def test_any_flipped_bit_is_refused(self, folder, three, position, bit):
        altered = bytearray(three[0])
        altered[position % len(altered)] ^= 1 << bit
        refused(folder, bytes(altered))

    @given(length=st.integers(0, 10**9))
    def test_a_file_cut_anywhere_is_refused(self, folder, three, length):
        refused(folder, three[0][: length % len(three[0])])

    @pytest.mark.parametrize("more", [b"\0", b"x" * TAG, b"x" * (CHUNK + TAG)])
    def test_bytes_added_are_refused(self, folder, three, more):
        refused(folder, three[0] + more)

    @pytest.mark.parametrize("order", [(1, 0, 2), (0, 2), (0, 1), (0, 0, 1, 2), (0, 1, 2, 2), (2,)])
    def test_chunks_in_another_order_are_refused(self, folder, three, order):
        head, chunks = parts(three[0])
        assert len(chunks) == 3
        refused(folder, head + b"".join(chunks[i] for i in order))

    def test_chunks_of_two_files_do_not_mix(self, folder, three):
        head, chunks = parts(three[0])
        _, others = parts(made(folder, three[1]))
        for at in range(3):
            mixed = [others[i] if i == at else chunks[i] for i in range(3)]
            refused(folder, head + b"".join(mixed))

    @pytest.mark.parametrize(
        "other", [{"site": "Bern"}, {"plan": "cd" * 32}, {"more": "x"}, {"ephemeral": "00" * 32}]
    )
    def test_another_envelope_is_refused(self, folder, three, other):
        head, chunks = parts(three[0])
        told = json.loads(head[len(sealed.MAGIC) + 2 :]) | other
        text = json.dumps(told, separators=(",", ":")).encode()
        changed = sealed.MAGIC + len(text).to_bytes(2, "big") + text
        refused(folder, changed + b"".join(chunks), plan=told["plan"])


class TestRecipient:
    def test_nobody_elses_key_opens_it(self, folder, three):
        other = X25519PrivateKey.generate()
        assert "another coordinator's key" in refused(folder, three[0], key=other)

    def test_also_not_if_the_envelope_is_made_to_name_it(self, folder, three):
        other = X25519PrivateKey.generate()
        named = three[0].replace(
            PUBLIC.encode(), other.public_key().public_bytes_raw().hex().encode()
        )
        assert "cannot be decrypted" in refused(folder, named, key=other)

    def test_another_plan_is_refused(self, folder, three):
        assert "another plan" in refused(folder, three[0], plan="cd" * 32)

    @given(content=st.binary(max_size=300))
    def test_whatever_else_is_one_line(self, folder, content):
        refused(folder, content)
        refused(folder, sealed.MAGIC + content)
