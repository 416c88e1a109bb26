"""Keys and signatures: who sent an upload."""

import itertools
import os
import stat
from typing import get_args

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import KeyFileError
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.keyfiles import owner_of
from predbayes_study.trust.signing import _SMALL_ORDER, Kind, PublicKey, SigningKey, fingerprint

DIGEST = "ab" * 32
THING = ("upload", DIGEST.encode())
KEY = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
PRIME = 2**255 - 19  # of the field; the curve is -x² + y² = 1 + d x² y²
D = -121665 * pow(121666, -1, PRIME) % PRIME


def encoded(y, sign=0):
    """A point as a key: y, and the sign of x in the last bit."""
    return (y | sign << 255).to_bytes(32, "little").hex()


def small_order_keys():
    """Every spelling of the points whose eightfold is neutral, from their equations.

    y = 1 is neutral and y = -1 its half; y = 0 is half of that; and 2P has y = 0 where y² = -x²,
    which on the curve is d y⁴ + 2 y² - 1 = 0.
    """
    heights = {1, PRIME - 1, 0}
    for root in roots(1 + D):
        heights.update(roots((root - 1) * pow(D, -1, PRIME)))
    spellings = heights | {PRIME, PRIME + 1}  # of 0 and 1, not reduced
    return sorted(encoded(y, sign) for y in spellings for sign in (0, 1))


def is_point(y):
    """Whether some x makes y a point of the curve."""
    return bool(roots((y * y - 1) * pow(D * y * y + 1, -1, PRIME)))


