"""Encryption to a public key: only its owner reads it, and only with what it was bound to."""

from __future__ import annotations

import base64

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import mlkem
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    Suite,
)
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import KeyFileError, MissingPackageError
from predbayes_study.trust import encryption
from predbayes_study.trust.encryption import OVERHEAD, DecryptionKey, encrypt, key_id
from predbayes_study.trust.signing import SigningKey

KEY = DecryptionKey(bytes(range(32)))
INFO = b"what it is bound to"
PRIME = 2**255 - 19
EIGHT = (  # points of order eight, by their first coordinate
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
)


def halves(public):
    raw = base64.b64decode(public)
    return raw[:1184], raw[1184:]


def joined(ml_kem, x25519):
    return base64.b64encode(ml_kem + x25519).decode()


class TestMessages:
    @given(plaintext=st.binary(max_size=300), info=st.binary(max_size=300))
    def test_what_went_in_comes_out(self, plaintext, info):
        ciphertext = encrypt(KEY.public, plaintext, info)
        assert KEY.decrypt(ciphertext, info) == plaintext
        assert len(ciphertext) == len(plaintext) + OVERHEAD

    @given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
    def test_any_flipped_bit_is_refused(self, position, bit):
        altered = bytearray(encrypt(KEY.public, b"text", INFO))
        altered[position % len(altered)] ^= 1 << bit
        with pytest.raises(ValueError, match="cannot be decrypted"):
            KEY.decrypt(bytes(altered), INFO)

    @pytest.mark.parametrize("size", [0, 1, 1088, 1120, OVERHEAD, OVERHEAD + 3])
    def test_one_cut_anywhere_is_refused(self, size):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            KEY.decrypt(encrypt(KEY.public, b"text", INFO)[:size], INFO)

    def test_no_other_key_and_no_other_info_opens_it(self):
        ciphertext = encrypt(KEY.public, b"text", INFO)
        for key, info in ((DecryptionKey(bytes(32)), INFO), (KEY, INFO + b"!"), (KEY, b"")):
            with pytest.raises(ValueError, match="cannot be decrypted"):
                key.decrypt(ciphertext, info)

    @pytest.mark.parametrize("other", [0, 1], ids=["ML-KEM", "X25519"])
    def test_each_half_of_a_key_alone_opens_nothing(self, other):
        """Hybrid: who has broken one of the two still lacks the other."""
        stranger = DecryptionKey(bytes(32))
        known = [KEY._halves[half] if half != other else stranger._halves[half] for half in (0, 1)]
        suite = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
        ciphertext = encrypt(KEY.public, b"text", INFO)
        assert suite.decrypt(ciphertext, MLKEM768X25519PrivateKey(*KEY._halves), info=INFO)
        with pytest.raises(Exception, match=r"^$"):
            suite.decrypt(ciphertext, MLKEM768X25519PrivateKey(*known), info=INFO)


class TestKeys:
    def test_a_key_is_that_of_the_drafts_first_vector(self):
        """draft-connolly-cfrg-xwing-kem, appendix C: seed, and how the public key begins."""
        seed = "7f9c2ba4e88f827d616045507605853ed73b8093f6efbc88eb1a6eacfa66ef26"
        public = base64.b64decode(DecryptionKey(bytes.fromhex(seed)).public).hex()
        assert public.startswith("e2236b35a8c24b39b10aa1323a96a919a2ced88400633a7b07131713fc14b2b5")
        assert len(public) == 2 * 1216

    def test_it_is_derived_from_the_signing_key_and_tells_nothing_of_it(self):
        one, other = SigningKey.generate(), SigningKey.generate()
        keys = [DecryptionKey.of(key.private) for key in (one, one, other)]
        assert keys[0] == keys[1] != keys[2]
        assert keys[0].seed != one.private.private_bytes_raw()
        assert keys[0].seed.hex() not in repr(keys[0])

    @pytest.mark.parametrize("high", [0, 2**255])
    @pytest.mark.parametrize("point", [0, 1, *EIGHT, PRIME - 1, PRIME, PRIME + 1])
    def test_nothing_is_encrypted_to_a_point_with_which_everybody_agrees_on_zeros(
        self, point, high
    ):
        public = joined(halves(KEY.public)[0], (point + high).to_bytes(32, "little"))
        with pytest.raises(KeyFileError, match="nobody has the private key"):
            encrypt(public, b"text", INFO)

    @pytest.mark.parametrize("point", [0, 1, *EIGHT])
    def test_a_message_with_such_a_point_of_its_own_is_refused(self, point):
        ciphertext = encrypt(KEY.public, b"text", INFO)
        forged = ciphertext[:1088] + point.to_bytes(32, "little") + ciphertext[1120:]
        with pytest.raises(ValueError, match="cannot be decrypted"):
            KEY.decrypt(forged, INFO)

    def test_numbers_above_the_modulus_are_no_key(self):
        with pytest.raises(KeyFileError, match="nobody has the private key"):
            encrypt(joined(b"\xff" * 1184, halves(KEY.public)[1]), b"text", INFO)

    def test_a_public_key_has_one_spelling(self):
        public = KEY.public
        assert public.endswith("==")
        last = public[-3]
        spare = chr(ord(last) + 1)  # differs in bits that are not of the key
        assert base64.b64decode(f"{public[:-3]}{spare}==") == base64.b64decode(public)
        for other in (f"{public[:-3]}{spare}==", public + "\n", public[:-2], public[4:], "", "é"):
            with pytest.raises(KeyFileError, match="1,216 bytes"):
                key_id(other)

    def test_both_halves_count_for_its_name(self):
        stranger = DecryptionKey(bytes(32)).public
        mixed = (
            joined(halves(KEY.public)[0], halves(stranger)[1]),
            joined(halves(stranger)[0], halves(KEY.public)[1]),
        )
        assert len({key_id(key) for key in (KEY.public, stranger, *mixed)}) == 4

    def test_its_halves_are_keys_of_the_two_methods(self):
        ml_kem, x25519 = halves(KEY.public)
        assert isinstance(KEY._halves[0], MLKEM768PrivateKey)
        assert isinstance(KEY._halves[1], X25519PrivateKey)
        assert KEY._halves[0].public_key().public_bytes_raw() == ml_kem
        assert KEY._halves[1].public_key().public_bytes_raw() == x25519


def test_an_openssl_without_ml_kem_is_one_line(monkeypatch):
    """Of a distribution's own build, such as Debian's: the package is there, and cannot do it."""

    def unsupported(seed):
        raise UnsupportedAlgorithm("ML-KEM-768 is not supported by this backend")

    monkeypatch.setattr(mlkem.MLKEM768PrivateKey, "from_seed_bytes", unsupported, raising=True)
    encryption._kems.cache_clear()
    with pytest.raises(MissingPackageError, match="cryptography>=48"):
        encrypt(KEY.public, b"text", INFO)
    monkeypatch.undo()
    encryption._kems.cache_clear()
