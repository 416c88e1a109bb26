"""A node that runs one app and no other: signed at the site, verified by Flower's own code."""

from __future__ import annotations

import io
import json
import threading
import urllib.error
import urllib.request
import zipfile

import pytest
import yaml
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.utils import request_download_link
from flwr.superlink.servicer.control.control_handlers import _format_verification
from flwr.supernode.cli.flower_supernode import (
    _try_obtain_trusted_entities,
    _validate_public_keys_ed25519,
)
from flwr.supernode.start_client_internal import _verify_fab

from predbayes.errors import StudyError
from predbayes_flower.trusted import SIGNATURE, TRUSTED, hub, main, sign
from tests.flower.deployment import APP

# Of a package that Flower builds apps with.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")


@pytest.fixture
def app(tmp_path):
    path = tmp_path / "study.fab"
    path.write_bytes(build_fab_from_disk(APP))
    return path


@pytest.fixture
def served(app, tmp_path):
    """Two sites that signed the app, and the URL at which the coordinator serves it."""
    sites = [tmp_path / "one", tmp_path / "two"]
    for site in sites:
        sign(app, site)
    server = hub(app, [site / SIGNATURE for site in sites], port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield sites, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def verified(site, content, told):
    trusted = _try_obtain_trusted_entities(site / TRUSTED)
    _validate_public_keys_ed25519(trusted)
    return _verify_fab(Fab("", content, _format_verification(told)), trusted)


def test_flower_verifies_the_app_for_each_site_that_signed_it(app, served):
    sites, url = served
    fab_url, told, _ = request_download_link(
        "@predbayes/predbayes-study", "1.0.0", f"{url}/v1/hub/fetch-fab", "fab_url"
    )
    with urllib.request.urlopen(fab_url) as answer:
        content = answer.read()
    assert content == app.read_bytes()
    assert all(verified(site, content, told) for site in sites)
    assert not verified(sites[0], content, told[1:])  # another site's word does not count


def test_no_other_app_is_verified(app, served):
    sites, _ = served
    told = [json.loads((site / SIGNATURE).read_bytes()) for site in sites]
    assert not verified(sites[0], app.read_bytes() + b"\0", told)
    assert not verified(sites[0], app.read_bytes(), [{**told[0], "signed_at": 1}])
    named = {**told[1], "public_key_id": told[0]["public_key_id"]}
    assert not verified(sites[0], app.read_bytes(), [named])


def test_the_key_is_kept_nowhere(app, tmp_path):
    sign(app, tmp_path / "site")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "site").iterdir()}
    assert set(kept) == {TRUSTED, SIGNATURE}
    assert not any(b"PRIVATE" in content for content in kept.values())
    before = yaml.safe_load(kept[TRUSTED])
    sign(app, tmp_path / "site")
    assert yaml.safe_load((tmp_path / "site" / TRUSTED).read_bytes()) != before


def test_an_app_with_code_is_signed_only_if_somebody_says_so(app, tmp_path):
    with zipfile.ZipFile(app, "a") as bundle:
        bundle.writestr("own/\x1bcode.py", "")
    with pytest.raises(StudyError, match=r"code of its own: own/\\x1bcode\.py; read it first"):
        sign(app, tmp_path / "site")
    assert not (tmp_path / "site").exists()
    assert "digest" in sign(app, tmp_path / "site", with_code=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("predbayes_flower.study_client:app", "antigravity:app"),
        ("serverapp =", "agentapp ="),
    ],
)
def test_so_is_one_that_names_other_code(tmp_path, capsys, old, new):
    path = tmp_path / "other.fab"
    with zipfile.ZipFile(path, "w") as bundle:
        text = (APP / "pyproject.toml").read_text()
        bundle.writestr("pyproject.toml", text.replace(old, new))
    assert main(["sign", str(path), str(tmp_path / "site")]) == 2
    assert "names code of its own" in capsys.readouterr().err


def test_what_is_looked_at_is_what_is_signed(app, tmp_path, monkeypatch):
    """On a share others can write: once it was opened, the file is another one."""
    good, other, opened = app.read_bytes(), tmp_path / "other", io.open
    with zipfile.ZipFile(app, "a") as bundle:
        bundle.writestr("own/code.py", "")

    def swapping(path, *mode, **options):
        file = opened(path, *mode, **options)
        if path == app and not other.exists():
            with opened(other, "wb") as written:
                written.write(good)
            other.rename(app)
        return file

    monkeypatch.setattr(io, "open", swapping)
    with pytest.raises(StudyError, match="code of its own"):
        sign(app, tmp_path / "site")
    assert app.read_bytes() == good
    assert not (tmp_path / "site").exists()


def test_the_hub_hands_out_nothing_else(served):
    _, url = served
    for path in ("/", "/v1/hub/fetch-fab", "/../etc/passwd", "/one/signature.json"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url + path)
