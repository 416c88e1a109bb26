"""A ClientApp that says hello as ours does, trains as ours does, and sends something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predbayes.exchange.header import Header
from predbayes.flower import client
from predbayes.flower.wire import upload_record
from tests.flower.malformed import MALFORMED


def _malformed(path: Path) -> Any:
    content = upload_record(path)
    MALFORMED[Header.read(path).info.site](content)
    return content


client.upload_record = _malformed
app = client.make_client_app()
