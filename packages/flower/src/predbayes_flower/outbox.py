"""What a node says first, and what it has ready to send, read quickly from the site's files.

Each message starts a process at a node. Torch and pandas need seconds to load. A node needs neither
to say its name, nor to send a signed file again, so this imports neither.

    OUT/home/ready.json    the signed file that answers a plan, with a digest of each file that it
                           was made of: plan, site.toml, key and table

If one of them has changed since, nothing is ready, and the node is asked to train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import predbayes
from predbayes.errors import PlanError, StudyError
from predbayes.exchange.strict import Strict
from predbayes.files import PRIVATE, file_digest, write_bytes
from predbayes_flower.pump import SMALL_BYTES
from predbayes_flower.wire import upload_record, words
from predbayes_study.site.release import Approvals
from predbayes_study.store.audit import AuditLog
from predbayes_study.tables.sitefile import SiteFile

_NEEDED = ("site", "data", "kit", "out")
_CHOICES = ("site", "data", "kit", "learner", "device")


class _Noted(Strict):
    """A signed file that answers a plan, and all that it depends on."""

    plan: str
    config: dict[str, str]
    version: str
    sent: str
    files: dict[str, str]  # digests, the signed file's among them


@dataclass(frozen=True, slots=True)
class Outbox:
    """A site's folder, as its node's configuration names it."""

    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        missing = [name for name in _NEEDED if not self.config.get(name)]
        if missing:
            raise PlanError(f"the node's configuration lacks {', '.join(missing)}")

    def path(self, name: str) -> Path:
        """Return a path of the configuration."""
        return Path(str(self.config[name]))

    def keep(self, plan_digest: str, sent: Path, made_of: list[Path]) -> None:
        """Note that a signed file answers a plan, and what it was made of."""
        files = {str(path): file_digest(path) for path in (sent, *made_of)}
        noted = _Noted(**self._terms(plan_digest), sent=str(sent), files=files)
        write_bytes(self._path, noted.model_dump_json().encode(), PRIVATE)

    def ready(
        self, plan_digest: str, approvals: Approvals, most_bytes: float = math.inf
    ) -> Path | None:
        """Return the signed file that answers a plan, if all that it was made of is unchanged.

        Args:
            plan_digest: The plan.
            approvals: Of the site; what may not leave now is not ready.
            most_bytes: A larger file counts as not ready, and is not read.
        """
        try:
            noted = _Noted.model_validate_json(self._path.read_bytes())
            sent = Path(noted.sent)
            if noted.model_dump(exclude={"sent", "files"}) != self._terms(plan_digest):
                return None
            if sent.stat().st_size > most_bytes:
                return None
            if approvals.why_not_sent(noted.files.get(noted.sent, ""), by_message=True):
                return None
            same = all(file_digest(Path(path)) == d for path, d in noted.files.items())
            return sent if same else None
        except (OSError, ValueError):  # it cannot be read, or is not what `keep` wrote
            return None

    def _terms(self, plan_digest: str) -> dict[str, Any]:
        """Return all that an upload depends on beside files."""
        choices = {name: str(self.config.get(name, "")) for name in _CHOICES}
        return {"plan": plan_digest, "config": choices, "version": predbayes.__version__}

    @property
    def _path(self) -> Path:
        return self.path("out") / "home" / "ready.json"


def greeting(outbox: Outbox, plan_digest: str, *, may_bring: bool) -> Any:
    """Return who a node is and whether it approved a plan, with its upload if ready and small.

    Of the other plans that the site approved nothing is told.

    Args:
        outbox: The site's folder.
        plan_digest: The plan.
        may_bring: Whether the upload may come with the answer.
    """
    own = SiteFile.load(outbox.path("site"))
    approvals = Approvals.of(own)
    approved = approvals.given("plan", plan_digest)
    may_bring &= approved
    path = outbox.ready(plan_digest, approvals, SMALL_BYTES) if may_bring else None
    told: dict[str, str | int] = {"site": own.name, "version": predbayes.__version__}
    told["approved"] = approved
    if path is None:
        return words(**told)
    AuditLog.at(own.folder, own.audit).note(
        "send", plan=plan_digest, asked_by="message", file=file_digest(path)
    )
    return upload_record(path, sending(approvals), **told)


def sending(approvals: Approvals) -> Callable[[str], None]:
    """Return what refuses a file, by the digest of the bytes that are sent, if it may not leave."""

    def require(digest: str) -> None:
        if why := approvals.why_not_sent(digest, by_message=True):
            raise StudyError(f"nothing is sent: {why}")

    return require
