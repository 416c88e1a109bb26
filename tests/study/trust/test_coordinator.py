"""The coordinator's two keys, and their files."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from predbayes.errors import KeyFileError
from predbayes_study.trust.coordinator import CoordinatorKey, CoordinatorPublicKey
from predbayes_study.trust.signing import PublicKey, SigningKey

KEY = CoordinatorKey.generate()
CONTENT = b"head"


@pytest.fixture
def files(tmp_path):
    KEY.save(tmp_path / "coordinator.key")
    KEY.public.save(tmp_path / "coordinator.pub")
    return tmp_path


def test_both_keys_come_back(files):
    key = CoordinatorKey.load(files / "coordinator.key")
    public = CoordinatorPublicKey.load(files / "coordinator.pub")
    assert key.public == public == KEY.public
    signature = key.signing.sign("receipt", CONTENT)
    assert public.signing.verifies("receipt", CONTENT, signature)
    assert key.encryption.private_bytes_raw() == KEY.encryption.private_bytes_raw()


def test_a_passphrase_is_asked_for_only_where_there_is_one(files):
    def unwanted(path):
        raise AssertionError(path)

    assert CoordinatorKey.load(files / "coordinator.key", unwanted).public == KEY.public
    path = files / "locked.key"
    KEY.save(path, b"open sesame")
    assert b"ENCRYPTED" in path.read_bytes()
    assert CoordinatorKey.load(path, lambda _: b"open sesame").public == KEY.public
    with pytest.raises(KeyFileError, match=r"^that is not the passphrase of locked.key"):
        CoordinatorKey.load(path, lambda _: b"open barley")


def test_a_sites_key_and_the_coordinators_are_not_taken_for_each_other(files):
    site = SigningKey.generate()
    site.save(files / "site.key")
    site.public.save(files / "site.pub")
    for load, name in (
        (CoordinatorKey.load, "site.key"),
        (SigningKey.load, "coordinator.key"),
        (CoordinatorPublicKey.load, "site.pub"),
        (PublicKey.load, "coordinator.pub"),
        (CoordinatorPublicKey.load, "coordinator.key"),
    ):
        with pytest.raises(KeyFileError, match=r"^[^\n]+$"):
            load(files / name)


def test_the_two_keys_of_a_file_have_an_order(files):
    path = files / "coordinator.pub"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    with pytest.raises(KeyFileError, match="not a public key"):
        CoordinatorPublicKey.load(path)
    blocks = (files / "coordinator.key").read_bytes().split(b"-----BEGIN")
    turned = files / "turned.key"
    turned.write_bytes(b"-----BEGIN".join([b"", blocks[2], blocks[1]]))
    with pytest.raises(KeyFileError, match="not a coordinator's private key"):
        CoordinatorKey.load(turned)


def test_the_words_are_of_both_keys():
    other = CoordinatorKey.generate().public
    mixed = CoordinatorPublicKey(KEY.public.signing, other.encryption)
    assert len({KEY.public.fingerprint, other.fingerprint, mixed.fingerprint}) == 3
    with pytest.raises(KeyFileError, match="64 hexadecimal digits"):
        CoordinatorPublicKey(KEY.public.signing, "")


_PRIME = 2**255 - 19
_EIGHT = (
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
)


@pytest.mark.parametrize("high", [0, 2**255])
@pytest.mark.parametrize("point", [0, 1, *_EIGHT, _PRIME - 1, _PRIME, _PRIME + 1])
def test_a_key_with_which_everybody_agrees_on_zeros_is_refused(point, high):
    raw = (point + high).to_bytes(32, "little")
    with pytest.raises(ValueError, match="shared key"):
        KEY.encryption.exchange(X25519PublicKey.from_public_bytes(raw))
    with pytest.raises(KeyFileError, match="anybody could decrypt"):
        CoordinatorPublicKey(KEY.public.signing, raw.hex())
