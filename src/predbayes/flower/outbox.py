"""What a node says first, and what it has ready to send: read from the site's files, quickly.

Each message starts a process at a node. To say a name, or to send again what lies there signed,
takes no torch and no pandas, which need seconds to load; so this imports neither.

    OUT/home/ready.json    the signed file that answers a plan, with a digest of each file that it
                           was made of: plan, site.toml, key and table

Where one of them has changed since, nothing is ready, and the node is asked in earnest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

import predbayes
from predbayes.errors import PlanError
from predbayes.exchange.header import Header, to_metadata
from predbayes.files import file_digest, write_bytes
from predbayes.flower.wire import Hello, pack_hello, upload_record
from predbayes.study.site.release import Approvals
from predbayes.study.tables.sitefile import SiteFile

_NEEDED = ("site", "data", "kit", "out")
_CHOICES = ("site", "data", "kit", "learner", "device")
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Outbox:
    """A site's folder, by its node's configuration."""

    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        missing = [name for name in _NEEDED if not self.config.get(name)]
        if missing:
            raise PlanError(f"the node's configuration lacks {', '.join(missing)}")

    def path(self, name: str) -> Path:
        """A path of the configuration."""
        return Path(str(self.config[name]))

    def hello(self) -> Hello:
        """Who the site is, and which plans it approved."""
        own = SiteFile.load(self.path("site"))
        return Hello(own.name, predbayes.__version__, Approvals(own.folder).plans())

    def keep(self, plan_digest: str, sent: Path, made_of: list[Path]) -> None:
        """Note that a signed file answers a plan, and what it was made of."""
        files = {str(path): file_digest(path) for path in (sent, *made_of)}
        content = json.dumps({**self._terms(plan_digest), "sent": str(sent), "files": files})
        write_bytes(self._noted, content.encode())

    def ready(self, plan_digest: str, most_bytes: float = math.inf) -> Path | None:
        """The signed file that answers a plan, if all that it was made of is as it was.

        Args:
            plan_digest: The plan.
            most_bytes: A larger file is as none; it is not read to find that out.
        """
        try:
            noted = json.loads(self._noted.read_bytes())
            sent = Path(noted["sent"])
            if not self._terms(plan_digest).items() <= noted.items():
                return None
            if sent.stat().st_size > most_bytes:
                return None
            same = all(file_digest(Path(path)) == d for path, d in noted["files"].items())
            return sent if same else None
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            return None

    def _terms(self, plan_digest: str) -> dict[str, Any]:
        """All but files by which an upload can differ."""
        choices = {name: str(self.config.get(name, "")) for name in _CHOICES}
        return {"plan": plan_digest, "config": choices, "version": predbayes.__version__}

    @property
    def _noted(self) -> Path:
        return self.path("out") / "home" / "ready.json"


def greeting(outbox: Outbox, plan_digest: str, *, may_bring: bool) -> Any:
    """A node's answer to a hello, with its upload if that is ready and small."""
    hello = outbox.hello()
    if not may_bring or plan_digest not in hello.approved:
        return pack_hello(hello)
    path = outbox.ready(plan_digest, _SMALL_BYTES)
    return pack_hello(hello, None if path is None else _record_of(path))


def _record_of(path: Path) -> Any:
    """Return a signed file as it travels; the study checks it."""
    header = Header.read(path)
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in header.arrays}
    return upload_record(to_metadata(header.info, header.signature), arrays)
