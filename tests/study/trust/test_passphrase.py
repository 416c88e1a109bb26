"""Keys under a passphrase: read with it by anybody's reader of PKCS 8, and by nobody without."""

from __future__ import annotations

import shutil
import subprocess
from unittest import mock

import pytest
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

    def test_others_read_it_with_the_passphrase(self, path, key):
        other = load_pem_private_key(path.read_bytes(), SECRET.encode())
        assert other.private_bytes_raw() == key.private.private_bytes_raw()

    @pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl here")
    def test_openssl_reads_it(self, path):
        shown = subprocess.run(
            ["openssl", "pkey", "-in", path, "-passin", f"pass:{SECRET}", "-noout", "-text"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "ED25519 Private-Key" in shown

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
