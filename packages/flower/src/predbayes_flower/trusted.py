"""One app that a site's node runs, and no other: what `flower-supernode --trusted-entities` needs.

An app's Python files come with a run, so whoever can start one runs code at the nodes. With that
option a node runs only what was signed with a key that it knows, and asks nobody for it. Flower's
own way to sign goes over its hub, in the internet. This one needs no network:

    sign     at a site: looks into an app, and signs it with a key that is made for this signature
             and then forgotten. What the node trusts stays, the signature goes to the coordinator.
             Nobody can sign another app with that key, not even the site.
    serve    at the coordinator: hands an app and the sites' signatures to the SuperLink, in the
             hub's place, on the loopback

As a program: `python -m predbayes_flower.trusted sign APP.fab FOLDER`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from predbayes.errors import PredbayesError, StudyError
from predbayes.files import write_bytes
from predbayes.optional import require
from predbayes.text import printable

TRUSTED, SIGNATURE = "trusted-entities.yaml", "signature.json"
_CONFIG = "pyproject.toml"
_OURS = {
    "serverapp predbayes_flower.study_server:app",
    "clientapp predbayes_flower.study_client:app",
    _CONFIG,
    ".info/CONTENT",  # digests of the files
}
_MOST_BYTES = 10_000_000  # as Flower has it
_ASKED = "/v1/hub/fetch-fab"


def sign(app: Path, folder: Path, *, with_code: bool = False) -> str:
    """Sign an app for one's own node; return a line that says what it is.

    Args:
        app: A bundle, as `flwr build` writes it.
        folder: Where to write what the node trusts, and the signature.
        with_code: Whether an app may bring code of its own, which was looked at.
    """
    content = _read(app)
    found = _look(app.name, content)  # at the bytes that are signed: the file may change meanwhile
    if not with_code:
        _require_ours(found)
    ed25519 = require("cryptography.hazmat.primitives.asymmetric.ed25519", "study")
    key, at = ed25519.Ed25519PrivateKey.generate(), int(time.time())
    digest = hashlib.sha256(content).digest()
    name = f"fpk_{digest.hex()[:12]}_{_public(key)[-16:].lower()}"
    signature = base64.urlsafe_b64encode(key.sign(at.to_bytes(8, "big") + digest)).decode()
    told = {"public_key_id": name, "signature": signature.rstrip("="), "signed_at": at}
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / TRUSTED, f"{json.dumps(name)}: ssh-ed25519 {_public(key)}\n".encode())
    write_bytes(folder / SIGNATURE, json.dumps(told).encode())
    shown = printable(", ".join(sorted(found)), None)
    return f"signed {printable(app.name)}, digest {digest.hex()}: {shown}"


def hub(app: Path, signatures: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """Return a server on the loopback that answers a SuperLink as Flower's hub does.

    Signatures are read for each answer, so that a site may come later.
    """

    def told() -> bytes:
        signed = [json.loads(path.read_bytes()) for path in signatures]
        url = f"http://127.0.0.1:{server.server_port}/app.fab"
        return json.dumps({"fab_url": url, "verifications": signed}).encode()

    server = ThreadingHTTPServer(("127.0.0.1", port), _answering(told, lambda: _read(app)))
    return server


def main(arguments: Sequence[str] | None = None) -> int:
    """Sign or serve, as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m predbayes_flower.trusted")
    commands = parser.add_subparsers(dest="command", required=True)
    signing = commands.add_parser("sign", help="sign an app for one's own node")
    signing.add_argument("app", type=Path)
    signing.add_argument("folder", type=Path)
    signing.add_argument("--with-code", action="store_true", help="it brings code; I read it")
    serving = commands.add_parser("serve", help="hand an app to the SuperLink, on the loopback")
    serving.add_argument("app", type=Path)
    serving.add_argument("signatures", type=Path, nargs="+")
    serving.add_argument("--port", type=int, default=8010)
    given = parser.parse_args(arguments)
    try:
        if given.command == "sign":
            sys.stdout.write(sign(given.app, given.folder, with_code=given.with_code) + "\n")
        else:
            hub(given.app, given.signatures, given.port).serve_forever()
    except PredbayesError as error:
        sys.stderr.write(f"{printable(str(error), None)}\n")
        return 2
    return 0


def _read(app: Path) -> bytes:
    try:
        with app.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise StudyError(f"{printable(app.name)} cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise StudyError(f"{printable(app.name)} has more than {_MOST_BYTES:,} bytes")
    return content


def _look(name: str, content: bytes) -> set[str]:
    """Return what an app is: the names that it gives, with their roles, and the files in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            if bundle.getinfo(_CONFIG).file_size > _MOST_BYTES:
                raise ValueError("too large")
            config = tomllib.loads(bundle.read(_CONFIG).decode())
            roles = config["tool"]["flwr"]["app"]["components"].items()
            return {f"{role} {name}" for role, name in roles} | set(bundle.namelist())
    except (KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise StudyError(f"{printable(name)} is no bundle of a Flower app") from error


def _require_ours(found: set[str]) -> None:
    if other := sorted(found - _OURS):
        told = f"the app brings or names code of its own: {printable(', '.join(other))}"
        raise StudyError(f"{told}; read it first, then say --with-code")


def _public(key: Any) -> str:
    """Return a public key as OpenSSH writes it, without its kind."""
    form = require("cryptography.hazmat.primitives.serialization", "study")
    openssh = form.Encoding.OpenSSH, form.PublicFormat.OpenSSH
    return str(key.public_key().public_bytes(*openssh).decode().split(" ")[1])


def _answering(told: Callable[[], bytes], app: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 10_000))
            self._send(told() if self.path == _ASKED else None)

        def do_GET(self) -> None:
            self._send(app() if self.path == "/app.fab" else None)

        def _send(self, content: bytes | None) -> None:
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            """Write no line for each request."""

    return Answering


if __name__ == "__main__":
    sys.exit(main())