def roots(square):
    """Both square roots modulo the prime, or none."""
    root = pow(square, (PRIME + 3) // 8, PRIME)
    if (root * root - square) % PRIME:
        root = root * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    return [] if (root * root - square) % PRIME else [root, PRIME - root]


class TestSignatures:
    def test_a_signature_is_of_its_key_and_digest(self):
        signature = KEY.sign(*THING)
        assert KEY.public.verifies(*THING, signature)
        assert not KEY.public.verifies("upload", b"ac" * 32, signature)
        assert not SigningKey.generate().public.verifies(*THING, signature)

    @given(position=st.integers(0, 511))
    def test_any_flipped_bit_ends_it(self, position):
        signature = bytearray.fromhex(KEY.sign(*THING))
        signature[position // 8] ^= 1 << position % 8
        assert not KEY.public.verifies(*THING, signature.hex())

    @pytest.mark.parametrize("text", ["", "00" * 63, "00" * 65, "zz" * 64, "AB" * 64, "é" * 128])
    def test_what_is_no_signature_verifies_nothing(self, text):
        assert not KEY.public.verifies(*THING, text)

    def test_it_is_of_an_upload_and_of_nothing_else(self):
        """A signature of the bare digest, made for another purpose, does not count."""
        bare = KEY.private.sign(DIGEST.encode()).hex()
        assert not KEY.public.verifies(*THING, bare)

    def test_it_is_of_one_kind_of_thing(self):
        kinds = get_args(Kind)
        for kind, other in itertools.product(kinds, kinds):
            signature = KEY.sign(kind, DIGEST.encode())
            assert KEY.public.verifies(other, DIGEST.encode(), signature) == (kind == other)


class TestPublicKeys:
    @pytest.mark.parametrize("text", ["", "00", "zz" * 32, "AB" * 32, "0" * 63 + "\n"])
    def test_a_key_is_sixty_four_digits(self, text):
        with pytest.raises(KeyFileError, match="64 hexadecimal digits"):
            PublicKey(text)

    @pytest.mark.parametrize("text", small_order_keys())
    def test_keys_under_which_anybody_can_sign_are_refused(self, text):
        """With such a key, R of small order and s = 0 fit one message in eight."""
        with pytest.raises(KeyFileError, match="anybody could sign"):
            PublicKey(text)

    def test_the_table_holds_these_and_no_other(self):
        spelled = {int.from_bytes(bytes.fromhex(key), "little") for key in small_order_keys()}
        assert {number % 2**255 % PRIME for number in spelled} == _SMALL_ORDER

    def test_a_number_that_is_no_point_verifies_nothing(self):
        off_curve = [y for y in range(2, 40) if not is_point(y)]
        assert len(off_curve) > 10  # half of all numbers are no y of a point
        for y in off_curve:
            assert not PublicKey(encoded(y)).verifies(*THING, KEY.sign(*THING))
            assert not PublicKey(encoded(y)).verifies(*THING, encoded(1) + "00" * 32)

    def test_fingerprints_are_eight_words_and_differ(self):
        words = KEY.public.fingerprint
        assert [len(word) for word in words.split("-")] == [5] * 8
        assert words != SigningKey.generate().public.fingerprint

    @given(one=st.binary(min_size=16, max_size=32), two=st.binary(min_size=16, max_size=32))
    def test_fingerprints_are_equal_only_for_equal_digests(self, one, two):
        same = fingerprint(one.hex()) == fingerprint(two.hex())
        assert same == (one[:16] == two[:16])


class TestFiles:
    def test_keys_come_back(self, tmp_path):
        KEY.save(tmp_path / "site.key")
        KEY.public.save(tmp_path / "site.pub")
        assert SigningKey.load(tmp_path / "site.key").public == KEY.public
        assert PublicKey.load(tmp_path / "site.pub") == KEY.public

    def test_line_endings_do_not_matter(self, tmp_path):
        path = tmp_path / "site.pub"
        path.write_bytes(b"  predbayes-ed25519 " + KEY.public.hex.encode() + b"\r\n\r\n")
        assert PublicKey.load(path) == KEY.public

    @pytest.mark.parametrize("key", [KEY, CoordinatorKey.generate()])
    def test_a_private_key_is_its_owners_alone_and_never_replaced(self, key, tmp_path):
        path = tmp_path / "site.key"
        key.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before = path.read_bytes()
        with pytest.raises(KeyFileError, match="never overwritten"):
            type(key).generate().save(path)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("owner", ["", "Zürich", "Long Beach"])
    def test_a_public_key_says_whose_it_is(self, owner, tmp_path):
        path = tmp_path / "site.pub"
        KEY.public.save(path, owner)
        assert PublicKey.load(path) == KEY.public
        assert owner_of(path) == owner

    def test_a_private_key_is_not_taken_for_a_public_one(self, tmp_path):
        KEY.save(tmp_path / "site.key")
        with pytest.raises(KeyFileError, match="stays with its owner"):
            PublicKey.load(tmp_path / "site.key")

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"predbayes-ed25519",
            b"predbayes-ed25519 " + b"ab" * 31,
            b"ssh-ed25519 AAAA",
            b"\xff\xfe\x00",
            b"predbayes-ed25519 " + b"0" * 10_000_000,
        ],
    )
    def test_other_files_are_no_public_keys(self, content, tmp_path):
        path = tmp_path / "site.pub"
        path.write_bytes(content)
        with pytest.raises(KeyFileError, match=r"site\.pub is not a public key"):
            PublicKey.load(path)

    @pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
    def test_other_files_are_no_private_keys(self, content, tmp_path):
        path = tmp_path / "site.key"
        path.write_bytes(content)
        with pytest.raises(KeyFileError, match=r"site\.key is not a private key"):
            SigningKey.load(path)

    def test_private_keys_of_other_kinds_are_refused(self, tmp_path):
        path = tmp_path / "site.key"
        curve = ec.generate_private_key(ec.SECP256R1())
        path.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        with pytest.raises(KeyFileError, match="not an Ed25519 key"):
            SigningKey.load(path)
        locked = BestAvailableEncryption(b"secret")
        path.write_bytes(KEY.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        with pytest.raises(KeyFileError, match="is not a private key of predbayes"):
            SigningKey.load(path)

    def test_what_is_no_file_is_told_in_one_line(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for load in (PublicKey.load, SigningKey.load):
            for name in ("absent", "pipe", "."):
                with pytest.raises(KeyFileError, match=r"^[^\n]+$"):
                    load(tmp_path / name)
        for save in (KEY.save, KEY.public.save):
            with pytest.raises(KeyFileError, match="cannot write"):
                save(tmp_path / "no folder" / "site.key")
