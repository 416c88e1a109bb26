"""What a node says first, and what it has ready to send: read from the site's files, quickly.

Each message starts a process at a node. To say a name, or to send again what lies there signed,
takes no torch and no pandas, which need seconds to load; so this imports neither.

    OUT/home/ready.json    the signed file that answers a plan, with a digest of each file that it
                           was made of: plan, site.toml, key and table

Where one of them has changed since, nothing is ready, and the node is asked in earnest.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import predbayes
from predbayes.errors import PlanError
from predbayes.flower.wire import Hello, pack_hello, upload_record
from predbayes.study.approvals import Approvals
from predbayes.study.folder import TEMPORARY, file_digest, put

_NEEDED = ("site", "data", "kit", "out")
_CHOICES = ("site", "data", "kit", "learner", "device")  # by which an upload can differ
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
        path = self.path("site")
        try:
            name = tomllib.loads(path.read_bytes().decode("utf-8-sig"))["name"]
        except (OSError, ValueError, KeyError) as error:
            raise PlanError(f"{path.name} does not tell the site's name") from error
        return Hello(str(name), predbayes.__version__, Approvals(path.parent).plans())

    def keep(self, plan_digest: str, sent: Path, made_of: list[Path]) -> None:
        """Note that a signed file answers a plan, and what it was made of."""
        noted = {
            "plan": plan_digest,
            "config": self._choices,
            "version": predbayes.__version__,
            "sent": str(sent),
            "files": {str(path): file_digest(path) for path in (sent, *made_of)},
        }
        partial = self._noted.with_name(TEMPORARY + self._noted.name)
        partial.write_bytes(json.dumps(noted).encode())
        put(partial, self._noted)

    def ready(self, plan_digest: str) -> Path | None:
        """The signed file that answers a plan, if all that it was made of is as it was."""
        wanted = {
            "plan": plan_digest,
            "config": self._choices,
            "version": predbayes.__version__,
        }
        try:
            noted = json.loads(self._noted.read_bytes())
            same = wanted.items() <= noted.items() and all(
                file_digest(Path(path)) == digest for path, digest in noted["files"].items()
            )
            return Path(noted["sent"]) if same else None
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            return None

    @property
    def _noted(self) -> Path:
        return self.path("out") / "home" / "ready.json"

    @property
    def _choices(self) -> dict[str, str]:
        return {name: str(self.config.get(name, "")) for name in _CHOICES}


def greeting(outbox: Outbox, plan_digest: str, *, may_bring: bool) -> Any:
    """A node's answer to a hello, with its upload if that is ready and small."""
    hello = outbox.hello()
    path = outbox.ready(plan_digest) if may_bring and plan_digest in hello.approved else None
    if path is None or path.stat().st_size > _SMALL_BYTES:
        return pack_hello(hello)
    return pack_hello(hello, _record_of(path))


def _record_of(path: Path) -> Any:
    """A signed file as it travels; whether it is sound is for the study to say."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        told = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return upload_record(told["predbayes"], told.get("signature", ""), arrays)
