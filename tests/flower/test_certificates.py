"""Certificates of sites: signed, revoked, renewed, as openssl sees them and without a network."""

from __future__ import annotations

import pytest

from tests.flower.deployment import CERTIFICATES, run


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates") / "ca"
    run(CERTIFICATES, "server", folder, "study.example.org", "127.0.0.1")
    return folder


def certified(ca, folder, name="Universitätsspital Basel"):
    run(CERTIFICATES, "request", folder, name)
    run(CERTIFICATES, "sign", ca, folder / "client.csr", folder / "client.pem")
    return folder / "client.pem"


def verifies(ca, certificate, purpose="sslclient"):
    options = ("-CAfile", ca / "ca.crt", "-CRLfile", ca / "crl.pem", "-crl_check")
    done = run("openssl", "verify", *options, "-purpose", purpose, certificate, check=False)
    return done.returncode == 0


def test_a_certificate_is_good_until_it_is_revoked_and_the_next_one_after_it(ca, tmp_path):
    first, other = certified(ca, tmp_path / "one"), certified(ca, tmp_path / "other", "Bern")
    assert verifies(ca, first)
    run(CERTIFICATES, "revoke", ca, first)
    assert not verifies(ca, first)
    assert verifies(ca, other)
    second = tmp_path / "one" / "second.pem"
    run(CERTIFICATES, "sign", ca, tmp_path / "one" / "client.csr", second)
    assert verifies(ca, second)
    run(CERTIFICATES, "revoke", ca, other)
    assert not any(verifies(ca, gone) for gone in (first, other))


def test_a_client_is_no_server_and_a_server_no_client(ca, tmp_path):
    assert not verifies(ca, certified(ca, tmp_path / "site"), "sslserver")
    assert verifies(ca, ca / "server.pem", "sslserver")
    assert not verifies(ca, ca / "server.pem")


def test_a_request_cannot_ask_for_more(ca, tmp_path):
    """Such as to be a CA, or a server: what is in a request beside its name and key is ignored."""
    run(CERTIFICATES, "request", tmp_path / "site", "Basel")
    key, request = tmp_path / "site" / "client.key", tmp_path / "site" / "client.csr"
    more = ("-addext", "basicConstraints=CA:TRUE", "-addext", "subjectAltName=DNS:localhost")
    run("openssl", "req", "-new", "-key", key, "-subj", "/CN=Basel", *more, "-out", request)
    run(CERTIFICATES, "sign", ca, request, tmp_path / "site" / "client.pem")
    text = run("openssl", "x509", "-in", tmp_path / "site" / "client.pem", "-noout", "-text").stdout
    assert "CA:FALSE" in text
    assert "CA:TRUE" not in text
    assert "localhost" not in text


def test_a_servers_certificate_is_renewed_for_its_names(ca):
    before = (ca / "server.pem").read_bytes(), (ca / "server.key").read_bytes()
    run(CERTIFICATES, "renew", ca)
    after = (ca / "server.pem").read_bytes(), (ca / "server.key").read_bytes()
    assert all(new != old for new, old in zip(after, before, strict=True))
    assert verifies(ca, ca / "server.pem", "sslserver")
    told = run("openssl", "x509", "-in", ca / "server.pem", "-noout", "-ext", "subjectAltName")
    assert "DNS:study.example.org, IP Address:127.0.0.1" in told.stdout
    assert (ca / "server.key").stat().st_mode & 0o077 == 0


def test_nothing_is_overwritten(ca, tmp_path):
    certificate = certified(ca, tmp_path / "site")
    again = run(
        CERTIFICATES, "sign", ca, tmp_path / "site" / "client.csr", certificate, check=False
    )
    assert again.returncode == 1
    assert again.stderr == f"{certificate} exists; give another name\n"
    for command in (("server", ca, "localhost"), ("request", tmp_path / "site", "Basel")):
        assert run(CERTIFICATES, *command, check=False).returncode == 1
    assert run(CERTIFICATES, "revoke", ca, check=False).returncode == 2
