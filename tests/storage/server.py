"""A real S3 server of this machine: moto's, as a process of its own that ends by its id."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "coordinator",
    "AWS_SECRET_ACCESS_KEY": "the-secret-of-the-coordinator",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "uploads"
_START = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"


@dataclass
class S3Server:
    """A server that can be killed and started anew; what it held is gone then."""

    port: int = field(default_factory=lambda: _free_port())
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.address}

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(port=self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT},
        )
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError("the S3 server does not listen")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def files(self) -> Any:
        """The coordinator's view of it, with a bucket."""
        import fsspec

        found = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
        if not found.exists(BUCKET):
            found.mkdir(BUCKET)
        return found


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
