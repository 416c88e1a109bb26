"""Keys under a passphrase: nothing reads them without it."""

from __future__ import annotations

from unittest import mock

import pytest
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from predbayes.errors import KeyFileError
from predbayes_study.trust import passphrase
from predbayes_study.trust.passphrase import require_long
from predbayes_study.trust.signing import SigningKey

SECRET = "correct horse, größer"


@pytest.fixture(scope="module")
def key():
    return SigningKey.generate()


@pytest.fixture
def path(tmp_path, key):
    key.save(tmp_path / "Basel.key", SECRET.encode())
    return tmp_path / "Basel.key"


class TestFile:
    def test_the_private_key_is_not_in_the_file(self, path, key):
        content = path.read_bytes()
        assert b"ENCRYPTED PRIVATE KEY" in content
        assert key.private.private_bytes_raw() not in content
        assert path.stat().st_mode & 0o777 == 0o600

    def test_cryptography_reads_it_with_the_stretched_passphrase(self, path, key):
        first, _, blocks = path.read_bytes().partition(b"\n")
        salt = bytes.fromhex(first.decode().removeprefix("predbayes-scrypt "))
        scrypt = Scrypt(salt=salt, length=32, n=2**17, r=8, p=1)
        other = load_pem_private_key(blocks, scrypt.derive(SECRET.encode()).hex().encode())
        assert other.private_bytes_raw() == key.private.private_bytes_raw()
        key.save(path.with_name("again.key"), SECRET.encode())
        assert first not in path.with_name("again.key").read_bytes()  # each file has its own salt

    def test_a_new_one_must_be_long(self):
        assert require_long(b"twelve chars") == b"twelve chars"
        for short in ("", "eleven char", "grösser äää"):
            with pytest.raises(KeyFileError, match="at least 12 characters"):
                require_long(short.encode())


class TestWhereItComesFrom:
    def test_the_environment(self, path, key, monkeypatch):
        monkeypatch.setenv("PREDBAYES_PASSPHRASE", SECRET)
        assert SigningKey.load(path).public == key.public

    def test_a_file_that_the_environment_names(self, path, key, tmp_path, monkeypatch):
        (tmp_path / "credential").write_text(f"{SECRET}\n")
        monkeypatch.setenv("PREDBAYES_PASSPHRASE_FILE", str(tmp_path / "credential"))
        assert SigningKey.load(path).public == key.public

    def test_it_may_be_typed_on_a_keyboard_that_composes(self, path, key, monkeypatch):
        monkeypatch.setenv("PREDBAYES_PASSPHRASE", SECRET.replace("ö", "o\u0308"))
        assert SigningKey.load(path).public == key.public

    def test_whoever_sits_there_is_asked_once(self, path, key, monkeypatch):
        asked = []
        monkeypatch.setattr(passphrase, "asking", [lambda wanted: asked.append(wanted) or SECRET])
        with pytest.raises(KeyFileError):  # nobody sits there
            SigningKey.load(path)
        monkeypatch.setattr("sys.stdin", mock.Mock(isatty=lambda: True))
        for _ in range(2):
            assert SigningKey.load(path).public == key.public
        assert asked == [path]


class TestRefusals:
    @pytest.mark.parametrize("wrong", ["another horse, größer", "", SECRET + " "])
    def test_a_wrong_one_is_one_line(self, path, monkeypatch, wrong):
        monkeypatch.setenv("PREDBAYES_PASSPHRASE", wrong)
        with pytest.raises(KeyFileError) as refused:
            SigningKey.load(path)
        assert str(refused.value) == "that is not the passphrase of Basel.key"
