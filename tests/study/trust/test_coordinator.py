"""The coordinator's keys, and their files."""

import pytest

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
    assert key.encryption == KEY.encryption


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


def test_public_keys_of_a_site_and_of_the_coordinator_are_not_taken_for_each_other(files):
    site = SigningKey.generate()
    site.save(files / "site.key")
    site.public.save(files / "site.pub")
    for load, name in (
        (CoordinatorPublicKey.load, "site.pub"),
        (PublicKey.load, "coordinator.pub"),
        (CoordinatorPublicKey.load, "coordinator.key"),
    ):
        with pytest.raises(KeyFileError, match=r"^[^\n]+$"):
            load(files / name)


def test_the_two_public_keys_of_a_file_have_an_order(files):
    path = files / "coordinator.pub"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    with pytest.raises(KeyFileError, match="not a public key"):
        CoordinatorPublicKey.load(path)


def test_the_words_are_of_both_keys():
    other = CoordinatorKey.generate().public
    mixed = CoordinatorPublicKey(KEY.public.signing, other.encryption)
    assert len({KEY.public.fingerprint, other.fingerprint, mixed.fingerprint}) == 3
    with pytest.raises(KeyFileError, match="1,216 bytes"):
        CoordinatorPublicKey(KEY.public.signing, "")
